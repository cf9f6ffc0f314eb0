"""Skip and skipless ViTs: timm's VisionTransformer with a block whose two skips can be weighted or left out.

Shapes: images (B, 3, H, W), tokens (B, N, C) with the CLS token first and the patches in raster order.
The skipless block is ``x = attn(norm1(x)); x = mlp(norm2(x))`` (Cutting the Skip, sec. 3). Parameters are timm's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from timm.layers import LayerScale
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.errors import ConfigError
from dinoskip.runtime.precision import at_least_float32
from dinoskip.settings.vit_config import PositionResize, Skip


class WeightedSkips(nn.Module):
    """Base class of blocks with weighted skips: ``skip_weights`` are the attention's and the MLP's; ``changing`` (2,)
    holds them, too, where they change in training.
    """

    skip_weights: tuple[float, float]
    changing: Tensor | None

    @property
    def weights(self) -> Sequence[float | Tensor]:
        """Present weights of attention's and the MLP's skip."""
        return self.skip_weights if self.changing is None else self.changing.unbind()


class Block(WeightedSkips, TimmBlock):
    """timm's pre-norm block in which the attention's and the MLP's skip connection can each be weighted or left out.

    With both skips it computes exactly what timm's block does. Drop path needs a skip to fall back on, so it exists
    only where one is kept. LayerScale without a skip shrinks the tokens below LayerNorm's epsilon and is refused.
    """

    def __init__(self, *args: Any, skip: Skip = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("changing", None, persistent=False)
        self.skip_weights = weigh_(
            self, (float(skip is True or skip == "attention"), float(skip is True or skip == "mlp"))
        )

    def forward(self, x: Tensor, **masks: Any) -> Tensor:  # type: ignore[override]
        """Map tokens (B, N, C) to tokens (B, N, C); ``masks`` go to the attention unchanged."""
        attention, mlp = self.weights
        x = joined(x, self.drop_path1(self.ls1(self.attn(self.norm1(x), **masks))), attention)
        return joined(x, self.drop_path2(self.ls2(self.mlp(self.norm2(x)))), mlp)


def weigh_(block: nn.Module, weights: tuple[float, float]) -> tuple[float, float]:
    """Fit a block for skips of these weights, which are returned: no drop path without a skip to fall back on.

    Raises :class:`ConfigError` for a weight of 0 and LayerScale.
    """
    scale = getattr(block, "ls1", None)
    if isinstance(scale, LayerScale) and 0 in weights:
        raise ConfigError(
            f"init_values={scale.init_values}: LayerScale without a skip connection erases the signal",
            "leave init_values out for skipless models",
        )
    attention, mlp = weights
    falls_back = {"drop_path1": attention, "drop_path2": mlp, "drop_path3": mlp, "drop_path": min(weights)}
    for name, weight in falls_back.items():
        if weight == 0 and not isinstance(getattr(block, name, nn.Identity()), nn.Identity):
            setattr(block, name, nn.Identity())  # where it is one already compiled code stays
    return weights


def joined(x: Tensor, branch: Tensor, weight: float | Tensor) -> Tensor:
    """weight · x + branch; where the weight is 0 the branch itself, whatever x holds."""
    if isinstance(weight, Tensor):
        return torch.where(weight == 0, branch, weight * x + branch)
    return torch.add(branch, x, alpha=weight) if weight else branch


class Vit(VisionTransformer):
    """timm's VisionTransformer with a choice of how positions are resized for other image sizes than its own.

    ``position_resize``: "timm" (antialiased bicubic) or "dino" (:func:`dino_positions`), which needs one CLS token and
    an embedding that covers it and the patches alone; with registers, the patches.
    Names and shapes of parameters are timm's.
    """

    def __init__(self, *args: Any, position_resize: PositionResize = "timm", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if position_resize == "dino" and not can_resize_as_dino(self):
            raise ConfigError("position_resize=dino needs positions of one CLS token and the patches alone")
        self.position_resize = position_resize

    def _pos_embed(self, x: Tensor) -> Tensor:
        return add_positions(self, x, self.position_resize)


def can_resize_as_dino(model: VisionTransformer) -> bool:
    """Whether a ViT's positions are of a CLS token and the patches (with registers, of these) alone, and sizes vary."""
    alone = model.num_prefix_tokens == 1 and not model.no_embed_class
    plain = model.cls_token is not None and (alone or (model.no_embed_class and model.reg_token is not None))
    return plain and model.pos_embed is not None and bool(model.dynamic_img_size)


def can_resize(model: nn.Module) -> bool:
    """Whether positions of a network can be resized by any of our rules."""
    return isinstance(model, VisionTransformer) and can_resize_as_dino(model)


def add_positions(model: VisionTransformer, patches: Tensor, position_resize: str) -> Tensor:
    """Tokens (B, N, C), prefix tokens first, from embedded patches (B, h, w, C) and a ViT's positions for h × w."""
    rule = bicubic_positions if position_resize == "bicubic" else dino_positions
    resize = partial(rule, stored=tuple(model.patch_embed.grid_size))
    if position_resize == "timm":
        resized: Tensor = VisionTransformer._pos_embed(model, patches)
        return resized
    cls_token: Tensor = model.cls_token  # type: ignore[assignment]
    if model.no_embed_class:  # prefix tokens have no position
        covered = torch.cat((torch.zeros_like(cls_token), model.pos_embed), dim=1)  # type: ignore[arg-type]
        placed = patches.flatten(1, 2) + resize(covered, tuple(patches.shape[1:3]))[:, 1:]  # type: ignore[arg-type]
        prefix = torch.cat((cls_token, model.reg_token), dim=1)  # type: ignore[arg-type]
        with_prefix: Tensor = model.pos_drop(torch.cat((prefix.expand(len(patches), -1, -1), placed), dim=1))
        return with_prefix
    tokens = torch.cat((cls_token.expand(patches.shape[0], -1, -1), patches.flatten(1, 2)), dim=1)
    dropped: Tensor = model.pos_drop(tokens + resize(model.pos_embed, tuple(patches.shape[1:3])))  # type: ignore[arg-type]
    return dropped


def embed(model: VisionTransformer, images: Tensor) -> Tensor:
    """Tokens (B, N, C) as the first block of any timm ViT receives them, from images (B, 3, H, W)."""
    tokens: Tensor = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
    return tokens


def dino_positions(positions: Tensor, grid: tuple[int, int], stored: tuple[int, int] | None = None) -> Tensor:
    """Position embedding (1, 1 + N, C) for a grid (h, w), interpolated as facebookresearch/dino does: (1, 1 + h·w, C).

    Bicubic without antialiasing, by the scale factors (h + 0.1)/√N and (w + 0.1)/√N, which shifts every sample a
    little against resizing to (h, w); the stored embedding itself where the grid is the trained one. Computed in
    float32, of float64 in float64. ``stored`` are rows and columns of the N patches, None for a square; theirs is a
    square always, so of other grids each side has a factor of its own. Source: ``interpolate_pos_encoding`` of
    vision_transformer.py; DINOv2 without registers is the same.
    """
    rows, columns = stored or _square(positions)
    # 0.1 there keeps the size, of which torch takes the floor, from being one too small by rounding.
    return _resized(positions, grid, stored, scale_factor=((grid[0] + 0.1) / rows, (grid[1] + 0.1) / columns))


def bicubic_positions(positions: Tensor, grid: tuple[int, int], stored: tuple[int, int] | None = None) -> Tensor:
    """Resize positions to (h, w) by bicubic interpolation without antialiasing, as MAE and transformers do."""
    return _resized(positions, grid, stored, size=grid)


def _square(positions: Tensor) -> tuple[int, int]:
    side = round((positions.shape[1] - 1) ** 0.5)
    return side, side


def _resized(positions: Tensor, grid: tuple[int, int], stored: tuple[int, int] | None, **to: Any) -> Tensor:
    rows, columns = stored or _square(positions)
    if grid == (rows, columns):
        return positions
    patches = at_least_float32(positions[:, 1:]).reshape(1, rows, columns, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(patches, mode="bicubic", **to)
    flat = resized.permute(0, 2, 3, 1).flatten(1, 2).to(positions.dtype)
    return torch.cat((positions[:, :1], flat), dim=1)
