"""Measures without labels (DSE, RankMe pooled and of patches, position bias), and which checkpoint they choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dinoskip.diagnostics.dse import clusters_of, dse, random_order
from dinoskip.diagnostics.position_bias import position_bias
from dinoskip.diagnostics.tokens import rankme
from dinoskip.models import Backbone
from dinoskip.runtime.randomness import torch_rng

OWN, SHARED = 3, 24  # clusters in an image, and in eight images
_AT_ONCE = 16  # images in a forward pass: bounds the memory; the clusters need all images' tokens, on the host


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
    """Measure every block's output after the last norm, on at least 8 normalised ``images`` (B, 3, S, S)."""
    blocks = list(range(1, backbone.depth + 1))
    plain, turned = (_features(backbone, view, blocks) for view in (images, turned_images(images)))
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
    tokens: dict[int, list[Tensor]] = {block: [] for block in blocks}
    for part in torch.split(images, _AT_ONCE):
        for block, layer in backbone.layers(part, blocks, norm="final").items():
            tokens[block].append(layer.tokens.double().cpu())
    return {block: torch.cat(parts) for block, parts in tokens.items()}


def turned_images(images: Tensor) -> Tensor:
    """Flip and turn each square image (B, 3, S, S) at random, by quarter turns; the draw depends on B alone."""
    rng = torch_rng(0, "turn", len(images))
    turns, flips = (torch.randint(high, (len(images),), generator=rng).tolist() for high in (4, 2))
    parts = zip(images, turns, flips, strict=True)
    return torch.stack([torch.rot90(image.flip(2) if flip else image, turn, (1, 2)) for image, turn, flip in parts])


WINDOW, MOST = 2, 3  # evaluations on each side that a peak is above, and how many peaks are chosen
F64 = NDArray[np.float64]


class DseCurve(NamedTuple):
    """``values`` (E,) of DSE over checkpoints with its λ; ``peaks`` (places), and the three highest, ``chosen``."""

    weight: float
    values: F64
    peaks: list[int]
    chosen: list[int]


def dse_curve(inter: Sequence[float], intra: Sequence[float], dim: Sequence[float]) -> DseCurve:
    """DSE of a run's checkpoints: λ makes the dimensions vary as much as the difference of the other two parts.

    arXiv:2510.17299, code @b75fd51, which chooses local maxima.
    """
    difference, rank = np.asarray(inter) - np.asarray(intra), np.asarray(dim, dtype=np.float64)
    spread = float(rank.std())
    weight = float(difference.std()) / spread if spread else 0.0
    values: F64 = difference + weight * rank
    places = peaks(values)
    return DseCurve(weight, values, places, sorted(places, key=lambda place: (-values[place], place))[:MOST])


def peaks(values: F64) -> list[int]:
    """Places that are the maximum of the two evaluations on each side, cut at the ends."""
    return [
        place
        for place, value in enumerate(values)
        if value == values[max(0, place - WINDOW) : place + WINDOW + 1].max()
    ]


CHOOSERS = {"dse": "DSE", "rankme": "RankMe", "rankme_patches": "RankMe of patches", "position_r2_turned": "position"}


def choices(rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[str, int]:
    """Return the epoch that each measure would choose, by the last block of ``rows``, which are by epoch.

    Untrained networks are left out. DSE chooses by its highest peak over the epochs with its own λ, ranks by the
    highest value, position bias by the lowest.
    """
    epochs = sorted(epoch for epoch in rows if epoch > 0)
    last = [max(rows[epoch], key=lambda row: row["block"]) for epoch in epochs]
    if len(epochs) < 2:
        return {}
    curve = dse_curve(*([row[name] for row in last] for name in ("inter", "intra", "dim")))
    chosen = {CHOOSERS["dse"]: epochs[curve.chosen[0]]}
    for name, sign in (("rankme", 1), ("rankme_patches", 1), ("position_r2_turned", -1)):
        values = [sign * row[name] for row in last]
        chosen[CHOOSERS[name]] = epochs[values.index(max(values))]
    return chosen
