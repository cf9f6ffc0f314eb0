"""κ of a network's Jacobian by its weights, through the depth."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from dinoskip.diagnostics.jacobian import LIMIT
from dinoskip.diagnostics.network_jacobian import NORM_DIRECTIONS, network_jacobian
from dinoskip.errors import ConfigError
from dinoskip.init import skipless_
from dinoskip.models import Backbone, create_model
from dinoskip.runtime.randomness import torch_rng
from tests.helpers.small_network import randn

IMAGE = randn(1, 3, 32, 32)


def small(skip: bool = True, depth: int = 2, **options: Any) -> Backbone:
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16", skip=skip, depth=depth, img_size=32, embed_dim=12, num_heads=2, **options)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.3, generator=torch_rng(1, "weights"))
    return Backbone.from_model((model if skip else skipless_(model)).double())


def brute_force(backbone: Backbone, index: int, part: str) -> torch.Tensor:
    """J_l by torch.func.jacrev of the model as it is written, in float64: (n·C, p)."""
    model = copy.deepcopy(backbone.model)
    names = [n for n, p in model.named_parameters() if n.startswith(f"blocks.{index}.{part}.") and p.ndim == 2]
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            setattr(module, "fused_attn", False)  # noqa: B010 - timm declares it final

    class Blocks(nn.Module):
        def __init__(self, vit: VisionTransformer) -> None:
            super().__init__()
            self.vit = vit

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = self.vit._pos_embed(self.vit.patch_embed(x))
            for block in self.vit.blocks:
                tokens = block(tokens)
            return tokens

    def output(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(Blocks(model), {f"vit.{n}": w for n, w in weights.items()}, (IMAGE,))

    found = torch.func.jacrev(output)({name: model.get_parameter(name).detach() for name in names})
    count = 5 * 12
    return torch.cat([found[name].reshape(count, -1) for name in names], 1)


@pytest.mark.parametrize("skip", [True, False])
def test_exact_rows_are_those_of_the_formed_jacobian(skip: bool) -> None:
    backbone = small(skip)
    before = {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}
    found = network_jacobian(backbone, IMAGE)
    parts = []
    for index, row in enumerate(found.rows):
        attention, mlp = (brute_force(backbone, index, part) for part in ("attn", "mlp"))
        parts += [attention, mlp]
        values, of_mlp = (torch.linalg.svdvals(matrix) for matrix in (attention, mlp))
        cut = len(values) - NORM_DIRECTIONS * 5 - 1
        assert row.exact
        assert (row.block, row.largest_error) == (index + 1, 0)
        assert row.largest == pytest.approx(float(values[0]), rel=1e-9)
        assert row.smallest == pytest.approx(float(values[-1]), rel=1e-6, abs=1e-10 * row.largest)
        assert row.kappa_seen == pytest.approx(float(values[0] / values[cut]), rel=1e-6)
        assert row.kappa_mlp_seen == pytest.approx(float(of_mlp[0] / of_mlp[cut]), rel=1e-6)
    whole = torch.linalg.svdvals(torch.cat(parts, 1))
    assert found.kappa == pytest.approx(float(whole[0] / whole[-1]), rel=1e-6)
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.model.state_dict().items())
    assert all(parameter.requires_grad for parameter in backbone.model.parameters())


def test_norms_above_a_block_without_skips_take_two_directions_a_token() -> None:
    """So κ(J_l) without skips is the norms' (eps 1e-6 and rounding), and says nothing of attention."""
    rows = network_jacobian(small(skip=False), IMAGE).rows
    assert rows[0].kappa > 1e6 * rows[0].kappa_seen
    assert rows[0].kappa_seen < 1e7


def test_a_closed_form() -> None:
    """One block, identity attention (one token, W_V = I): f = x + W_O W_V x̂ = x + W_O x̂, J by (W_V, W_O).

    With one token the softmax is 1, queries and keys have no gradient, W_V and W_O the same: J = [I ⊗ x̂ᵀ W_Vᵀ,
    W_O ⊗ x̂ᵀ], so with W_V = I, W_O = c I all singular values are ‖x̂‖ √(1 + c²), and κ is 1.
    """
    torch.manual_seed(0)
    model = create_model(
        "vit_tiny_patch16", depth=1, img_size=16, embed_dim=8, num_heads=2, class_token=False, global_pool="avg"
    ).double()
    c, block = 0.5, model.blocks[0]
    with torch.no_grad():
        for parameter in block.mlp.parameters():
            parameter.zero_()
        block.attn.qkv.weight.copy_(torch.cat([torch.zeros(16, 8), torch.eye(8)]))
        block.attn.qkv.bias.zero_()
        block.attn.proj.weight.copy_(c * torch.eye(8))
        image = randn(1, 3, 16, 16)
        normed = block.norm1(model._pos_embed(model.patch_embed(image)))[0, 0]
    row = network_jacobian(Backbone.from_model(model), image).rows[0]
    assert row.largest == pytest.approx(float(normed.norm()) * (1 + c**2) ** 0.5, rel=1e-12)
    assert row.kappa == pytest.approx(1, rel=1e-9)


def test_lanczos_brackets_the_exact_values() -> None:
    backbone = small()
    exact, short = network_jacobian(backbone, IMAGE), network_jacobian(backbone, IMAGE, steps=12, exact_up_to=0)
    assert math.isnan(short.kappa)
    for whole, row in zip(exact.rows, short.rows, strict=True):
        assert not row.exact
        assert math.isnan(row.kappa_mlp)
        assert row.largest <= whole.largest * (1 + 1e-9)
        assert whole.largest - row.largest <= row.largest_error + 1e-9
        assert row.smallest >= whole.smallest * (1 - 1e-9)
        assert row.kappa <= whole.kappa * (1 + 1e-6)
    full = network_jacobian(backbone, IMAGE, steps=60, exact_up_to=0)
    assert full.rows[0].kappa == pytest.approx(exact.rows[0].kappa, rel=1e-4)


def test_a_collapsed_network_meets_the_limit() -> None:
    backbone = small(skip=False)
    with torch.no_grad():
        backbone.model.blocks[1].mlp.fc2.weight.zero_()  # the last block gives the same whatever came before
    rows = network_jacobian(backbone, IMAGE).rows
    assert rows[0].kappa == LIMIT


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="one image"):
        network_jacobian(small(), torch.cat([IMAGE, IMAGE]))
    levels = Backbone.from_model(nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1)), layers=["0"], image_size=32)
    with pytest.raises(ConfigError, match="no plain ViT"):
        network_jacobian(levels, IMAGE)
