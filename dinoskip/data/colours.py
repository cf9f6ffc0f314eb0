"""Masks in colours: which class a colour stands for, as labelling tools list it beside their masks.

Three forms are read: CVAT's ``labelmap.txt`` (``name:R,G,B:parts:actions``), CamVid's ``label_colors.txt``
(``R G B name``) and tables ``name,R,G,B`` (``class_dict.csv``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dinoskip.data.listing import read_text
from dinoskip.data.recognise.generic import COLOUR_LISTS
from dinoskip.data.segmentation import IGNORE, ClassMap, class_map
from dinoskip.errors import DataError

VOID_NAMES = frozenset({"void", "ignore", "ignored", "unlabelled", "unlabeled", "don't care", "dontcare"})
VOC_VOID = 224 << 16 | 224 << 8 | 192  # of the borders of objects in VOC's colours
_NUMBER = r"\s*(\d{1,3})\s*"
# A class without a colour is written by CVAT, too; it has none in masks.
_FORMS: Mapping[str, re.Pattern[str]] = {
    "labelmap": re.compile(rf"(?P<name>[^:]+):(?:{_NUMBER},{_NUMBER},{_NUMBER})?:[^:]*:[^:]*"),
    "colours first": re.compile(rf"{_NUMBER}[\s,]{_NUMBER}[\s,]{_NUMBER}[\s,](?P<name>.+)"),
    "table": re.compile(rf"(?P<name>[^,]+)[,;\t]{_NUMBER}[,;\t]{_NUMBER}[,;\t]{_NUMBER}"),
}


def read_colours(path: Path) -> ClassMap | None:
    """Return the classes and colours of a list; None for a list that has no colours.

    Classes are numbered in the order of the list; those named as void (:data:`VOID_NAMES`) are not scored, nor is VOC's
    off-white where no class has it. Raises :class:`DataError` for a line of another form than the first one, a colour
    beyond 255, a colour or name that comes twice, and more than 255 classes.
    """
    lines = [line.strip() for line in read_text(path, "list of classes").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    entries: list[tuple[str, int]] = []
    form: re.Pattern[str] | None = None
    for number, line in enumerate(lines):
        form = form or next((one for one in _FORMS.values() if one.fullmatch(line)), None)
        found = form.fullmatch(line) if form else None
        if found is None:
            if form is None and number == 0:
                continue  # names of columns, or a list of names alone
            if form is None:
                return None
            raise DataError(f"{path}: {line[:60]!r} is not a class with its colour, as the lines before it are")
        name, *channels = _parts(found)
        if not channels:
            continue
        if max(map(int, channels)) > 255:
            raise DataError(f"{path}: {line[:60]!r}: a colour has values from 0 to 255")
        red, green, blue = map(int, channels)
        entries.append((name, red << 16 | green << 8 | blue))
    return _class_map(entries, path) if entries else None


def _parts(found: re.Match[str]) -> list[str]:
    """The name and the channels of a line; the name alone where it has no colour."""
    name = found.group("name")
    channels = [text for at, text in enumerate(found.groups(), 1) if at != found.re.groupindex["name"]]
    return [name.strip(), *(text for text in channels if text is not None)]


def _class_map(entries: list[tuple[str, int]], path: Path) -> ClassMap:
    names = tuple(name for name, _ in entries if name.lower() not in VOID_NAMES)
    listed = [code for _, code in entries]
    if len(set(listed)) != len(listed) or len(set(names)) != len(names) or not 0 < len(names) <= IGNORE:
        raise DataError(f"{path}: expected 1 to {IGNORE} classes of different names and colours")
    number = {name: place for place, name in enumerate(names)}
    colours = {VOC_VOID: IGNORE} | {code: number.get(name, IGNORE) for name, code in entries}
    return ClassMap(names, class_map(names).table, colours)


def find_colours(folder: Path) -> ClassMap | None:
    """Return the classes of a list of colours in a folder, by the names that tools give it; None without one."""
    places = (folder / name for name in COLOUR_LISTS)
    return next((found for place in places if place.is_file() and (found := read_colours(place))), None)
