"""A label ``notes``, a kind of data set that gives it, and a task that needs it: how long each image's note is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.labelled_images import LabelledImages
from dinoskip.data.listing import read_text
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.sets.kind import CheckedSplit, DatasetKind
from dinoskip.data.sets.labels import Label
from dinoskip.data.sets.masks import read_classes
from dinoskip.errors import DataError
from dinoskip.results.rows import EvalResult, write_rows
from dinoskip.settings.config import Config
from dinoskip.settings.fields import Names
from dinoskip.settings.tasks import EvaluationTask, FeatureRequest, TaskInputs, TaskMetric

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class NotedImages(LabelledImages):
    """Images with a note each; ``files`` names the field with the labels' files, whose contents are in keys."""

    of_each, files = ("note_paths",), "note_paths"
    note_paths: tuple[Path, ...] = ()

    def note(self, index: int) -> str:
        """Return the text of an image's note. Raises :class:`DataError` if it cannot be read."""
        return read_text(self.note_paths[index], "note")


NOTES: Label[Any] = Label("notes", "notes", "notes", "open_notes")


class BesideConfig(DatasetKind):
    """Images with masks and notes beside them; line i of ``classes.txt`` (from 0) names value i, 255 is ignored."""

    kind: Literal["beside"] = "beside"
    root: str

    @property
    def dataset_name(self) -> str:
        """The folder's name."""
        return Path(self.root).name

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images of a split."""
        return ImageFolder(root, tuple(f"{name}.png" for name in self._names(root, split, None)))

    def open_segmentation(self, root: Path, split: str, faults: list[str] | None) -> SegmentationDataset:
        """Open a split with its masks."""
        names = self._names(root, split, faults)
        return SegmentationDataset(
            name=self.dataset_name,
            split=split,
            ids=names,
            class_names=read_classes(root / "classes.txt"),
            image_paths=tuple(root / f"{name}.png" for name in names),
            label_paths=tuple(root / f"{name}_mask.png" for name in names),
        )

    def open_notes(self, root: Path, split: str, faults: list[str] | None) -> NotedImages:
        """Open a split with its notes."""
        names = self._names(root, split, faults)
        images, notes = (tuple(root / f"{name}{end}" for name in names) for end in (".png", "_note.txt"))
        return NotedImages(self.dataset_name, split, names, images, note_paths=notes)

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """Both labels of both splits."""
        return [CheckedSplit(label, split) for label in ("segmentation", "notes") for split in ("train", "val")]

    def _names(self, root: Path, split: str, faults: list[str] | None) -> tuple[str, ...]:
        names = read_text(root / f"{split}.txt", "list of names").split()
        missing = [name for name in names if not (root / f"{name}_mask.png").is_file()]
        if missing and faults is None:
            raise DataError(f"{root / missing[0]}_mask.png: no such mask, {split}.txt names its image")
        if faults is not None:
            faults += [f"{root / name}_mask.png: no such mask" for name in missing]
        return tuple(name for name in names if name not in missing)


class LengthSection(Config):
    """The length of a note, predicted from the CLS token of its image."""

    datasets: Names = Field((), description="keys of data, with notes")
    split: str = "val"
    size: int = Field(224, ge=16, description="pixels")


def evaluate(given: TaskInputs) -> None:
    """Write a row for every block: how much of the length the norm of CLS tells, and the mean length as a baseline."""
    import numpy as np  # records import nothing heavy

    store, notes, rows = given.features["val"], given.labels["val"], []
    lengths = np.array([len(notes.note(index)) for index in range(len(notes))], np.float64)
    for block in store.blocks:
        norms = np.linalg.norm(np.asarray(store.cls(block), np.float64), axis=1)
        told = percent_told(norms / norms.mean() * lengths.mean(), lengths)
        rows.append(EvalResult("letters told", told, LENGTH.name, str(block), split=given.settings.split, n=len(notes),
                               **given.context))  # fmt: skip
    write_rows(given.out / "rows.json", [*rows, rows[0].baseline("mean length", percent_told(lengths.mean(), lengths))])


def percent_told(told: NDArray[np.float64] | float, lengths: NDArray[np.float64]) -> float:
    """Percent of the letters that are right in number: 100 less the mean error over the mean length."""
    return float(100 * (1 - abs(told - lengths).mean() / lengths.mean()))


LENGTH = EvaluationTask(
    name="note_length",
    measures="the length of notes",
    help="say how well the CLS token tells how long an image's note is",
    example="evaluate.note_length.size=448",
    section=LengthSection,
    label="notes",
    data_kind="beside",
    splits=lambda section: {"val": section.split},
    features=lambda section: (FeatureRequest("val", section.split, {"mode": "square", "size": section.size}),),
    sizes=lambda section: {"size": section.size},
    evaluate=evaluate,
    headline=TaskMetric("letters told"),
    baselines=("mean length",),
    look={},
)
