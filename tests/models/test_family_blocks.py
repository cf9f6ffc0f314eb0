"""Skips of timm's families: with weight 1 timm's network bit for bit, with others what the formula says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from timm.models.convmixer import ConvMixer
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.models.family_blocks import skip_blocks, start_gains_
from dinoskip.models.skip_weight import let_skips_change_, weigh_skips_

SWIN = {"embed_dim": 16, "depths": (2, 2), "num_heads": (1, 2), "img_size": 64, "window_size": 4}
SMALL: dict[str, tuple[str, dict[str, object], int]] = {
    "ViT": ("vit_tiny_patch16_224", {"depth": 2, "img_size": 64}, 2),
    "Swin": ("swin_tiny_patch4_window7_224", SWIN, 4),
    "CaiT": ("cait_xxs24_224", {"depth": 2, "embed_dim": 32, "num_heads": 2, "img_size": 64}, 2),
    "XCiT": ("xcit_nano_12_p16_224", {"depth": 2, "embed_dim": 32, "num_heads": 2, "img_size": 64}, 2),
    "PVT v2": ("pvt_v2_b0", {"depths": (1, 1, 1, 1), "embed_dims": (8, 8, 16, 16), "num_heads": (1, 1, 2, 2)}, 4),
    "ConvMixer": ("convmixer", {"dim": 16, "depth": 3, "patch_size": 8}, 3),
}


def network(family: str) -> nn.Module:
    name, options, _ = SMALL[family]
    torch.manual_seed(0)
    made = (
        ConvMixer(num_classes=0, **options)
        if name == "convmixer"
        else timm.create_model(name, num_classes=0, **options)
    )
    return made.double().eval()


def images() -> Tensor:
    return torch.randn(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("family", SMALL)
def test_with_weight_one_it_is_timms_bit_for_bit(family: str) -> None:
    plain, weighted = network(family), network(family)
    names = list(plain.state_dict())
    assert len(skip_blocks(weighted)) == SMALL[family][2]
    weigh_skips_(weighted, [(1.0, 1.0)] * SMALL[family][2])
    assert list(weighted.state_dict()) == names
    assert torch.equal(weighted(images()), plain(images()))


def _formula(block: Any, weights: tuple[float, float], x: Tensor, *more: Any) -> Tensor:
    """Return the output of a family's block, written out: each branch is added to its weight times its input."""
    attention, mlp = weights
    if hasattr(block, "fn"):
        return attention * x + block.fn(x)  # type: ignore[no-any-return]
    if hasattr(block, "_attn"):
        x = attention * x + block._attn(block.norm1(x))
        return mlp * x + block.mlp(block.norm2(x.flatten(1, 2))).view_as(x)  # type: ignore[no-any-return]
    gains = [
        getattr(block, f"gamma{dash}{i}", 1.0)
        for i in (1, 2)
        for dash in ("_", "")
        if hasattr(block, f"gamma{dash}{i}")
    ]
    first, last = gains or (1.0, 1.0)
    feat = () if hasattr(block, "local_mp") else more
    x = attention * x + first * block.attn(block.norm1(x), *feat)
    if hasattr(block, "local_mp"):
        x = mlp * x + block.gamma3 * block.local_mp(block.norm3(x), *more)
    return mlp * x + last * block.mlp(block.norm2(x), *feat)  # type: ignore[no-any-return]


@torch.no_grad()
@pytest.mark.parametrize("weights", [(0.0, 0.0), (0.25, 0.75), (1.0, 0.5), (0.0, 1.0)])
@pytest.mark.parametrize("family", SMALL)
def test_a_block_is_its_branches_each_beside_its_own_weight_of_the_skip(
    family: str, weights: tuple[float, float]
) -> None:
    model = network(family)
    blocks = skip_blocks(model)
    weigh_skips_(model, [weights] * len(blocks))
    seen: dict[nn.Module, tuple[tuple[object, ...], Tensor]] = {}
    for block in blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.update({module: (inputs, output)}))
    model(images())
    for inputs, output, block in ((*seen[block], block) for block in blocks):
        expected = _formula(block, weights, *inputs)  # type: ignore[arg-type]
        torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("family", SMALL)
def test_weights_lie_between_and_change_in_place(family: str) -> None:
    """A block is linear in each weight; the tensor that compiled code reads gives the same as the numbers."""
    outputs: list[Tensor] = []
    for weight in (0.0, 0.5, 1.0):
        model = network(family)
        blocks = skip_blocks(model)
        first: Callable[..., Tensor] = blocks[0]
        kept: list[tuple[object, ...]] = []
        handle = blocks[0].register_forward_pre_hook(lambda module, inputs, kept=kept: kept.append(inputs))
        model(images())
        handle.remove()
        weigh_skips_(model, [(1.0, weight)] * len(blocks))
        by_number = first(*kept[0])
        let_skips_change_(model)
        weigh_skips_(model, [(weight, 1.0)] * len(blocks))
        assert blocks[0].changing.tolist() == [weight, 1.0]
        other = first(*kept[0])
        weigh_skips_(model, [(1.0, weight)] * len(blocks))
        torch.testing.assert_close(first(*kept[0]), by_number, rtol=0, atol=0)
        outputs.append(other)
    if family == "ConvMixer":
        torch.testing.assert_close(outputs[1], (outputs[0] + outputs[2]) / 2)
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[1], outputs[2])


def test_gains_start_at_one_where_the_skip_is_missing() -> None:
    block = skip_blocks(network("CaiT"))[0]
    start_gains_(block, 0.0, 1.0)
    assert block.gamma_1.eq(1).all()
    assert not block.gamma_2.eq(1).any()


def test_gains_of_xcit_follow_the_skip_of_their_own_branch() -> None:
    """Gains of local interaction and MLP start at 1 without the MLP's skip, that of attention without its own."""
    for weights, ones in (((0.0, 1.0), [True, False, False]), ((1.0, 0.0), [False, True, True])):
        block = skip_blocks(network("XCiT"))[0]
        gains = [getattr(block, f"gamma{i}") for i in (1, 2, 3)]
        for gain in gains:
            gain.data.fill_(0.1)
        start_gains_(block, *weights)
        assert [bool(gain.eq(1).all()) for gain in gains] == ones


def test_blocks_of_other_networks_are_refused() -> None:
    with pytest.raises(ConfigError, match="skips of a ResNet: its blocks are not known"):
        skip_blocks(timm.create_model("resnet18"))
