from __future__ import annotations

import pytest
import torch

from dinoskip.diagnostics import drift, query_key_spectrum, query_key_trace, vo_condition
from dinoskip.errors import ConfigError
from dinoskip.init.orthogonal import haar
from dinoskip.models import Block
from dinoskip.models.attention_sites import head_factors
from dinoskip.runtime.randomness import torch_rng
from tests.helpers.small_network import network


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


def test_query_key_products_without_forming_them() -> None:
    backbone = network()
    block = backbone.model.blocks[0]
    query, key, _, _ = head_factors(block.attn)
    products = query @ key.mT
    torch.testing.assert_close(query_key_spectrum(block), torch.linalg.svdvals(products)[:, :8])
    torch.testing.assert_close(query_key_trace(block), products.diagonal(dim1=1, dim2=2).sum(1))


def test_drift() -> None:
    assert drift(3 * haar(20, 12, torch_rng(0))) < 1e-12
    assert drift(torch.diag(torch.tensor([1.0, 1.0, 2.0])).double()) == pytest.approx(1.0)
