"""Is the data set there, whole and readable? Counts against those published, classes of a sample, the first faults."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dinoskip.data.listing import evenly_spread
from dinoskip.data.recognise import recognise
from dinoskip.data.recognise.words import unread_container
from dinoskip.data.sets import AnyDataset, dataset_root, open_images, open_labels, open_training_images
from dinoskip.data.sets.images import ImagesConfig
from dinoskip.data.sets.kind import TrainSubset
from dinoskip.data.sets.labels import LABELS, decoded
from dinoskip.data.sets.meaning import has_rules, label_verdicts
from dinoskip.data.shards import TarShards, holds_shards
from dinoskip.data.verdicts import DataVerdict
from dinoskip.errors import DataError
from dinoskip.io.images import image_size

PATCH = 16  # pixels: the patches of most networks
SHOWN_FAULTS = 10  # the rest is counted: a wrong root gives one fault a file
SHOWN_CLASSES = 21  # all of VOC and its background; of larger sets the commonest


@dataclass
class CheckRow:
    """One split. ``expected`` is the published number of images (frames, pairs), None where there is none.

    ``task`` is the label's name, or ``images``. ``classes`` counts, in the ``sampled`` images that could be read:
    labelled pixels (segmentation), boxes (detection), images (class folders), pixels with and without a measurement
    (depth, normals) or pairs (correspondence). ``faults`` holds the first ten, each naming its file; ``fault_count`` is
    their number. ``notes`` say what is no fault: files that were passed over, images that are label maps. ``verdicts``
    say whether all label files, up to 5,000, mean what the settings say.
    """

    dataset: str
    task: str
    split: str
    found: int = 0
    expected: int | None = None
    sampled: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0
    notes: list[str] = field(default_factory=list)
    verdicts: list[DataVerdict] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the number is as published (where known) and nothing was found wrong."""
        return not self.fault_count and not self.state and self.expected in {None, self.found}

    @property
    def state(self) -> str:
        """The gravest of its verdicts that stop a command, ``refused`` or ``doubtful``; "" if none does."""
        states = {verdict.state for verdict in self.verdicts}
        return next((state for state in ("refused", "doubtful") if state in states), "")

    @property
    def unit(self) -> str:
        """The unit in the rows of a check: images, pairs or videos."""
        return LABELS[self.task].unit if self.task in LABELS else "images"

    def fault(self, message: str) -> None:
        """Note a fault; only the first ten are kept."""
        self.fault_count += 1
        if len(self.faults) < SHOWN_FAULTS:
            self.faults.append(message)

    def lines(self) -> list[str]:
        """Return it as text: a headline, the classes in order of frequency (the commonest 21), the faults."""
        against = f" of {self.expected:,} expected" if self.expected is not None else ""
        wrong = self.state or "differs from the published"
        state = "ok" if self.ok else f"{self.fault_count} faults" if self.fault_count else wrong
        found = f"{self.found:,} {self.unit}{against}"
        result = [f"{self.dataset} {self.task} {self.split}: {found}, {self.sampled} read: {state}"]
        total = sum(self.classes.values())
        if total:
            ranked = sorted(self.classes.items(), key=lambda item: -item[1])
            shown = ", ".join(f"{name} {100 * count / total:.1f} %" for name, count in ranked[:SHOWN_CLASSES])
            seen = sum(count > 0 for count in self.classes.values())
            more = f"; {seen} of {len(ranked)} classes occur" if len(ranked) > SHOWN_CLASSES else ""
            result.append(f"  {shown}{more}")
        said = [f"{one.line}: {one.remedy}" if one.remedy else one.line for one in self.verdicts]
        return result + [f"  {line}" for line in (*self.notes, *said, *self.faults)]


def check(config: AnyDataset, root: str | Path | None = None, *, sample: int | None = 200) -> list[CheckRow]:
    """Check every split of a dataset; return one row per split and task.

    Every listed file must exist; of each split ``sample`` images, evenly spread (None: all), are decoded with their
    labels. Missing splits, images without masks (or the other way round) and damaged files become faults, not
    exceptions; :class:`DataError` only if the dataset's folder itself is not there. Subsets are not drawn.
    """
    where, name = dataset_root(config, root), config.dataset_name
    if not where.is_dir():
        advice = unread_container(where.name) if where.is_file() else None
        raise DataError(f"{where}: no such folder: expected the dataset {name}", advice)
    if isinstance(config, TrainSubset):
        config = config.model_copy(update={"subset": None})
    rows: list[CheckRow] = []
    for task, split, expected in config.checked_splits(where):
        row = CheckRow(name, task, split, expected=expected)
        row.notes += [own] if (own := config.own_layout(where)) and not rows else []  # once, not of every split
        try:
            _fill(row, config, where, sample)
        except DataError as error:
            row.fault(str(error))
        rows.append(row)
    return rows


def _fill(row: CheckRow, config: AnyDataset, root: Path, sample: int | None) -> None:
    """Count a split and read items of it, evenly spread."""
    if row.task not in LABELS:
        _fill_of_images(row, config, root, sample)
        return
    label, faults = LABELS[row.task], list[str]()
    opened = open_labels(label, config, row.split, root, faults=faults)
    for fault in faults:
        row.fault(fault)
    if has_rules(row.task):
        row.verdicts = label_verdicts(row.dataset, config, row.task, [opened])
    row.classes, read = label.count(opened)
    _read(row, label.size(opened), sample, read)
    if label.unit == "images":
        _note_small(row, opened, sample)


def _fill_of_images(row: CheckRow, config: AnyDataset, root: Path, sample: int | None) -> None:
    """Count the photographs of a folder, or of the tar shards in their place, and decode some of them."""
    if holds_shards(root):
        shards = cast(TarShards, open_training_images(config, root))

        def decode(index: int) -> None:
            shards.read(index)

        _read(row, len(shards), sample, decode)
        return
    everything = isinstance(config, ImagesConfig) and config.everything
    if not everything:
        reading = recognise(root)
        row.notes += [reading.line] if reading.noteworthy else []
    folder = open_images(config, root)  # with the range of pixels that the settings state
    _read(row, len(folder), sample, decoded(folder)[1])
    _note_small(row, folder, sample)


def _note_small(row: CheckRow, opened: Any, sample: int | None) -> None:
    """Note images that have no patch of most networks, which leave them out or refuse them."""
    small = []
    for index in evenly_spread(row.found, row.found if sample is None else sample):
        with suppress(DataError):  # it is a fault already
            height, width = image_size(opened.path(index))
            small += [f"{opened.path(index)} ({width}×{height})"] if min(height, width) < PATCH else []
    if small:
        row.notes.append(f"{len(small)} of {row.sampled} images are smaller than {PATCH} pixels, such as {small[0]}")


def _read(row: CheckRow, count: int, sample: int | None, read: Callable[[int], None]) -> None:
    """Read evenly spread items and note what that raises."""
    row.found = count
    chosen = evenly_spread(count, count if sample is None else sample)
    row.sampled = len(chosen)
    for index in chosen:
        try:
            read(index)
        except DataError as error:
            row.fault(str(error))
