"""Which checkpoint of a run measures without labels would choose (arXiv:2510.17299, code @b75fd51: local maxima)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOW, MOST = 2, 3  # evaluations on each side that a peak is above, and how many peaks are chosen
F64 = NDArray[np.float64]


class DseCurve(NamedTuple):
    """``values`` (E,) of DSE over checkpoints with its λ; ``peaks`` (places), and the three highest, ``chosen``."""

    weight: float
    values: F64
    peaks: list[int]
    chosen: list[int]


def dse_curve(inter: Sequence[float], intra: Sequence[float], dim: Sequence[float]) -> DseCurve:
    """DSE of a run's checkpoints: λ makes the dimensions vary as much as the difference of the other two parts."""
    difference, rank = np.asarray(inter) - np.asarray(intra), np.asarray(dim, dtype=np.float64)
    spread = float(rank.std())
    weight = float(difference.std()) / spread if spread else 0.0
    values: F64 = difference + weight * rank
    found = peaks(values)
    return DseCurve(weight, values, found, sorted(found, key=lambda place: (-values[place], place))[:MOST])


def peaks(values: F64) -> list[int]:
    """Places that are the maximum of the two evaluations on each side, cut at the ends."""
    return [
        place
        for place, value in enumerate(values)
        if value == values[max(0, place - WINDOW) : place + WINDOW + 1].max()
    ]


CHOOSERS = {"dse": "DSE", "rankme": "RankMe", "rankme_patches": "RankMe of patches", "position_r2_turned": "position"}


def choices(rows: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[str, int]:
    """Which epoch each measure would have chosen, by the last block of ``rows`` by epoch; untrained networks left out.

    DSE by its highest peak over the epochs with its own λ, ranks by the highest, position bias by the lowest.
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
