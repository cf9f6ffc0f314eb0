"""One image cut from several features, centred or not, at several tau: how much the answer depends on the choice."""

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

    ``cosine`` is the mean cosine of the tokens that the graph is made of.
    """

    facet: str
    centred: bool
    tau: float
    cut: TokenCut
    cosine: float


def cut_every_way(
    features: Mapping[str, ArrayLike | torch.Tensor], grid: Grid, taus: Sequence[float], eps: float = 1e-5
) -> list[CutWay]:
    """Cut the tokens (N, C) of one image by facet, as they are and centred, at every tau; N = rows * columns of grid.

    Similarities are computed once for all tau. Raises ValueError for features that do not fit the grid or are not
    finite.
    """
    ways = []
    for facet, tokens in features.items():
        batch = as_float32(tokens)[None]
        check_tokens(batch, grid)
        for centre in (False, True):
            unit = normalise(centred(batch) if centre else batch)
            (cosine,), similarity = mean_cosine(unit), similarities(unit)
            ways += [CutWay(facet, centre, tau, cut(similarity, [grid], tau, eps)[0], cosine) for tau in taus]
    return ways


def agreement(ways: Sequence[CutWay]) -> float:
    """Mean IoU of the objects of all pairs of ways, 1 where all cut alike. Raises ValueError for fewer than two."""
    if len(ways) < 2:
        raise ValueError("agreement is of two ways or more")
    masks = [way.cut.component for way in ways]
    return float(np.mean([(a & b).sum() / (a | b).sum() for a, b in combinations(masks, 2)]))
