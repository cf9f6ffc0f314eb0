"""The photographs below a folder: where commands and data sets without labels get their images from."""

from __future__ import annotations

from pathlib import Path

from dinoskip.data.folders import ImageFolder
from dinoskip.data.recognise import recognise, say
from dinoskip.data.shards import Source, TarShards, holds_shards


def photographs_below(root: Path, *, everything: bool = False) -> ImageFolder:
    """Open the photographs below a folder, and say in one line what was taken and what was left.

    With ``everything`` all images are taken, label maps too. Raises :class:`DataError` as
    :func:`dinoskip.data.recognise.recognise`.
    """
    if everything:
        return ImageFolder.open(root)
    reading = recognise(root)
    say(root, reading.line, noteworthy=reading.noteworthy)
    return ImageFolder(root, reading.photographs)


def open_photographs(path: str | Path, *, everything: bool = False) -> Source:
    """Open tar shards, or the photographs below a folder (:func:`photographs_below`)."""
    path = Path(path)
    return TarShards.open(path) if holds_shards(path) else photographs_below(path, everything=everything)
