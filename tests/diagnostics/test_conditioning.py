from __future__ import annotations

import pytest
import torch

from dinoskip.diagnostics import vo_condition
from dinoskip.errors import ConfigError
from dinoskip.init.orthogonal import haar
from dinoskip.models import Block
from dinoskip.randomness import torch_rng


def test_product_over_all_heads() -> None:
    """Orthogonal per head is not orthogonal in sum: only the full product shows it."""
    block = Block(dim=32, num_heads=4)
    with torch.no_grad():
        for head in range(4):
            rows = slice(64 + 8 * head, 64 + 8 * (head + 1))
            block.attn.qkv.weight[rows] = haar(8, 32, torch_rng(head, "value"))
            block.attn.proj.weight[:, 8 * head : 8 * (head + 1)] = haar(32, 8, torch_rng(head, "output"))
    product = block.attn.proj.weight.double() @ block.attn.qkv.weight[64:].double()
    found = vo_condition(block)
    assert float(found.kappa) == pytest.approx(float(torch.linalg.cond(product.detach())), rel=1e-6)
    assert float(found.kappa) > 10


def test_zero_weights_are_flagged() -> None:
    block = Block(dim=32, num_heads=4)
    with torch.no_grad():
        block.attn.proj.weight.zero_()
    assert bool(vo_condition(block).rank_deficient)


def test_other_attention_is_refused() -> None:
    with pytest.raises(ConfigError, match="not plain"):
        vo_condition(Block(dim=32, num_heads=4, qk_norm=True))
