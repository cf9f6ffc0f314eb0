"""Hits in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.discovery import is_hit


def test_exactly_one_half_is_a_hit_and_one_pixel_less_is_not() -> None:
    assert is_hit([0, 0, 10, 10], [[0, 0, 10, 5]])
    assert not is_hit([0, 0, 100, 100], [[0, 0, 100, 49]])
    assert is_hit([0, 0, 10, 10], [[50, 50, 60, 60], [0, 0, 10, 5]])
    assert not is_hit([0, 0, 10, 10], [[20, 20, 30, 30]])
    assert not is_hit([0, 0, 10, 10], np.zeros((0, 4)))
    assert not is_hit([3, 3, 3, 3], [[3, 3, 3, 3]])


side = st.integers(0, 12)


@given(a=st.tuples(side, side, side, side), b=st.tuples(side, side, side, side), tenths=st.integers(1, 10))
@settings(max_examples=200, deadline=None)
def test_hit_is_the_exact_ratio_of_counted_pixels(a: tuple[int, ...], b: tuple[int, ...], tenths: int) -> None:
    first, second = ((min(x1, x2), min(y1, y2), max(x1, x2) + 1, max(y1, y2) + 1) for x1, y1, x2, y2 in (a, b))
    pixels = [{(x, y) for x in range(x1, x2) for y in range(y1, y2)} for x1, y1, x2, y2 in (first, second)]
    exact = Fraction(len(pixels[0] & pixels[1]), len(pixels[0] | pixels[1])) >= Fraction(tenths, 10)
    assert is_hit(first, [second], tenths / 10) == exact
