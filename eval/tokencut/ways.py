"""One image cut from several features, treated in several ways, at several tau: how much depends on the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import ArrayLike

from eval.tokencut.cut import Grid, TokenCut, as_float32, check_tokens, cut
from eval.tokencut.graph import centred, mean_cosine, normalise, similarities


@dataclass(frozen=True, eq=False)
class CutWay:
    """One cut: of which features, with the image's mean token subtracted or not, at which tau.

    ``positions`` is ``keep`` or how position was taken out. ``cosine`` is the mean cosine of the tokens that the graph
    is made of.
    """

    facet: str
    centred: bool
    positions: str
    tau: float
    cut: TokenCut
    cosine: float


def cut_every_way(
    features: Mapping[str, ArrayLike | torch.Tensor],
    grid: Grid,
    taus: Sequence[float],
    eps: float = 1e-5,
    without: Mapping[str, Mapping[str, ArrayLike | torch.Tensor]] | None = None,
) -> list[CutWay]:
    """Cut the tokens (N, C) of one image by facet, as they are and centred, at every tau; N = rows * columns of grid.

    ``without`` has the same tokens without position, by way of taking it out and facet; they are cut as they are.
    Similarities are computed once for all tau. Raises ValueError for features that do not fit the grid or are not
    finite.
    """
    ways = []
    for facet, tokens in features.items():
        batch = as_float32(tokens)[None]
        check_tokens(batch, grid)
        treated = [(False, "keep", batch), (True, "keep", centred(batch))]
        treated += [(False, name, as_float32(by_facet[facet])[None]) for name, by_facet in (without or {}).items()]
        for centre, positions, each in treated:
            unit = normalise(each)
            (cosine,), similarity = mean_cosine(unit), similarities(unit)
            cuts = [cut(similarity, [grid], tau, eps)[0] for tau in taus]
            ways += [
                CutWay(facet, centre, positions, tau, found, cosine) for tau, found in zip(taus, cuts, strict=True)
            ]
    return ways


def agreement(ways: Sequence[CutWay]) -> float:
    """Mean IoU of the objects of all pairs of ways that cut, 1 where all cut alike.

    Raises ValueError for fewer than two of those.
    """
    masks = [way.cut.component for way in ways if way.cut.is_cut]
    if len(masks) < 2:
        raise ValueError("agreement is of two ways or more")
    return float(np.mean([(a & b).sum() / (a | b).sum() for a, b in combinations(masks, 2)]))
