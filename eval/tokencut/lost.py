"""LOST (Simeoni et al., BMVC 2021): one object box an image, grown from the patch that is like the fewest others.

The rules are those of the public reference (valeoai/LOST), docs/tokencut.md lists them. Only signs and sums of
correlations count, so the same normalised similarities serve as for TokenCut, with the lengths of the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from eval.tokencut.cut import NO_BOX, Box, Grid, as_float32, check_tokens, component_of
from eval.tokencut.graph import lengths, normalise, similarities
from eval.tokencut.tiles import Tiles


@dataclass(frozen=True, eq=False)
class Lost:
    """The object of one image, h x w tokens, N = h * w.

    Attributes
    ----------
    mask
        bool (h, w): the tokens whose summed correlation with the grown seed is positive.
    component
        bool (h, w): the 4-connected part of ``mask`` that holds the seed; empty where it holds no seed.
    seed
        Flat index of the token with the fewest positive correlations, the lowest one of those tied.
    box
        x1 y1 x2 y2 of ``component`` in cells, end exclusive; -1 -1 -1 -1 without an object.
    tied
        int64: all tokens with as few, ``seed`` included; which of them the reference takes is its sort's choice.
    degenerate
        Whether the seed is a zero token, like nothing, itself included: there is no object. The authors' code stops.
    """

    mask: NDArray[np.bool_]
    component: NDArray[np.bool_]
    seed: int
    box: Box
    tied: NDArray[np.int64]
    degenerate: bool

    @property
    def ambiguous(self) -> bool:
        """Whether another of the tied seeds lies outside ``component``, that is, may give another box."""
        return not self.degenerate and not bool(self.component.ravel()[self.tied].all())


def lost(features: ArrayLike | Tensor, grid: Grid, k: int = 100) -> Lost:
    """Box the object of one image.

    ``features`` are (N, C), NumPy or torch (a tensor is worked on where it lies), cast to float32: patch tokens only,
    row-major over ``grid`` (rows, columns), not normalised. The seed is grown over the ``k`` tokens with the fewest
    positive correlations. Raises ValueError for a shape that does not fit the grid or non-finite features.
    """
    batch = as_float32(features)[None]
    check_tokens(batch, grid, least=1)
    length = lengths(batch)
    return grow(similarities(normalise(batch, length)), length, [grid], k)[0]


def grow(similarity: Tensor | Tiles, length: Tensor, grids: Sequence[Grid], k: int) -> list[Lost]:
    """Box the objects of images with similarities (B, N, N) and feature lengths (B, N), each with its own grid.

    Raises ValueError for lengths that are not finite.
    """
    if isinstance(similarity, Tiles):
        counts = torch.stack([similarity.positive(i) for i in range(len(similarity))])
        degree = counts - (similarity.unit.square().sum(2) > 0).long()
        order = degree.argsort(stable=True, dim=1)[:, :k]
        rows = torch.stack([similarity.rows(i, of_image) for i, of_image in enumerate(order)]).double()
    else:
        positive = similarity > 0
        degree = positive.sum(2) - positive.diagonal(dim1=1, dim2=2).long()
        order = degree.argsort(stable=True, dim=1)[:, :k]
        images = torch.arange(len(similarity), device=similarity.device)[:, None]
        rows = similarity[images, order].double()  # (B, k, N)
    like_seed = rows[:, 0].gather(1, order) > 0
    weights = like_seed * length.gather(1, order).double()
    positive_sums = torch.bmm(weights[:, None], rows)[:, 0] > 0
    ties = degree == degree.gather(1, order[:, :1])
    masks, tied, finite = torch.stack((positive_sums, ties, length.isfinite())).cpu().numpy()
    if not finite.all():
        raise ValueError("features must be finite")
    return [
        _lost(mask.reshape(grid), np.flatnonzero(ties)) for mask, ties, grid in zip(masks, tied, grids, strict=True)
    ]


def _lost(mask: NDArray[np.bool_], tied: NDArray[np.intp]) -> Lost:
    seed = int(tied[0])
    if not mask.flat[seed]:
        return Lost(mask, np.zeros_like(mask), seed, NO_BOX, tied.astype(np.int64), True)
    component, box = component_of(mask, seed)
    return Lost(mask, component, seed, box, tied.astype(np.int64), False)
