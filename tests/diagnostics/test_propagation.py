"""Signals and gradients of one network, against the same written out."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dinoskip.diagnostics import propagation
from dinoskip.models.vit import embed
from tests.helpers.small_network import IMAGES, network


@torch.no_grad()
def test_rows_are_of_the_blocks_outputs() -> None:
    model = network(skip=False).model
    rows = propagation(model, IMAGES)
    tokens = embed(model, IMAGES)
    assert [row.block for row in rows] == [1, 2]
    for block, row in zip(model.blocks, rows, strict=True):
        tokens = block(tokens)
        unit = F.normalize(tokens, dim=-1)
        patches = unit[:, 1:] @ unit[:, 1:].mT
        n = patches.shape[-1]
        assert row.token_cosine == pytest.approx(float((patches.sum((1, 2)) - n).mean()) / (n * (n - 1)))
        assert row.cls_cosine == pytest.approx(float(unit[0, 0] @ unit[1, 0]))
        assert row.rms == pytest.approx(float(tokens[:, 1:].square().mean().sqrt()))
        assert row.gradient > 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_are_those_of_the_whole_block() -> None:
    model = network(skip=False).model
    with torch.no_grad():
        model.blocks[1].mlp.fc2.weight.zero_()  # its output is then the same for all: nothing reaches block 1
    first, second = propagation(model, IMAGES)
    assert first.gradient < 1e-12 < second.gradient


def test_one_image_is_refused() -> None:
    with pytest.raises(ValueError, match="needs two images"):
        propagation(network().model, IMAGES[:1])
