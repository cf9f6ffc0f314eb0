"""Verdicts on the labels of opened splits; their counts are kept where that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from dinoskip.data.label_values import LabelValues, Named, can_be_counted, fingerprint, label_values
from dinoskip.data.segmentation import IGNORE, ILLEGAL
from dinoskip.data.sets.kind import DatasetKind
from dinoskip.data.sets.labels import LABELS
from dinoskip.data.sets.signatures import OF_LABELS, judge
from dinoskip.data.verdicts import DataVerdict
from dinoskip.errors import DataError, DinoskipError
from dinoskip.io.files import hash_of, read_json, write_json


def has_rules(use: str) -> bool:
    """Whether files of a label are counted and judged.

    Others have a schema that says what they mean, and are checked as they are opened.
    """
    return use in OF_LABELS or bool(LABELS[use].signatures)


def label_verdicts(
    name: str, config: DatasetKind, use: str, splits: list[Any], kept: Path | None = None
) -> list[DataVerdict]:
    """Return what is to be said of opened splits of a data set that have a label; counts are kept in ``kept``.

    Where the settings leave out what is broken, it is not said. Raises :class:`DataError` for a file that is gone.
    """
    named = config.named_classes if use == "segmentation" else None
    if type(config).named_classes is DatasetKind.named_classes:
        named = None
    rules = (*type(config).signatures, *LABELS[use].signatures)
    counts = [_counted(use, opened, named, kept) for opened in splits if can_be_counted(opened)]
    together = counts if use == "classes" else [reduce(add, counts)] if counts else []  # each split has a baseline
    found = [one for values in together for one in judge(values, name, rules)]
    if use == "segmentation" and not any(one.state == "refused" for one in found):
        found += splits_unlike(counts, name)
    left_out = {"unreadable-labels", "foreign-values", "mask-sizes"} if config.skip_broken else set()
    return [one for one in found if one.check not in left_out]


_COMMON, _MASKS = 0.9, 8  # of 200 VOC masks all have the background; eight lack such a class once in 10^8 by chance
_BEHIND = 0.5  # share of the pixels that a background has; of ADE20K's masks indoors and outdoors no class has as much


def splits_unlike(counts: Sequence[LabelValues], name: str) -> list[DataVerdict]:
    """Return a doubt where most pixels of nearly all masks are value v in one split, and v ± 1 in another without v.

    So it is where one numbers its classes from 1.
    """
    behind = [(one, value) for one in counts if (value := _background_value(one)) is not None]
    for one, value in behind:
        for other, moved in behind:
            if abs(moved - value) == 1 and not other.files[value]:
                text = (
                    f"{name}: most pixels are {value} ({one.names[one.numbers[value]]}) in masks of "
                    f"{'/'.join(one.splits)} and {moved} ({other.names[other.numbers[moved]]}) in those of "
                    f"{'/'.join(other.splits)}, of which none has {value}"
                )
                remedy = "see whether both splits number their classes alike"
                return [DataVerdict("splits-unlike", name, "doubtful", text, remedy, by="data")]
    return []


def _background_value(values: LabelValues) -> int | None:
    """Return the value of the class that has most pixels of a split and is in nearly all masks; None without one."""
    value = max(range(255), key=values.pixels.__getitem__)
    whole = values.read - values.unreadable
    if values.numbers[value] in {IGNORE, ILLEGAL} or values.files[value] < max(_COMMON * whole, _MASKS):
        return None
    return value if values.pixels[value] > _BEHIND * sum(values.pixels) else None


def _counted(use: str, opened: Any, named: Named | None, kept: Path | None) -> LabelValues:
    """The counts of a split; from the folder ``kept`` where its files have been counted already."""
    if kept is None:
        return label_values(use, opened, named)
    key = hash_of(["labels", fingerprint(use, opened, ["named"] if named else [])])
    place = kept / f"{key[:16]}.json"
    with suppress(DataError, TypeError, KeyError):
        stored = read_json(place)
        if stored.pop("key") == key:
            return LabelValues.of_plain(stored)
    counts = label_values(use, opened, named)
    with suppress(OSError, DinoskipError):  # a plan may look at a study that is another's
        write_json(place, {"key": key, **counts.plain()})
    return counts
