"""Measures of attention matrices."""

from __future__ import annotations

import math

import pytest

from dinoskip.diagnostics import (
    attention_measures,
    block_activations,
    condition_number,
)
from tests.helpers.small_network import IMAGES, network


def test_attention_measures() -> None:
    backbone = network()
    found = next(block_activations(backbone.model, IMAGES))
    pair, attention = found.query_key(), found.attention
    assert pair is not None
    assert attention is not None
    exact = (pair[0] @ pair[1].mT / 8**0.5).softmax(-1)
    got = attention_measures(found, images=2, heads=3)
    assert got is not None
    assert got.diagonal == pytest.approx(float(exact.diagonal(dim1=2, dim2=3).mean()))
    assert got.entropy == pytest.approx(float(-(exact * exact.log()).sum(-1).mean()) / math.log(10))
    assert got.kappa == pytest.approx(condition_number(exact).kappa.quantile(0.5, dim=0).tolist())
    assert attention_measures(found, heads=0).kappa == ()  # type: ignore[union-attr]
