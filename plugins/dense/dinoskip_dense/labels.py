"""The labels of this package: the depth and the surface normal of every pixel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dinoskip.data.label_values import LabelValues
from dinoskip.data.sets.labels import Count, Label
from dinoskip.data.sets.signatures import Finding, turned, unlike_photographs
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


# Of a metre: millimetres, TUM's and KITTI's maps, centimetres, inches (1 / .0254).
_MILLIMETRES, _KITTI = 1000.0, 256.0
_UNITS = (_MILLIMETRES, 5000.0, _KITTI, 100.0, 39.37)


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
    other = [unit for unit in _UNITS if unit != values.per_metre and plausible(unit)]
    if plausible(values.per_metre):
        return None if values.outdoor else _of_two_units(values, other)
    near, middle, far = (value / values.per_metre for value in values.quantiles)
    place = "street" if values.outdoor else "room"
    text = (
        f"at {values.per_metre:g} a metre half of the depths are below {middle:.2f} m and 96 % between {near:.2f} and "
        f"{far:.2f} m, which no {place} is"
    )
    is_street = _is_plausible(values.quantiles, values.per_metre, outdoor=True)
    more = _STREET if is_street and not values.outdoor else ""
    if len(other) == 1 and not values.outdoor:
        return Finding("depth-scale", "refused", text, f"per_metre={other[0]:g} reads them as a room{more}")
    settings = " or ".join(f"per_metre={unit:g}" for unit in other) or "per_metre=..."
    return Finding("depth-scale", "doubtful", text, f"say the unit: {settings}{more}")


def _of_two_units(values: LabelValues, other: Sequence[float]) -> Finding | None:
    """Depth that is a room's in millimetres and in 1/256 m, where 4 m would be taken for 1 m.

    Of 13 maps of four indoor sensors in their own unit none is. Of 1/5000 m nothing is said: the composed rooms, with
    4 m in millimetres, would be a desk's.
    """
    if values.per_metre != _MILLIMETRES or _KITTI not in other:
        return None
    millimetres, large = values.quantiles[1] / _MILLIMETRES, values.quantiles[1] / _KITTI
    text = f"half of the depths are below {millimetres:.2f} m in millimetres, below {large:.2f} m at {_KITTI:g} a metre"
    text += ", and rooms are like either"
    return Finding("depth-unit", "doubtful", text, f"per_metre={_KITTI:g} reads large rooms")


_ENOUGH, _MOSTLY = 10, 0.8  # maps, and the share of them whose floor is farther: of 40 composed rooms none is


def _inverse(values: LabelValues) -> Finding | None:
    """Depth that grows towards the camera: inverse depth, disparity, or maps whose near and far were exchanged."""
    near, far = values.summed("floor nearer"), values.summed("floor farther")
    if near + far < _ENOUGH or far < _MOSTLY * (near + far):
        return None
    text = f"in {far:.0f} of {near + far:.0f} maps the lowest fifth is farther than the middle, where floors are nearer"
    return Finding("inverse-depth", "doubtful", text, "if they are inverse depth or disparity: save distances")


_STREET = ", or outdoor=true if these are streets"

_FEW = 5  # files below which a share of them says little
_OTHERS = 0.05  # of the files that may point the other way: of right ones none does, but a noisy map may


def _axes(values: LabelValues) -> Finding | None:
    """Normals whose axes do not point the same way in all files, as where two sources are mixed."""
    if values.summed("files") < _FEW:
        return None
    for axis in "xyz":
        plus, minus = (values.summed(f"{axis}{sign}") for sign in "+-")
        if min(plus, minus) > max(1.0, _OTHERS * (plus + minus)):
            of_splits = ", ".join(_ways(values, axis, split) for split in dict.fromkeys(values.splits))
            text = f"the {axis} axis of normals does not point the same way in all files ({of_splits})"
            return Finding("normals-axes", "doubtful", text, "bring all files to one convention of the axes")
    return None


def _ways(values: LabelValues, axis: str, split: str) -> str:
    ways = {"x": ("right", "left"), "y": ("down", "up"), "z": ("into the image", "out of it")}[axis]
    counts = (f"{values.summed(f'{axis}{sign}', split):.0f} {way}" for sign, way in zip("+-", ways, strict=True))
    return f"{split}: {' and '.join(counts)}"


def _encoded(values: LabelValues) -> Finding | None:
    """Normals that were saved as colours, where 0 to 1 stands for -1 to 1."""
    files = values.summed("files")
    if files < 3 or values.summed("positive") < files:  # a wall may face the camera so in one photograph or two
        return None
    text = f"in {files:.0f} of {files:.0f} files no component of a normal is negative, as where they are colours"
    return Finding("normals-encoded", "doubtful", text, "save 2 × value - 1 of values from 0 to 1")


def _unlike_depth(values: LabelValues) -> Finding | None:
    """Normals that do not follow the depth in their own files: their axes are exchanged, or they are of others."""
    judged, unlike = values.summed("judged"), values.summed("unlike")
    if judged < _FEW or unlike <= judged / 2:
        return None
    text = (
        f"in {unlike:.0f} of {judged:.0f} files the first two components of normals do not follow depth along x and y"
    )
    return Finding("normals-unlike-depth", "doubtful", text, "see the order of the axes: x, y, z in the last dimension")


_HELD_OUT = (("train", "test"), ("train", "val"))
DEPTH = Label(
    "depth",
    "depth",
    "depth",
    "open_depth",
    _metres,
    seen_by=_HELD_OUT,
    signatures=(_scale, _inverse, turned, unlike_photographs),
    order=10,
)
NORMALS = Label(
    "normals", "surface normals", "normals", "open_normals", _directions, seen_by=_HELD_OUT,
    signatures=(_encoded, _unlike_depth, _axes, turned), order=20,
)  # fmt: skip
