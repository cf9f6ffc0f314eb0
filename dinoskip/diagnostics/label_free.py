"""Measures that need no labels, of every block of a network: DSE, RankMe pooled and of patches, position bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dinoskip.diagnostics.dse import clusters_of, dse, random_order
from dinoskip.diagnostics.position_bias import position_bias
from dinoskip.diagnostics.tokens import rankme
from dinoskip.models import Backbone
from dinoskip.randomness import torch_rng

OWN, SHARED = 3, 24  # clusters in an image, and in eight images
_AT_ONCE = 16


@dataclass(frozen=True)
class LabelFreeRow:
    """One block. ``dse`` is the released code's number with λ = 1; ``intra`` is the mean of its two radii.

    ``rankme`` is of the images' mean patches, ``rankme_patches`` the mean of the ranks of one random patch an image.
    ``position_r2`` is as it is, ``position_r2_turned`` of images under random flips and quarter turns.
    """

    block: int
    dse: float
    inter: float
    intra: float
    dim: float
    paper_inter: float
    paper_intra: float
    rankme: float
    rankme_patches: float
    position_r2: float
    position_r2_turned: float
    position_share: float


@torch.no_grad()
def label_free(backbone: Backbone, images: Tensor) -> list[LabelFreeRow]:
    """Of all blocks' outputs after the last norm; ``images`` (B, 3, S, S), normalised, at least 8 of them."""
    blocks = list(range(1, backbone.depth + 1))
    plain, turned = (_features(backbone, one, blocks) for one in (images, turned_images(images)))
    side = images.shape[-1] // backbone.patch_size
    order = random_order(len(images), side**2)
    rows = []
    for block in blocks:
        x = plain[block]
        parts = dse(x, clusters_of(x, OWN, SHARED), order)
        place, control = position_bias(x, (side, side)), position_bias(turned[block], (side, side))
        rows.append(
            LabelFreeRow(
                block,
                parts.dse,
                parts.inter,
                (parts.intra_image + parts.intra_batch) / 2,
                parts.dim,
                parts.paper_inter,
                parts.paper_intra,
                rankme(x.mean(1)),
                parts.paper_dim,
                place.r2,
                control.r2,
                place.position_share_corrected,
            )
        )
    return rows


def _features(backbone: Backbone, images: Tensor, blocks: Sequence[int]) -> dict[int, Tensor]:
    found: dict[int, list[Tensor]] = {block: [] for block in blocks}
    for part in torch.split(images, _AT_ONCE):
        for block, layer in backbone.layers(part, blocks, norm="final").items():
            found[block].append(layer.tokens.double().cpu())
    return {block: torch.cat(parts) for block, parts in found.items()}


def turned_images(images: Tensor) -> Tensor:
    """The same square images (B, 3, S, S), each under a random flip and quarter turn, drawn once and for all."""
    rng = torch_rng(0, "turn", len(images))
    turns, flips = (torch.randint(high, (len(images),), generator=rng).tolist() for high in (4, 2))
    parts = zip(images, turns, flips, strict=True)
    return torch.stack([torch.rot90(one.flip(2) if flip else one, turn, (1, 2)) for one, turn, flip in parts])
