"""Kind ``voc_xml``: an XML of VOC's format beside each picture, as Roboflow and LabelImg write them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from dinoskip.data.detection import DetectionDataset, read_voc_xml
from dinoskip.data.folders import ImageFolder
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.listing import list_folder, list_images
from dinoskip.data.recognise.words import SPLITS
from dinoskip.data.sets.kind import CheckedSplit, DatasetKind
from dinoskip.data.sets.masks import read_classes
from dinoskip.data.sets.voc import labelled_by_largest_box
from dinoskip.data.splits import split_path
from dinoskip.errors import DataError


class VocXmlConfig(DatasetKind):
    """Images with an XML of the same name. Paths are relative to root; ``{split}`` stands for the split.

    Classes are those of classes.txt, or by name all that occur in any split.
    """

    kind: Literal["voc_xml"] = "voc_xml"
    root: str = Field(description="folder that the paths below are relative to")
    images: str = Field("{split}", description="folder of images; {split} stands for the split")
    annotations: str | None = Field(None, description="folder of XMLs; null: beside the images")
    classes: str = Field("classes.txt", description="file with a class name a line, if there is one")

    @property
    def dataset_name(self) -> str:
        return Path(self.root).name

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open all images of a split."""
        return ImageFolder.open(split_path(root, self.images, split))

    def open_detection(self, root: Path, split: str, faults: list[str] | None) -> DetectionDataset:
        """Open a split; an image without an XML is refused, or with ``faults`` noted."""
        folder, xmls = split_path(root, self.images, split), self._xmls(root, split)
        ids, paths = [], []
        for name in list_images(folder):
            path = xmls / f"{name.rpartition('.')[0]}.xml"
            if path.is_file():
                ids.append(name)
                paths.append(path)
            elif faults is None:
                raise DataError(f"{folder / name}: has no XML of the same name in {xmls}")
            else:
                faults.append(f"{folder / name}: has no XML of the same name in {xmls}")
        images = tuple(folder / name for name in ids)
        names = self._class_names(root)
        return DetectionDataset(self.dataset_name, split, tuple(ids), images, tuple(paths), class_names=names)

    def _xmls(self, root: Path, split: str) -> Path:
        return split_path(root, self.images if self.annotations is None else self.annotations, split)

    def _class_names(self, root: Path) -> tuple[str, ...]:
        if (root / self.classes).is_file():
            return read_classes(root / self.classes)
        names: set[str] = set()
        for folder in sorted({self._xmls(root, split) for split in SPLITS}):
            others = list_folder(folder).others if folder.is_dir() else ()
            for name in others:
                if name.endswith(".xml"):
                    names.update(box.label for box in read_voc_xml(folder / name).objects)
        if not names:
            raise DataError(f"{root}: no XML has an object")
        return tuple(sorted(names))

    def open_labelled(self, root: Path, split: str, faults: list[str] | None) -> LabelledFolder:
        """Open a split with the class of each image's largest box."""
        return labelled_by_largest_box(self.open_detection(root, split, faults))

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """Train and val; without ``{split}`` in the paths, everything once."""
        splits = ("train", "val") if "{split}" in self.images else ("all",)
        return [CheckedSplit("detection", split) for split in splits]
