"""Measures of which way the axes of surface normals point, from the depth in the same files.

Along a surface the logarithm of depth rises to the right where its normal, towards the camera, has an x to the right:
for a plane n·P = c seen at P = z (u, v, 1), the derivative of log z by u is -n_x / n·(u, v, 1), whose divisor is
negative. So the correlation of n_x with that slope has the sign of the axis, whatever the focal length is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.edges import FEWEST
from dinoskip.io.images import opencv

ACROSS = 56  # pixels along the shorter side that are looked at: neighbours of a depth sensor differ by noise
_JUMP = 0.08  # of log depth between two of them: another surface begins, as in maps of depth
_CLEAR = 0.3  # correlation from which on an axis has a direction: of 40 composed rooms the least is .94
_CLEAR_Z = 0.1  # the same of the mean of z, of which the least is .19 there
_OTHER = 0.2  # by which another component follows depth along an axis better where axes are exchanged, or none does
_UNTURNED = 0.02  # length below which a component is 0: of walls that face the camera
_MOST = 0.99  # share of the pixels that may have no negative component: single pixels are noise
_BEND = 0.9  # cosine of neighbours at 192 pixels below which one surface ends: 26 degrees


def axis_sums(normals: NDArray[np.float32], valid: NDArray[np.bool_], depth: NDArray[np.float32]) -> dict[str, float]:
    """Return what one file adds to sums: of normals (H, W, 3), where they are known, and depth (H, W), 0 not measured.

    ``x+`` and ``x-`` count files whose x axis points right or left, ``y+`` down or up, ``z+`` into the image or out of
    it; of ``judged`` ones ``unlike`` are those whose components 0 and 1 are not the ones that follow depth to the right
    and down; ``positive`` those without a negative component.
    """
    step = max(1, min(valid.shape) // ACROSS)
    small, known = normals[::step, ::step], valid[::step, ::step]
    found = {"files": 1.0}
    if known.sum() < FEWEST:
        return found
    found["positive"] = float((small[known] >= -_UNTURNED).all(1).mean() >= _MOST)
    means = {"z": float(small[known][:, 2].mean())}
    slopes = [_slope(depth[::step, ::step], known, axis) for axis in (1, 0)]
    table = [[_correlation(small[..., part], slope) for slope in slopes] for part in range(3)]
    means |= {"x": table[0][0], "y": table[1][1]}
    for name, value in means.items():
        clear = _CLEAR_Z if name == "z" else _CLEAR
        found[f"{name}+"], found[f"{name}-"] = float(value >= clear), float(value <= -clear)
    found["judged"] = float(any(np.isfinite(slope).sum() >= FEWEST for slope in slopes))
    found["unlike"] = found["judged"] and float(any(_is_of_another(table, axis) for axis in (0, 1)))
    return found


def _is_of_another(table: list[list[float]], axis: int) -> bool:
    """Whether the component of an axis follows depth along it clearly less than another one, or none does."""
    follows = [abs(of_component[axis]) for of_component in table]
    return follows[axis] < _OTHER or max(follows) > follows[axis] + _OTHER


def _slope(depth: NDArray[np.float32], known: NDArray[np.bool_], axis: int) -> NDArray[np.float64]:
    """Change of log depth between the neighbours of each pixel along an axis; NaN where a surface ends."""
    logs = np.where((depth > 0) & known, np.log(np.maximum(depth, 1e-6).astype(np.float64)), np.nan)
    slope = np.full(logs.shape, np.nan)
    into, of = np.moveaxis(slope, axis, 0), np.moveaxis(logs, axis, 0)
    steps = np.diff(of, axis=0)
    steps[np.abs(steps) > _JUMP] = np.nan
    into[1:-1] = steps[1:] + steps[:-1]
    return slope


def _correlation(component: NDArray[np.float32], slope: NDArray[np.float64]) -> float:
    """Uncentred correlation where the component turns to a side at all; 0 where too few pixels do."""
    use = np.isfinite(slope) & (np.abs(component) > _UNTURNED)
    if use.sum() < FEWEST:
        return 0.0
    one, other = component[use].astype(np.float64), slope[use]
    scale = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum()) / scale if scale > 0 else 0.0


def bends(normals: NDArray[np.float32], valid: NDArray[np.bool_], size: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Return where known normals (H, W, 3) turn from a pixel to the next, bool at ``size`` (height, width).

    None if they hardly do.
    """
    cv2 = opencv()
    small = np.asarray(cv2.resize(normals, size[::-1], interpolation=cv2.INTER_NEAREST))
    known = np.asarray(cv2.resize(valid.astype(np.uint8), size[::-1], interpolation=cv2.INTER_NEAREST)) > 0
    found = np.zeros(size, bool)
    for axis in (0, 1):
        vectors, there = np.moveaxis(small, axis, 0), np.moveaxis(known, axis, 0)
        bend = ((vectors[1:] * vectors[:-1]).sum(-1) < _BEND) & there[1:] & there[:-1]
        places = np.moveaxis(found, axis, 0)
        places[:-1] |= bend
        places[1:] |= bend
    return found if found.sum() >= FEWEST else None
