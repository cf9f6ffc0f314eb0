"""Post-training quantisation as a probe."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.diagnostics import (
    distortions,
    fake_quantise,
    quantised,
)
from tests.helpers.small_network import IMAGES, network, randn


@settings(deadline=None)
@given(st.integers(2, 12), st.floats(0.01, 100), st.floats(-5, 5))
def test_fake_quantisation_rounds_to_levels(bits: int, scale: float, shift: float) -> None:
    x = randn(200) * scale + shift
    low, high = x.min(), x.max()
    rounded = fake_quantise(x, bits, low, high)
    step = (high - low) / (2**bits - 1)
    assert float((x - rounded).abs().max()) <= float(step) * 1.0001  # half a step, and half one of the zero point
    assert len(rounded.unique()) <= 2**bits
    torch.testing.assert_close(fake_quantise(rounded, bits, low, high), rounded)


def test_a_constant_survives_quantisation() -> None:
    x = torch.full((4,), 2.5)
    assert torch.equal(fake_quantise(x, 8, x.min(), x.max()), x)


def test_quantised_networks_approach_the_original() -> None:
    backbone = network()
    exact = backbone.layers(IMAGES, [2])[2].tokens
    errors = []
    for bits in (4, 8, 12):
        found = quantised(backbone, bits, bits, IMAGES).layers(IMAGES, [2])[2].tokens
        errors.append(float((found - exact).norm() / exact.norm()))
    assert errors[0] > 4 * errors[1] > 16 * errors[2] > 0
    assert torch.equal(quantised(backbone, None, None, IMAGES).layers(IMAGES, [2])[2].tokens, exact)
    assert torch.equal(backbone.layers(IMAGES, [2])[2].tokens, exact), "the original stays"
    names = {quantised(backbone, *bits, IMAGES).weights_hash for bits in ((None, None), (4, 8), (8, 8), (None, 8))}
    assert len(names) == 4, "features of one are never taken for another's"
    assert quantised(backbone, None, None, IMAGES).weights_hash == backbone.weights_hash


def test_distortions_of_all_sites() -> None:
    found = distortions(network(), IMAGES, IMAGES, (4, 8), batch=1)
    assert [one.site for one in found] == [
        *(f"{b}.{part}" for b in (1, 2) for part in ("norm1", "attn", "norm2", "mlp")),
        "norm",
    ]
    assert all(20 < one.sqnr[8] - one.sqnr[4] < 28 for one in found), "6 dB a bit"
    assert found[0].normalised_mse(8) == pytest.approx(10 ** (-found[0].sqnr[8] / 10))
