"""What is broken in a labelled split and left out of it where that is asked for, counted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dinoskip.console import log
from dinoskip.data.sequences import SequenceDataset
from dinoskip.data.sets.labels import Label
from dinoskip.errors import DataError


def without_broken(label: Label[Any], opened: Any, found: list[str], where: str) -> Any:
    """A split without what cannot be read: every image is decoded with its label, every frame of a video.

    ``found`` says what has been left out already; what is left out here is added. ``where`` names the split. Raises
    :class:`DataError` if nothing is left.
    """
    _, read = label.count(opened)
    kept = []
    for position, indices in enumerate(_indices(label, opened)):
        try:
            for index in indices:
                read(index)
            kept.append(position)
        except DataError as error:
            found.append(str(error))
    if not kept:
        raise DataError(f"{where}: nothing is left of it: {found[0] if found else 'it is empty'}")
    if not found:
        return opened
    log.warning("%s: %d left out as broken, such as %s", where, len(found), found[0])
    return replace(opened.part(kept), left_out=len(found))


def _indices(label: Label[Any], opened: Any) -> list[Sequence[int]]:
    """What is read of each item: of a video its frames."""
    if not isinstance(opened, SequenceDataset):
        return [(index,) for index in range(len(label.items(opened)))]
    ends = [0]
    for video in opened.sequences:
        ends.append(ends[-1] + len(video))
    return [range(*one) for one in itertools.pairwise(ends)]
