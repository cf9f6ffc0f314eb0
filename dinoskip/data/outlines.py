"""Outlines of objects in COCO's format, decoded to masks: runs, compressed runs and polygons.

No memory is taken and no C library called before all values have been checked: pycocotools casts what it is given to
unsigned numbers, takes the memory that a size asks for, and leaves what runs do not cover as it was. Memory is that of
the image and of the outline as JSON has it. Masks are those of pycocotools bit by bit.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.schema import SLACK
from dinoskip.io.images import max_pixels

Reason = Literal[
    "size", "malformed", "non-finite", "non-integer", "negative", "counts", "empty", "odd", "points", "outside", "bbox"
]
Size = tuple[int, int]
_COMPRESSED = re.compile(r"(?:[P-o]*[0-O])*")  # groups of five bits from code 48; from 80 on another group follows
_LONGEST = 60  # bits of a run's groups: no image has so many pixels, and runs stay far from the ends of int64
_WALKED = 1 << 22  # cells, of which pycocotools takes 16 bytes each: those of any polygon that was drawn, in 64 MiB
_MAX_SHOWN = 40  # characters of a wrong value in a message


class OutlineError(ValueError):
    """An outline that is no mask of its image; ``reason`` names the first rule that it breaks."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


def mask_of_outline(segmentation: Any, size: Size, bbox: Sequence[float]) -> NDArray[np.bool_]:
    """Return the mask bool (H, W) of an annotation's ``segmentation``, as JSON has it, in an image of ``size`` (H, W).

    Runs are those of ``size`` in integers and cover the image exactly. Polygons have finite points at most
    :data:`~dinoskip.data.schema.SLACK` pixels outside the image; their union is the mask. A mask has a pixel and shares
    area with ``bbox`` (x, y, width, height). Raises :class:`OutlineError` with the first reason in the order of runs:
    size, malformed, non-finite, non-integer, negative, counts; of polygons: empty (no part), malformed, then part by
    part non-finite, odd, points (fewer than three), outside; of both at last: empty (no pixel), bbox.
    """
    if isinstance(segmentation, dict):
        mask = _mask_of_runs(_runs(segmentation, size), size)
    elif isinstance(segmentation, list):
        mask = _mask_of_polygons(_polygons(segmentation, size), size)
    else:
        raise OutlineError("malformed", f"{_shown(segmentation)} is neither runs nor a list of polygons")
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not rows.size:
        raise OutlineError("empty", "it holds no pixel")
    x, y, width, height = bbox
    shared = [
        min(last + 1, start + side) - max(first, start)
        for first, last, start, side in ((columns[0], columns[-1], x, width), (rows[0], rows[-1], y, height))
    ]
    if not min(shared) > 0:
        raise OutlineError("bbox", f"it lies outside the object's bbox {[x, y, width, height]}")
    return mask


def bounds_of_outline(segmentation: Any) -> list[float]:
    """Return the box x, y, width, height around an outline in COCO's format, without its image.

    Raises :class:`OutlineError` for one that is no outline, and for runs of more pixels than an image may have.
    """
    if isinstance(segmentation, list):
        flat = [value for part in segmentation if isinstance(part, list) for value in part]
        if len(flat) < 2 or any(type(value) not in {int, float} or not math.isfinite(value) for value in flat):
            raise OutlineError("malformed", f"{_shown(segmentation)} is no list of polygons of finite numbers")
        if any(len(part) % 2 for part in segmentation):
            raise OutlineError("odd", "a part has x without y")
        xs, ys = ([value for part in segmentation for value in part[at::2]] for at in (0, 1))
        return [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
    if not isinstance(segmentation, dict):
        raise OutlineError("malformed", f"{_shown(segmentation)} is neither runs nor a list of polygons")
    size = segmentation.get("size")
    if not isinstance(size, list) or len(size) != 2 or any(type(side) is not int or side < 1 for side in size):
        raise OutlineError("size", f"{_shown(size)} is no height and width")
    if size[0] * size[1] > max_pixels():
        raise OutlineError("size", f"{_shown(size)} has more pixels than an image may have")
    mask = _mask_of_runs(_runs(segmentation, (size[0], size[1])), (size[0], size[1]))
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not rows.size:
        raise OutlineError("empty", "it holds no pixel")
    x, y = int(columns[0]), int(rows[0])
    return [x, y, int(columns[-1]) + 1 - x, int(rows[-1]) + 1 - y]


def _runs(given: dict[str, Any], size: Size) -> Sequence[int]:
    """The numbers of pixels, background first, that cover an image of ``size`` exactly, column by column."""
    stated = given.get("size")
    if not isinstance(stated, list) or any(type(side) is not int for side in stated) or tuple(stated) != size:
        raise OutlineError("size", f"{_shown(stated)} is not the image's height and width {list(size)}")
    counts = given.get("counts")
    if not isinstance(counts, str | list):
        raise OutlineError("malformed", f"counts are {_shown(counts)}, neither text nor a list")
    runs = _decompressed(counts) if isinstance(counts, str) else _integers(counts)
    if min(runs, default=0) < 0:
        raise OutlineError("negative", f"a run of {_shown(min(runs))} pixels")
    if sum(runs) != size[0] * size[1]:
        raise OutlineError("counts", f"runs cover {_shown(sum(runs))} pixels of {size[0] * size[1]}")
    return runs


def _integers(counts: list[Any]) -> Sequence[int]:
    if any(type(count) is float and not math.isfinite(count) for count in counts):
        raise OutlineError("non-finite", "a run is not finite")
    for count in counts:
        if type(count) is not int:
            raise OutlineError("non-integer", f"a run is {_shown(count)}")
    return counts


def _decompressed(text: str) -> Sequence[int]:
    """Runs of COCO's text: groups of five bits, low ones first; from the fourth on, added to the run two before."""
    if not _COMPRESSED.fullmatch(text):
        raise OutlineError("malformed", "counts have a foreign character or end within a number")
    runs, value, bits = array("q"), 0, 0
    for code in text.encode("ascii"):
        group = code - 48
        value |= (group & 31) << bits
        bits += 5
        last = not group & 32
        if last and group & 16:
            value -= 1 << bits
        if last and len(runs) > 2:
            value += runs[-2]
        if bits > _LONGEST or abs(value) >> _LONGEST:
            raise OutlineError("negative" if value < 0 else "counts", f"a run of more than 2^{_LONGEST} pixels")
        if last:
            runs.append(value)
            value = bits = 0
    return runs


def _mask_of_runs(runs: Sequence[int], size: Size) -> NDArray[np.bool_]:
    colours = np.arange(len(runs)) % 2 == 1
    return np.repeat(colours, np.asarray(runs, dtype=np.int64)).reshape(size[::-1]).T


def _polygons(parts: list[Any], size: Size) -> list[NDArray[np.float64]]:
    """Points (n, 2), x y, of each part."""
    if not parts:
        raise OutlineError("empty", "it has no part")
    for part in parts:
        if not isinstance(part, list) or any(type(value) not in {int, float} for value in part):
            raise OutlineError("malformed", f"a part is {_shown(part)}, no list of numbers")
    for part in parts:
        if any(type(value) is float and not math.isfinite(value) for value in part):
            raise OutlineError("non-finite", "a point is not finite")
        if len(part) % 2:
            raise OutlineError("odd", f"a part has {len(part)} numbers, x without y")
        if len(part) < 6:
            raise OutlineError("points", f"a part has {len(part) // 2} points, fewer than three")
        for values, side in ((part[::2], size[1]), (part[1::2], size[0])):
            if min(values) < -SLACK or max(values) > side + SLACK:
                wrong = min(values) if min(values) < -SLACK else max(values)
                raise OutlineError("outside", f"a point at {_shown(wrong)}, the image has {size[1]}×{size[0]} pixels")
    return [np.array(part, dtype=np.float64).reshape(-1, 2) for part in parts]


def _pycocotools() -> Any:
    from pycocotools import mask  # where a polygon is met: text commands open data sets without it

    return mask


def _mask_of_polygons(parts: Sequence[NDArray[np.float64]], size: Size) -> NDArray[np.bool_]:
    return _decoded(_pycocotools().merge([encoded for part in parts for encoded in _rasterised(part, size)]), size)


def _decoded(encoded: dict[str, Any], size: Size) -> NDArray[np.bool_]:
    return _mask_of_runs(_decompressed(encoded["counts"].decode("ascii")), size)


def _rasterised(points: NDArray[np.float64], size: Size) -> list[dict[str, Any]]:
    """A polygon run by run, as pycocotools has it, in memory of at most :data:`_WALKED` cells.

    pycocotools lists every cell along the edges. A polygon with more of them is cut in two by a chord, in each of which
    the chord is an edge: the pixels that are in one of both are the polygon's, as an edge changes the same pixels
    whichever way it runs.
    """
    mask = _pycocotools()
    if len(points) < 4 or _cells(points) <= _WALKED:
        runs: list[dict[str, Any]] = mask.frPyObjects([points.ravel().tolist()], *size)
        return runs
    middle = len(points) // 2
    halves = points[: middle + 1], np.concatenate([points[middle:], points[:1]])
    first, second = (_decoded(_rasterised(half, size)[0], size) for half in halves)
    return [mask.encode(np.asfortranarray(first ^ second, dtype=np.uint8))]


def _cells(points: NDArray[np.float64]) -> float:
    """About how many cells pycocotools lists along the edges of a polygon: its grid is five times as fine as pixels."""
    steps = np.abs(points - np.roll(points, 1, 0)).max(1)
    return float((5 * steps + 2).sum())


def _shown(value: object) -> str:
    """The beginning of a value as Python writes it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of more than 4,300 digits; lists in lists without end
        return f"a {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
