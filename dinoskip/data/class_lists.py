"""Lists of class names, a name a line, as people and tools write them.

A line that is no class moves every class after it by one, so headings of tables and comments are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from dinoskip.data.listing import read_text
from dinoskip.errors import DataError

_NOUNS = frozenset(
    ["class", "classes", "classname", "classnames", "name", "names", "label", "labels", "category", "categories"]
)
_BESIDE = frozenset(
    [
        "id",
        "ids",
        "idx",
        "index",
        "indices",
        "value",
        "values",
        "number",
        "numbers",
        "num",
        "no",
        "color",
        "colour",
        "colors",
        "colours",
        "rgb",
        "r",
        "g",
        "b",
        "red",
        "green",
        "blue",
        "hex",
        "supercategory",
        "description",
        "pixel",
        "trainid",
    ]
)
_MAY_BE_CLASSES = frozenset({"name", "label"})
"""Words that stand over a list, and that are classes of forms and of parcels, too: alone they decide nothing."""
_NUMBER_FIRST = re.compile(r"(\d+)\s*(?:[:;,\t=|]|[.)]\s|\s)\s*(\D.*)")
_NUMBER_LAST = re.compile(r"(.*\D?[^\s:;,\t=|])\s*[:;,\t=|]\s*(\d+)")


class ListedClasses(NamedTuple):
    """Names of a list by line, and the numbers that stand beside all of them; none where names stand alone."""

    names: tuple[str, ...]
    numbers: tuple[int, ...] = ()


def may_be_heading(name: str) -> bool:
    """Whether the first name of a list is one that a table of one column has over its names."""
    return name.lower().strip(" :") in _MAY_BE_CLASSES


def _is_heading(line: str) -> bool:
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", line).lower())
    known = bool(words) and set(words) <= _NOUNS | _BESIDE and not _NOUNS.isdisjoint(words)
    return known and not re.search(r"\d", line) and not may_be_heading(line)


def listed_classes(path: Path) -> ListedClasses:
    """Return the lines of a list of classes without empty ones; numbers beside all names are no part of these.

    Raises :class:`DataError` for a list that cannot be read, a comment, and names of columns in the first line.
    """
    lines = [line.strip() for line in read_text(path, "list of classes").splitlines() if line.strip()]
    if comment := next((line for line in lines if line.startswith("#")), ""):
        raise DataError(
            f"{path}: {comment[:60]!r} is a comment, not the name of a class", "one class a line, no others"
        )
    if len(lines) > 1 and _is_heading(lines[0]):
        raise DataError(
            f"{path}: {lines[0][:60]!r}, the first line, stands over a list and is no class",
            "remove this line, or rename the class",
        )
    for form, number, name in ((_NUMBER_FIRST, 1, 2), (_NUMBER_LAST, 2, 1)):
        found = [match for line in lines if (match := form.fullmatch(line))]
        if lines and len(found) == len(lines):
            listed = ListedClasses(tuple(m[name].strip() for m in found), tuple(int(m[number]) for m in found))
            if _count_lines(listed, lines):
                return listed
    return ListedClasses(tuple(lines))


def _count_lines(listed: ListedClasses, lines: list[str]) -> bool:
    """Whether numbers are beside the names, and not parts of them as in ``3 seater`` or ``iphone 5``."""
    names, numbers = listed
    if len(set(numbers)) != len(numbers) or len(set(names)) != len(names):
        return False
    only_spaces = not any(re.search(r"[:;,\t=|.)]", line) for line in lines)
    return not only_spaces or numbers == tuple(range(numbers[0], numbers[0] + len(numbers)))


def is_background(name: str) -> bool:
    """Whether a class of a list is what is left of an image, by its name."""
    return name.strip(" _-").lower() in _BACKGROUNDS


_BACKGROUNDS = frozenset({"background", "bg", "void", "unlabeled", "unlabelled", "ignore", "ignored", "none", "other"})
