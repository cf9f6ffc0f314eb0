"""Weighted skip connections in timm's families of pre-norm blocks: ViT, Swin, CaiT, XCiT, PVT v2; and in ConvMixer.

x ← a x + attention(x), x ← b x + MLP(x): the blocks are timm's own, of a class whose ``forward`` is timm's but for the
weights. XCiT's local patch interaction has the MLP's weight, ConvMixer's one skip (around the convolution that mixes
places) the attention's. The blocks of class attention, by which CaiT and XCiT read out, keep theirs. LayerScale starts
at 1 where a weight is 0: a smaller gain would erase the signal.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.models.cait import LayerScaleBlock
from timm.models.convmixer import Residual
from timm.models.pvt_v2 import Block as PvtBlock
from timm.models.swin_transformer import SwinTransformerBlock
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.xcit import XCABlock
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.models.vit import Block, WeightedSkips, joined


class WeightedSwin(WeightedSkips, SwinTransformerBlock):
    """Swin's block; tokens (B, H, W, C)."""

    def forward(self, x: Tensor) -> Tensor:
        attention, mlp = self.weights
        x = joined(x, self.drop_path1(self._attn(self.norm1(x))), attention)  # type: ignore[no-untyped-call]
        tokens = x.flatten(1, 2)
        return joined(tokens, self.drop_path2(self.mlp(self.norm2(tokens))), mlp).view_as(x)


class WeightedCait(WeightedSkips, LayerScaleBlock):
    """CaiT's block over patches: attention and MLP, each behind LayerScale."""

    def forward(self, x: Tensor) -> Tensor:
        attention, mlp = self.weights
        x = joined(x, self.drop_path(self.gamma_1 * self.attn(self.norm1(x))), attention)
        return joined(x, self.drop_path(self.gamma_2 * self.mlp(self.norm2(x))), mlp)


class WeightedXcit(WeightedSkips, XCABlock):
    """XCiT's block: cross-covariance attention, local patch interaction, MLP."""

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        attention, mlp = self.weights
        x = joined(x, self.drop_path1(self.gamma1 * self.attn(self.norm1(x))), attention)
        x = joined(x, self.drop_path3(self.gamma3 * self.local_mp(self.norm3(x), H, W)), mlp)
        return joined(x, self.drop_path2(self.gamma2 * self.mlp(self.norm2(x))), mlp)


class WeightedPvt(WeightedSkips, PvtBlock):
    """PVT v2's block: attention over reduced keys, MLP with a convolution."""

    def forward(self, x: Tensor, feat_size: list[int]) -> Tensor:
        attention, mlp = self.weights
        x = joined(x, self.drop_path1(self.attn(self.norm1(x), feat_size)), attention)
        return joined(x, self.drop_path2(self.mlp(self.norm2(x), feat_size)), mlp)


class WeightedResidual(WeightedSkips, Residual):
    """ConvMixer's skip around the convolution of a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return joined(x, self.fn(x), self.weights[0])


_CLASSES: dict[type, type] = {
    TimmBlock: Block,
    SwinTransformerBlock: WeightedSwin,
    LayerScaleBlock: WeightedCait,
    XCABlock: WeightedXcit,
    PvtBlock: WeightedPvt,
    Residual: WeightedResidual,
}


def skip_blocks(model: nn.Module) -> list[Any]:
    """The modules of a network that have skips of a weight of their own, in order; timm's become such, in place.

    Raises :class:`ConfigError` for a network that has none and whose blocks are of no known family.
    """
    blocks: list[Any] = [module for module in model.modules() if hasattr(module, "skip_weights")]
    if blocks:
        return blocks
    blocks = [module for module in model.modules() if type(module) in _CLASSES]
    if not blocks:
        known = "ViT, Swin, CaiT, XCiT, PVT v2, ConvMixer"
        raise ConfigError(f"skips of a {type(model).__name__}: its blocks are not known", f"those are: {known}")
    for block in blocks:
        block.__class__ = _CLASSES[type(block)]
        block.register_buffer("changing", None, persistent=False)
        block.skip_weights = (1.0, 1.0)
    return blocks


@torch.no_grad()
def start_gains_(block: nn.Module, attention: float, mlp: float) -> None:
    """LayerScale of CaiT and XCiT starts at 1 in branches whose skip has the weight 0, in place."""
    for name, gain in block.named_parameters(recurse=False):
        if name.startswith("gamma") and (attention if name in ("gamma_1", "gamma1") else mlp) == 0:
            gain.fill_(1.0)
