"""MaskCut (Wang et al., CutLER, CVPR 2023): objects one after the other by normalised cuts, at token resolution.

The rules are those of the public reference (facebookresearch/CutLER, ``maskcut_forward``) with one choice: an
eigenvector has no sign, and where a side with three corners holds its peak the reference's result depends on it. Here
the peak is positive. Eigenvectors come from :mod:`eval.tokencut.eigenvector`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from eval.tokencut.cut import Grid, as_float32, check_tokens, component_of
from eval.tokencut.eigenvector import TIE, CutVector, cut_vectors, off_mean
from eval.tokencut.graph import build_graphs, normalise, similarities
from eval.tokencut.tiles import Tiles

OVERLAP, LEAST_AREA = 0.5, 0.01  # IoU with the mask before above which, share of tokens up to which it is emptied
CORNERS = 3  # corners of the grid in a foreground that must be the background


@dataclass(frozen=True, eq=False)
class MaskCutRound:
    """One cut of an image of h x w tokens, N = h * w.

    Attributes
    ----------
    is_cut
        Whether the graph has one second eigenvector (:class:`eval.tokencut.cut.TokenCut`); without, there is no object.
    eigenvector
        float64 (N,), row-major over the grid, y'Dy = 1, positive on the side of the object; NaN without a cut.
    bipartition, component
        bool (h, w): that side, and its 4-connected part that holds the seed.
    mask
        bool (h, w): ``component``, or nothing where it overlaps the mask of the round before or is too small.
    exclusive
        bool (h, w): ``mask`` without all earlier ones: the object.
    seed
        Flat index of the token where the vector is largest, the lowest one of those tied; -1 without a cut.
    complete
        Whether every token was joined to every other; no cut, then.
    """

    is_cut: bool
    eigenvector: NDArray[np.float64]
    bipartition: NDArray[np.bool_]
    component: NDArray[np.bool_]
    mask: NDArray[np.bool_]
    exclusive: NDArray[np.bool_]
    seed: int
    complete: bool

    @property
    def degenerate(self) -> bool:
        """Whether there is no cut: the opposite of ``is_cut``, as result rows have it."""
        return not self.is_cut


# tau as in the commands of CutLER's README; the default of its maskcut.py is 0.2.
def maskcut(
    features: ArrayLike | Tensor, grid: Grid, tau: float = 0.15, eps: float = 1e-5, rounds: int = 3
) -> list[MaskCutRound]:
    """Cut the patch tokens (N, C) of one image ``rounds`` times; see :func:`cut_masks`.

    Raises ValueError for fewer than 3 tokens, a shape that does not fit the grid, or features that are not finite.
    """
    tensor = as_float32(features)
    check_tokens(tensor[None], grid)
    return cut_masks(similarities(normalise(tensor[None])), [grid], tau, eps, rounds)[0]


def cut_masks(
    similarity: Tensor | Tiles, grids: Sequence[Grid], tau: float, eps: float, rounds: int
) -> list[list[MaskCutRound]]:
    """Cut images of one number of tokens n by their similarities, float32 (B, n, n); a tensor is changed.

    Features of tokens that are in a mask become zero, so that nothing is similar to them, not even they to themselves.
    A round that masks nothing leaves the graph as it is: the next one has the same cut, and is not computed again.
    """
    cuts: list[list[MaskCutRound]] = [[] for _ in grids]
    vectors: dict[int, CutVector] = {}
    todo = list(range(len(grids)))
    for number in range(rounds):
        if todo:
            affinity = similarity if len(todo) == len(grids) else _of_images(similarity, todo)
            vectors |= dict(zip(todo, cut_vectors(build_graphs(affinity, tau, eps)), strict=True))
        todo = []
        for i, grid in enumerate(grids):
            cut = _round(vectors[i], grid, cuts[i])
            cuts[i].append(cut)
            if cut.mask.any() and number + 1 < rounds:
                todo.append(i)
                similarity = _without_tokens(similarity, i, cut.mask.ravel())
    return cuts


def _of_images(similarity: Tensor | Tiles, images: Sequence[int]) -> Tensor | Tiles:
    if isinstance(similarity, Tiles):
        return similarity.take(images)
    return similarity[torch.tensor(images, device=similarity.device)]


def _without_tokens(similarity: Tensor | Tiles, image: int, tokens: NDArray[np.bool_]) -> Tensor | Tiles:
    """Return similarities where those of ``tokens`` (n,) of an image are 0, even to themselves; a tensor is changed."""
    if isinstance(similarity, Tiles):
        return similarity.without(image, tokens)
    masked = torch.from_numpy(tokens).to(similarity.device, non_blocking=True)
    similarity[image].masked_fill_(masked[:, None] | masked[None], 0.0)
    return similarity


def _round(vector: CutVector, grid: Grid, before: Sequence[MaskCutRound]) -> MaskCutRound:
    """Apply the reference's rules to a cut vector: side of the object, seed, component, the two rejections.

    Tokens on the mean are background, whichever way the vector is turned. Without a cut there is no object.
    """
    y = vector.y
    if not vector.is_cut:
        nothing = np.zeros(grid, dtype=np.bool_)
        unknown = np.full_like(y, np.nan)
        return MaskCutRound(False, unknown, nothing, nothing, nothing, nothing, -1, vector.complete)
    if y[_first_of_the_largest(np.abs(y))] < 0:
        y = -y
    side = off_mean(y) > 0
    corners = side.reshape(grid)[[0, 0, -1, -1], [0, -1, 0, -1]]
    if corners.sum() >= CORNERS:
        y, side = -y, off_mean(y) < 0
    seed = _first_of_the_largest(y)
    component, _ = component_of(side.reshape(grid), seed)
    mask, earlier = component, np.zeros(grid, dtype=np.bool_)
    if before:
        last = before[-1].mask
        overlap = (mask & last).sum() > OVERLAP * (mask | last).sum()
        mask = np.zeros_like(mask) if overlap or mask.mean() <= LEAST_AREA else mask
        earlier = np.logical_or.reduce([cut.mask for cut in before])
    return MaskCutRound(
        is_cut=True,
        eigenvector=y,
        bipartition=side.reshape(grid),
        component=component,
        mask=mask,
        exclusive=mask & ~earlier,
        seed=seed,
        complete=vector.complete,
    )


def _first_of_the_largest(values: NDArray[np.float64]) -> int:
    return int(np.flatnonzero(values >= values.max() * (1 - TIE))[0])
