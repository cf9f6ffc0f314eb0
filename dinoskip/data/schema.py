"""Checks of labelled data sets at their border, whatever their kind: one function for each, one line for a violation.

Names and numbers resolve, each once; points and boxes are finite and lie in their image; sizes are those of the files.
A kind says in its own reader which of these hold where. Every violation is a :class:`DataError` that names the file,
the entry in it and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dinoskip.errors import DataError

REMEDY = "correct or remove this entry, or get the file again; `dinoskip data check` lists all, --skip-broken omits it"
_NO_NUMBERS = (math.inf, -math.inf)
SLACK = 1.0  # pixels: annotators' tools round


def violated(where: object, what: str) -> DataError:
    """Return the error of a border: ``where`` is the file, and the entry in it if there are several."""
    return DataError(f"{where}: {what}", REMEDY)


@contextmanager
def noted_in(faults: list[str] | None) -> Iterator[None]:
    """Note a :class:`DataError` in ``faults`` and go on; without a list it is raised."""
    try:
        yield
    except DataError as error:
        if faults is None:
            raise
        faults.append(str(error))


def unique(names: Iterable[Any], what: str, where: object) -> None:
    """Raise :class:`DataError` naming the first of ``names`` that comes twice, or that is no text and no finite number.

    NaN, which Python's JSON reader knows, is equal to nothing: it would never come twice, nor ever be found.
    """
    seen: set[Any] = set()
    for name in names:
        if not isinstance(name, str | int | float) or isinstance(name, bool) or name in _NO_NUMBERS or name != name:
            raise violated(where, f"{what} {name!r:.60} is neither a name nor a number")
        if name in seen:
            raise violated(where, f"{what} {name!r} is listed twice")
        seen.add(name)


def resolve(names: Iterable[Any], known: Collection[Any], what: str, where: object) -> None:
    """Raise :class:`DataError` naming the first of ``names`` that is not among those ``known``."""
    for name in names:
        if name not in known or isinstance(name, bool):  # True is 1 to Python
            raise violated(where, f"{what} {name!r} is not in it")


def both_ways(given: Collection[Any], expected: Collection[Any], what: tuple[str, str], where: object) -> None:
    """Raise :class:`DataError` naming an entry without its partner; ``what`` says what lacks it in either direction."""
    for names, others, text in ((given, expected, what[0]), (expected, given, what[1])):
        if lone := sorted(set(names) - set(others)):
            raise violated(where, f"{lone[0]!r} {text} ({len(lone)} in all)")


def evenly_numbered(names: Iterable[str], what: str, where: object) -> None:
    """Raise :class:`DataError` naming where a number is left out of ``names`` that are numbers at equal steps."""
    numbers = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
    steps = np.diff(numbers)
    if steps.size and (wide := steps > steps.min()).any():
        raise violated(where, f"{what} are not numbered evenly: there is a gap after {numbers[int(wide.argmax())]}")


def real_numbers(values: Any, what: str, where: object) -> list[float]:
    """Return a list of finite numbers, as JSON has them, as floats; text and truth values are none."""
    if not isinstance(values, list) or any(type(value) not in {int, float} for value in values):
        raise violated(where, f"{what} are not numbers")
    try:
        given = [float(value) for value in values]
    except OverflowError:
        given = [math.inf]
    finite(given, what, where)
    return given


def finite(values: ArrayLike, what: str, where: object) -> None:
    """Raise :class:`DataError` unless all values are finite."""
    if not np.isfinite(values).all():
        raise violated(where, f"{what} are not finite")


def inside(points: ArrayLike, size: tuple[int, int], what: str, where: object) -> None:
    """Raise :class:`DataError` unless points (n, 2), x y in pixels, lie in an image of ``size`` (height, width).

    They may lie beyond its edge by :data:`SLACK`.
    """
    table = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    finite(table, what, where)
    beyond = ((table < -SLACK) | (table > np.array(size[::-1]) + SLACK)).any(1)
    if beyond.any():
        x, y = table[beyond.argmax()]
        raise violated(where, f"{what} at {x:g}, {y:g} lie outside the image of {size[1]}×{size[0]} pixels")


def same_size(given: object, expected: tuple[int, int], where: object) -> None:
    """Raise :class:`DataError` unless a stated (height, width) is that of the file."""
    if given != expected:
        raise violated(where, f"is of an image of {_shown(given)} pixels, the file has {_shown(expected)}")


def _shown(size: object) -> str:
    return f"{size[1]}×{size[0]}" if isinstance(size, tuple) and len(size) == 2 else repr(size)[:60]
