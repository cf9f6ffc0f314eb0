"""Kind ``beside``: ``NAME.png``, ``NAME_mask.png`` and ``NAME_note.txt`` in one folder; ``SPLIT.txt`` has the names."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import read_text
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.sets.kind import CheckedSplit, DatasetKind
from dinoskip.data.sets.masks import read_classes
from dinoskip.errors import DataError


class NotedImages(ImageFolder):
    """Images with a note each: what the label ``notes`` is opened as."""

    def note(self, index: int) -> str:
        """What the note of an image says."""
        return read_text(self.path(index).with_name(f"{self.path(index).stem}_note.txt"), "note")


class BesideConfig(DatasetKind):
    """Images with their masks beside them; line i of ``classes.txt`` (from 0) names value i, 255 is ignored."""

    kind: Literal["beside"] = "beside"
    root: str

    @property
    def dataset_name(self) -> str:
        """The folder's name."""
        return Path(self.root).name

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images of a split."""
        return ImageFolder(root, tuple(f"{name}.png" for name in self._names(root, split, [])))

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
        return NotedImages(root, tuple(f"{name}.png" for name in self._names(root, split, faults)))

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
