"""Weights of each initialisation are drawn independently, and no earlier bias of the layers that it sets stays."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from dinoskip.init import conditioned_, mimetic_, residual_free_, skipless_
from dinoskip.models import create_model
from dinoskip.models.attention_sites import head_factors

Init = Callable[..., Any]


def network(**options: Any) -> Any:
    return create_model("vit_tiny_patch8", skip=False, depth=2, img_size=16, embed_dim=96, num_heads=3, **options)


def alike(one: Tensor, other: Tensor) -> float:
    """Absolute cosine between two matrices as vectors; near 0 of independent draws, 1 of one draw."""
    return float(torch.cosine_similarity(one.flatten(), other.flatten(), dim=0).abs())


def factors_of(model: Any) -> list[tuple[str, Tensor]]:
    """Every factor of every head: names such as ``1 query 2``; value and output are of all heads."""
    found: list[tuple[str, Tensor]] = []
    for index, block in enumerate(model.blocks):
        query, key, value, output = head_factors(block.attn)
        found += [(f"{index} query {head}", one) for head, one in enumerate(query)]
        found += [(f"{index} key {head}", one) for head, one in enumerate(key)]
        found += [(f"{index} value", value), (f"{index} output", output), (f"{index} output", output.T)]
    return found


# Which factors are what they are because of another one: of the paper's skipless, queries and keys factor the same
# alpha Z + beta I; of the residual-free networks queries equal keys and W^O is the transpose of W^V.
BOUND: dict[Init, tuple[tuple[str, str], ...]] = {
    conditioned_: (("value", "value"), ("value", "output")),
    skipless_: (("query", "key"),),
    residual_free_: (("query", "key"), ("value", "output")),
}


@pytest.mark.parametrize("init", BOUND, ids=lambda init: init.__name__)
def test_factors_are_drawn_apart(init: Init) -> None:
    options = {"v": "blocked"} if init is conditioned_ else {}
    for (one, first), (other, second) in combinations(factors_of(init(network(), **options)), 2):
        (block, kind, *head), (other_block, other_kind, *other_head) = one.split(), other.split()
        bound = (kind, other_kind) in BOUND[init]
        if bound and (init is conditioned_ or (block, head) == (other_block, other_head)):
            continue
        if first.shape == second.shape:
            assert alike(first, second) < 0.1, f"{one} and {other} are of one draw"


@pytest.mark.parametrize("init", [skipless_, mimetic_, residual_free_, conditioned_], ids=lambda init: init.__name__)
def test_biases_that_were_there_are_gone(init: Init) -> None:
    model = network()
    biases = {name: one for name, one in model.named_parameters() if name.startswith("blocks") and "bias" in name}
    with torch.no_grad():
        for bias in biases.values():
            bias.fill_(0.5)
    init(model, **({"v": "blocked"} if init is conditioned_ else {}))
    kept = {conditioned_: ("attn.proj", "mlp", "norm"), mimetic_: ("mlp", "norm")}.get(init, ("norm",))
    for name, bias in biases.items():
        assert bool((bias == (0.5 if any(part in name for part in kept) else 0)).all()), name


def test_every_head_of_a_skipless_layer_has_a_matrix_of_its_own() -> None:
    query, key, _, _ = head_factors(skipless_(network()).blocks[0].attn)
    products = query @ key.mT
    for one, other in combinations(products, 2):
        assert float((one - other).norm() / one.norm()) > 0.3


def test_the_residual_frees_temperature_is_in_the_queries() -> None:
    model = residual_free_(network(), beta=2.0)
    for index, block in enumerate(model.blocks):
        query, key, _, _ = head_factors(block.attn)
        torch.testing.assert_close(query, key * 0.5 ** (index + 1), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(
            torch.linalg.svdvals(key), torch.full((3, 32), 0.9**0.5, dtype=torch.float64), rtol=1e-5, atol=0
        )


def test_mimetic_values_and_outputs_multiply_to_noise_less_the_identity() -> None:
    _, _, value, output = head_factors(mimetic_(network(), alpha_vo=0.4, beta_vo=0.4).blocks[0].attn)
    product = value @ output
    assert float(product.diagonal().mean()) == pytest.approx(-0.4, abs=0.01)
    torch.testing.assert_close(value.mT @ value, output @ output.mT, rtol=1e-4, atol=1e-5)  # balanced: diag(S)
