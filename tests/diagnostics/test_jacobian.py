"""Conditioning of attention's derivatives."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import Attention
from torch.nn import functional as F

from dinoskip.diagnostics import (
    input_jacobian,
    weight_jacobian,
    weight_spectrum,
)
from dinoskip.models.attention_sites import head_factors
from dinoskip.runtime.randomness import torch_rng
from tests.helpers.small_network import network, randn


@pytest.mark.parametrize("skip", [False, True])
def test_lanczos_brackets_the_exact_extremes(skip: bool) -> None:
    attention = network().model.blocks[0].attn
    x = F.layer_norm(randn(10, 24), (24,))
    exact = input_jacobian(attention, x, skip=skip)
    assert exact.exact
    short = input_jacobian(attention, x, skip=skip, steps=20, exact_up_to=0)
    assert not short.exact
    assert short.largest <= exact.largest * (1 + 1e-12)
    assert exact.largest - short.largest <= short.largest_error + 1e-12
    assert short.smallest >= exact.smallest * (1 - 1e-9)
    assert short.kappa <= exact.kappa * (1 + 1e-9)
    full = input_jacobian(attention, x, skip=skip, steps=240, exact_up_to=0)
    assert full.smallest == pytest.approx(exact.smallest, rel=1e-4)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 50), count=st.integers(2, 11))
def test_weight_jacobian_is_that_of_autograd(seed: int, count: int) -> None:
    attention = network().model.blocks[0].attn
    torch.nn.init.normal_(attention.qkv.weight, std=0.3, generator=torch_rng(seed))
    query, key, value, _ = head_factors(attention)
    x, root = randn(count, 24, seed=seed), 8**-0.25

    def output(*weights: torch.Tensor) -> torch.Tensor:
        q, k, v = weights
        return (x @ q @ k.T @ x.T).softmax(-1) @ x @ v

    weights = (query[1] * root, key[1] * root, value[:, 8:16])
    parts = torch.func.jacrev(output, argnums=(0, 1, 2))(*weights)
    values = torch.linalg.svdvals(torch.cat([part.reshape(count * 8, -1) for part in parts], 1))
    assert weight_jacobian(attention, x, head=1).kappa == pytest.approx(float(values[0] / values[-1]), rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 50), count=st.integers(2, 12), scales=st.tuples(*[st.floats(-3, 3)] * 3))
def test_the_ceiling_of_the_weight_jacobian_holds_at_every_scale(
    seed: int, count: int, scales: tuple[float, ...]
) -> None:
    attention = network().model.blocks[0].attn
    with torch.no_grad():
        for part, scale in zip(attention.qkv.weight.chunk(3), scales, strict=True):
            part.normal_(std=0.1 * 10**scale, generator=torch_rng(seed, scale.hex()))
    tokens = randn(count, 24, seed=seed + 1) + randn(1, 24, seed=seed + 2)
    found = weight_jacobian(attention, tokens)
    assert 1 <= found.kappa <= found.ceiling * (1 + 1e-9)


def test_theorem_3_1_fails_where_values_are_large() -> None:
    """Its bound ignores the scale of W_V, but the blocks of W_Q and W_K grow with it and never have full row rank."""
    attention = Attention(2, num_heads=1, qkv_bias=False).double()
    eye, found = torch.eye(2, dtype=torch.float64), {}
    for scale in (1, 10, 100):
        with torch.no_grad():
            attention.qkv.weight.copy_(torch.cat([eye * 2**0.25, eye * 2**0.25, eye * scale]))  # q·k over √2
        found[scale] = weight_jacobian(attention, eye)
        assert found[scale].bound == pytest.approx(2 + (math.e + 1) / (math.e - 1))
    assert found[1].kappa < found[1].bound < found[10].kappa < found[10].ceiling
    assert found[100].kappa == pytest.approx(10 * found[10].kappa, rel=0.05)


def test_weight_jacobian_of_alike_tokens_is_rank_deficient() -> None:
    attention = network().model.blocks[0].attn
    found = weight_jacobian(attention, randn(1, 24).expand(5, -1))
    assert found.kappa > 1e14
    assert found.ceiling == found.bound == 1 / torch.finfo(torch.float64).eps
    with pytest.raises(ValueError, match="25 tokens are more than their 24 channels"):
        weight_jacobian(attention, randn(25, 24))


@pytest.mark.parametrize("count", [3, 9, 12])
def test_the_spectrum_is_that_of_autograd_over_all_heads(count: int) -> None:
    attention = network().model.blocks[0].attn
    torch.nn.init.normal_(attention.qkv.weight, std=0.3, generator=torch_rng(count))
    query, key, value, _ = head_factors(attention)
    x, heads, root = randn(count, 24, seed=count), attention.num_heads, attention.scale**0.5

    def output(*weights: torch.Tensor) -> torch.Tensor:
        q, k, v = weights
        return torch.stack([(x @ q[h] @ k[h].T @ x.T).softmax(-1) @ x @ v[h] for h in range(heads)])

    weights = (query * root, key * root, value.reshape(24, heads, -1).transpose(0, 1))
    parts = torch.func.jacrev(output, argnums=(0, 1, 2))(*weights)
    brute = torch.linalg.svdvals(torch.cat([part.reshape(count * 24, -1) for part in parts], 1))
    spectrum = weight_spectrum(attention, x)
    assert spectrum.shape == (count * 24,)
    torch.testing.assert_close(spectrum, brute, rtol=1e-9, atol=1e-9)
