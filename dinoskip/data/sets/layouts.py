"""Recognition of the data set in a folder by its contents, for the hint of an error when another was expected there."""

from __future__ import annotations

from pathlib import Path

from dinoskip.data.listing import is_passed_over
from dinoskip.data.recognise import recognise
from dinoskip.data.recognise.published import PUBLISHED, PublishedLayout
from dinoskip.errors import DataError


def _published_at(folder: Path) -> PublishedLayout | None:
    return next((one for one in PUBLISHED if all((folder / part).exists() for part in one.in_parts)), None)


def nearest_layout(root: Path, kind: str) -> str | None:
    """Say what ``root``, the folder above or one in it is laid out as; None if that is ``kind`` itself or unknown.

    Published layouts are known by their names alone, so that one that is not complete is named too; others by
    :func:`dinoskip.data.recognise.recognise`, in ``root`` itself.
    """
    try:
        inside = sorted(entry for entry in root.iterdir() if entry.is_dir() and not is_passed_over(entry.name))[:50]
    except OSError:
        inside = []
    for folder in (root, *inside, root.parent):
        layout = _published_at(folder)
        if layout is None or (folder != root and layout.kind not in {kind, None}):  # elsewhere only what was asked for
            continue
        if folder == root and layout.kind == kind:
            return None
        advice = layout.advice or (f"use kind {layout.kind}" if folder == root else f"use root {folder}")
        return f"{folder} is laid out as {layout.name}: {advice}"
    return _recognised(root, kind)


def _recognised(root: Path, kind: str) -> str | None:
    try:
        reading = recognise(root)
    except DataError:
        return None
    settings, layout = reading.settings, reading.layout
    if settings is None:
        return None if len(layout.marks) < 2 else f"{root} is laid out as {layout.name}: {layout.advice}".rstrip(": ")
    given = ", ".join(f"{key}: {value}" for key, value in settings.items() if key not in {"kind", "root"})
    where = "" if settings["root"] == str(root) else f", root {settings['root']}"
    if settings["kind"] == kind and not (given or where):
        return None
    return f"{root} is laid out as {layout.name}: use kind {settings['kind']}{where}{f', {given}' if given else ''}"
