"""Forward passes of a ViT of which some patches are masked (iBOT) or left out (MAE)."""

from __future__ import annotations

from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, cat, where

from dinoskip.models.vit import embed


def masked_tokens(model: VisionTransformer, images: Tensor, masks: Tensor | None, mask_token: Tensor | None) -> Tensor:
    """All tokens (B, 1 + N, C) after the last norm.

    Where ``masks`` (B, N) is True, ``mask_token`` (1, C) takes the place of an embedded patch, before its position is
    added; None: no patch is masked.
    """
    patches: Tensor = model.patch_embed(images)  # (B, h, w, C)
    if masks is not None and mask_token is not None:
        patches = where(masks.view(*patches.shape[:-1], 1), mask_token.to(patches.dtype), patches)
    tokens: Tensor = model.norm(model.blocks(model.norm_pre(model.patch_drop(model._pos_embed(patches)))))
    return tokens


def visible_tokens(model: VisionTransformer, images: Tensor, kept: Tensor) -> Tensor:
    """Tokens (B, 1 + K, C) after the last norm, CLS first, of the patches ``kept`` int64 (B, K) alone; no registers.

    Their positions are those in the whole image; the blocks never see the others.
    """
    return _without_registers(model, model.norm(model.blocks(_visible(model, images, kept))))


def visible_blocks(model: VisionTransformer, images: Tensor, kept: Tensor, every: int) -> list[Tensor]:
    """Return :func:`visible_tokens` of blocks ``every``, 2 ``every``, ..., without a norm."""
    tokens, kept_tokens = _visible(model, images, kept), []
    for number, block in enumerate(model.blocks, 1):
        tokens = block(tokens)
        if number % every == 0:
            kept_tokens.append(_without_registers(model, tokens))
    return kept_tokens


def _without_registers(model: VisionTransformer, tokens: Tensor) -> Tensor:
    prefix = model.num_prefix_tokens
    return tokens if prefix == 1 else cat((tokens[:, :1], tokens[:, prefix:]), dim=1)


def _visible(model: VisionTransformer, images: Tensor, kept: Tensor) -> Tensor:
    tokens, prefix = embed(model, images), model.num_prefix_tokens
    chosen = tokens.gather(1, (kept + prefix)[..., None].expand(-1, -1, tokens.shape[2]))
    return cat((tokens[:, :prefix], chosen), dim=1)
