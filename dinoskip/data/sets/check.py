"""Is the data set there, whole and readable? Counts against those published, classes of a sample, the first faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dinoskip.data.folders import ImageFolder
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.sets import (
    AnyDataset,
    dataset_name,
    dataset_root,
    open_depth,
    open_detection,
    open_keypoints,
    open_normals,
    open_segmentation,
    open_sequences,
)
from dinoskip.data.sets.kind import Task, TrainSubset
from dinoskip.errors import DataError
from dinoskip.images import read_image

SHOWN_FAULTS = 10
SHOWN_CLASSES = 21


@dataclass
class CheckRow:
    """One split. ``expected`` is the published number of images (frames, pairs), None where there is none.

    ``classes`` counts, in the ``sampled`` images that could be read: labelled pixels (segmentation), boxes (detection),
    images (class folders), pixels with and without a measurement (depth, normals) or pairs (correspondence). ``faults``
    holds the first ten, each naming its file; ``fault_count`` is their number.
    """

    dataset: str
    task: str  # images | classes | segmentation | detection | depth | normals | video | correspondence
    split: str
    found: int = 0
    expected: int | None = None
    sampled: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    fault_count: int = 0

    @property
    def ok(self) -> bool:
        """Whether the number is as published (where known) and nothing was found wrong."""
        return not self.fault_count and self.expected in {None, self.found}

    @property
    def unit(self) -> str:
        """What is counted."""
        return {"video": "frames", "correspondence": "pairs"}.get(self.task, "images")

    def fault(self, message: str) -> None:
        """Note a fault; only the first ten are kept."""
        self.fault_count += 1
        if len(self.faults) < SHOWN_FAULTS:
            self.faults.append(message)

    def lines(self) -> list[str]:
        """Return it as text: a headline, the classes in order of frequency (the commonest 21), the faults."""
        against = f" of {self.expected:,} expected" if self.expected is not None else ""
        state = "ok" if self.ok else f"{self.fault_count} faults" if self.fault_count else "differs from the published"
        found = f"{self.found:,} {self.unit}{against}"
        result = [f"{self.dataset} {self.task} {self.split}: {found}, {self.sampled} read: {state}"]
        total = sum(self.classes.values())
        if total:
            ranked = sorted(self.classes.items(), key=lambda item: -item[1])
            shown = ", ".join(f"{name} {100 * count / total:.1f} %" for name, count in ranked[:SHOWN_CLASSES])
            seen = sum(count > 0 for count in self.classes.values())
            more = f"; {seen} of {len(ranked)} classes occur" if len(ranked) > SHOWN_CLASSES else ""
            result.append(f"  {shown}{more}")
        return result + [f"  {fault}" for fault in self.faults]


def check(config: AnyDataset, root: str | Path | None = None, *, sample: int | None = 200) -> list[CheckRow]:
    """Check every split of a dataset; return one row per split and task.

    Every listed file must exist; of each split ``sample`` images, evenly spread (None: all), are decoded with their
    labels. Missing splits, images without masks (or the other way round) and damaged files become faults, not
    exceptions; :class:`DataError` only if the dataset's folder itself is not there. Subsets are not drawn.
    """
    where, name = dataset_root(config, root), dataset_name(config)
    if not where.is_dir():
        raise DataError(f"{where}: no such folder: expected the dataset {name}")
    if isinstance(config, TrainSubset):
        config = config.model_copy(update={"subset": None})
    rows = []
    for task, split, expected in config.checked_splits(where):
        row = CheckRow(name, task, split, expected=expected)
        try:
            _CHECKS[task](row, config, where, sample)
        except DataError as error:
            row.fault(str(error))
        rows.append(row)
    return rows


def _sample(row: CheckRow, count: int, sample: int | None, read: Callable[[int], None]) -> None:
    """Call ``read`` for evenly spread items and note what it raises."""
    row.found = count
    chosen = range(count) if sample is None or sample >= count else np.linspace(0, count - 1, sample).astype(int)
    row.sampled = len(chosen)
    for index in chosen:
        try:
            read(int(index))
        except DataError as error:
            row.fault(str(error))


def _images(row: CheckRow, config: AnyDataset, root: Path, sample: int | None) -> None:
    folder = ImageFolder.open(root)
    _sample(row, len(folder), sample, lambda index: _decode(folder.path(index)))


def _decode(path: Path) -> None:
    read_image(path)


def _classes(row: CheckRow, config: AnyDataset, root: Path, sample: int | None) -> None:
    folder = LabelledFolder.open(root / row.split)
    counts = np.bincount(folder.labels, minlength=len(folder.class_names))
    row.classes = dict(zip(folder.class_names, counts.tolist(), strict=True))
    _sample(row, len(folder), sample, lambda index: _decode(folder.path(index)))


def _segmentation(row: CheckRow, config: AnyDataset, root: Path, sample: int | None) -> None:
    faults: list[str] = []
    dataset = open_segmentation(config, row.split, root, faults=faults)
    for fault in faults:
        row.fault(fault)
    pixels = np.zeros(256, dtype=np.int64)

    def read(index: int) -> None:
        _decode(dataset.path(index))
        pixels[:] += np.bincount(dataset.label(index).ravel(), minlength=256)

    _sample(row, len(dataset), sample, read)
    row.classes = dict(zip(dataset.class_names, pixels.tolist(), strict=False))


def _detection(row: CheckRow, config: AnyDataset, root: Path, sample: int | None) -> None:
    faults: list[str] = []
    dataset = open_detection(config, row.split, root, faults=faults)
    for fault in faults:
        row.fault(fault)
    row.classes = dict.fromkeys(dataset.class_names, 0)

    def read(index: int) -> None:
        _decode(dataset.path(index))
        for label in dataset.box_labels(index):
            row.classes[label] += 1

    _sample(row, len(dataset), sample, read)


def _depth(row: CheckRow, config: AnyDataset, root: Path, sample: int | None) -> None:
    faults: list[str] = []
    dataset = open_depth(config, row.split, root, faults=faults)
    for fault in faults:
        row.fault(fault)
    row.classes = {"measured": 0, "not measured": 0}

    def read(index: int) -> None:
        metres = dataset.depth(index)
        row.classes["measured"] += int((metres > 0).sum())
        row.classes["not measured"] += int((metres == 0).sum())

    _sample(row, len(dataset), sample, read)


def _normals(row: CheckRow, config: AnyDataset, root: Path, sample: int | None) -> None:
    faults: list[str] = []
    dataset = open_normals(config, row.split, root, faults=faults)
    for fault in faults:
        row.fault(fault)
    row.classes = {"known": 0, "not known": 0}

    def read(index: int) -> None:
        valid = dataset.read(index).valid
        row.classes["known"] += int(valid.sum())
        row.classes["not known"] += int((~valid).sum())

    _sample(row, len(dataset), sample, read)


def _video(row: CheckRow, config: AnyDataset, root: Path, sample: int | None) -> None:
    faults: list[str] = []
    dataset = open_sequences(config, row.split, root, faults=faults)
    for fault in faults:
        row.fault(fault)

    def read(index: int) -> None:
        _decode(dataset.path(index))
        dataset.label(index)

    _sample(row, len(dataset), sample, read)


def _correspondence(row: CheckRow, config: AnyDataset, root: Path, sample: int | None) -> None:
    faults: list[str] = []
    dataset = open_keypoints(config, row.split, root, faults=faults)
    for fault in faults:
        row.fault(fault)
    row.classes = dict.fromkeys(dataset.class_names, 0)

    def read(index: int) -> None:
        pair = dataset.pairs[index]
        for image in (pair.source, pair.target):
            _decode(dataset.path(image))
        row.classes[pair.category] += 1

    _sample(row, len(dataset.pairs), sample, read)


_CHECKS: dict[Task, Callable[[CheckRow, AnyDataset, Path, int | None], None]] = {
    "images": _images,
    "classes": _classes,
    "segmentation": _segmentation,
    "detection": _detection,
    "depth": _depth,
    "normals": _normals,
    "video": _video,
    "correspondence": _correspondence,
}
