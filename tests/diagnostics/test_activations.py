"""The activations that pass through each block."""

from __future__ import annotations

import math

import pytest
import torch

from dinoskip.diagnostics import (
    attention_measures,
    block_activations,
    condition_number,
    gradient_norms,
)
from tests.helpers.small_network import IMAGES, network


@pytest.mark.parametrize(
    "options", [{}, {"qk_norm": True}, {"init_values": 0.1}, {"class_token": False, "global_pool": "avg"}]
)
def test_a_trace_is_the_pass_itself(options: dict[str, object]) -> None:
    backbone = network(**options)
    with torch.no_grad():
        found = list(block_activations(backbone.model, IMAGES))
        assert torch.equal(backbone.model.norm(found[-1].output), backbone.model.forward_features(IMAGES))
        for block in found:
            assert block.attended is not None
            assert block.mixed is not None
            assert block.middle is not None
            torch.testing.assert_close(block.inputs + block.attended, block.middle)
            torch.testing.assert_close(block.middle + block.mixed, block.output)
            query = block.query_key()
            assert query is not None
            keys = backbone.layers(IMAGES, [block.number], facet="key")[block.number].tokens
            prefix = backbone.num_prefix_tokens
            torch.testing.assert_close(query[1].transpose(1, 2).flatten(2)[:, prefix:], keys)
    assert not any(module._forward_hooks for module in backbone.model.modules()), "no hook is left"


def test_gradient_norms_are_those_of_backward() -> None:
    backbone = network()
    rows = gradient_norms(backbone, IMAGES)
    assert all(parameter.grad is None for parameter in backbone.model.parameters())
    assert set(rows[0]) == {"block", "query", "key", "value", "output", "fc1", "fc2"}
    assert all(value > 0 for row in rows for value in row.values())
    assert all(
        math.hypot(*(row[part] for part in row if part != "block")) == pytest.approx(row["block"]) for row in rows
    )


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
