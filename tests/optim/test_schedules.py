from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.optim import cosine, linear_then_constant


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 200), st.data())
def test_cosine_is_the_reference_formula_step_by_step(total: int, data: st.DataObject) -> None:
    warmup = data.draw(st.integers(0, total))
    values = cosine(0.3, 0.01, total, warmup, start=0.02)
    assert values.shape == (total,)
    for step in range(total):
        if step < warmup:
            expected = 0.02 + (0.3 - 0.02) * (step / (warmup - 1) if warmup > 1 else 0.0)
        else:
            expected = 0.01 + 0.5 * (0.3 - 0.01) * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
        assert values[step] == pytest.approx(expected, abs=1e-12)


def test_cosine_starts_at_zero_peaks_after_the_warmup_and_nears_the_end() -> None:
    values = cosine(5e-4, 1e-6, 1000, 100)
    assert values[0] == 0.0
    assert values[99] == values[100] == values.max() == 5e-4
    assert np.all(np.diff(values[100:]) < 0)
    assert 1e-6 < values[-1] < 1e-6 + 5e-9


def test_cosine_refuses_a_warmup_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="11 steps does not fit in 10"):
        cosine(1.0, 0.0, 10, 11)


def test_temperature_rises_linearly_then_stays() -> None:
    values = linear_then_constant(0.04, 0.07, 100, 30)
    np.testing.assert_allclose(values[:30], np.linspace(0.04, 0.07, 30))
    assert set(values[29:]) == {0.07}
    assert set(linear_then_constant(0.04, 0.04, 5, 0)) == {0.04}


def test_a_shortened_temperature_warmup_begins_like_the_long_one() -> None:
    np.testing.assert_array_equal(linear_then_constant(0.04, 0.07, 5, 30), linear_then_constant(0.04, 0.07, 99, 30)[:5])
