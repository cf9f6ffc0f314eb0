"""The labels of this package: the depth and the surface normal of every pixel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dinoskip.data.label_values import LabelValues
from dinoskip.data.sets.labels import Count, Label
from dinoskip.data.sets.signatures import Finding
from dinoskip_dense.geometry import DepthDataset, NormalsDataset


def _metres(opened: DepthDataset) -> Count:
    counts = {"measured": 0, "not measured": 0}

    def read(index: int) -> None:
        metres = opened.depth(index)
        counts["measured"] += int((metres > 0).sum())
        counts["not measured"] += int((metres == 0).sum())

    return counts, read


def _directions(opened: NormalsDataset) -> Count:
    counts = {"known": 0, "not known": 0}

    def read(index: int) -> None:
        valid = opened.read(index).valid
        counts["known"] += int(valid.sum())
        counts["not known"] += int((~valid).sum())

    return counts, read


_UNITS = (1000.0, 5000.0, 256.0, 100.0)  # a metre: millimetres, TUM's and KITTI's maps, centimetres


def _is_plausible(quantiles: Sequence[float], per_metre: float, *, outdoor: bool) -> bool:
    """Whether percentiles 2, 50 and 99 are those of a room seen by a depth sensor, which 13 of 13 maps are.

    Of streets no map was at hand: the range of KITTI's scanner is 120 m, and it sees nothing nearer than a metre.
    """
    near, middle, far = (value / per_metre for value in quantiles)
    if outdoor:
        return 3 <= middle <= 60 and near >= 1 and far <= 120
    return 0.8 <= middle <= 6 and near >= 0.2 and far <= 12


def _scale(values: LabelValues) -> Finding | None:
    if not values.quantiles:
        whole = values.read > values.unreadable
        return Finding("depth-scale", "doubtful", "no pixel of depth is measured", "see the files") if whole else None
    plausible = partial(_is_plausible, values.quantiles, outdoor=values.outdoor)
    if plausible(values.per_metre):
        return None
    near, middle, far = (value / values.per_metre for value in values.quantiles)
    place = "street" if values.outdoor else "room"
    text = (
        f"at {values.per_metre:g} a metre half of the depths are below {middle:.2f} m and 96 % between {near:.2f} and "
        f"{far:.2f} m, which no {place} is"
    )
    other = [unit for unit in _UNITS if unit != values.per_metre and plausible(unit)]
    is_street = _is_plausible(values.quantiles, values.per_metre, outdoor=True)
    more = _STREET if is_street and not values.outdoor else ""
    if len(other) == 1 and not values.outdoor:
        return Finding("depth-scale", "refused", text, f"per_metre={other[0]:g} reads them as a room{more}")
    settings = " or ".join(f"per_metre={unit:g}" for unit in other) or "per_metre=..."
    return Finding("depth-scale", "doubtful", text, f"say the unit: {settings}{more}")


_STREET = ", or outdoor=true if these are streets"

_HELD_OUT = (("train", "test"), ("train", "val"))
DEPTH = Label("depth", "depth", "depth", "open_depth", _metres, seen_by=_HELD_OUT, signatures=(_scale,), order=10)
NORMALS = Label("normals", "surface normals", "normals", "open_normals", _directions, seen_by=_HELD_OUT, order=20)
