"""The datasets a configuration may name, and how each is opened for training and for evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dinoskip.config import Config
from dinoskip.data.detection import DetectionDataset, dominant_labels, voc_detection
from dinoskip.data.folders import ImageFolder, LabelledFolder
from dinoskip.data.scenes import ScenesConfig
from dinoskip.data.segmentation import SegmentationDataset, voc_segmentation
from dinoskip.data.sources import Source, open_source
from dinoskip.data.voc import FileTable, read_list, voc_folder
from dinoskip.errors import ConfigError

SCENES_YEAR = 2012


class ImagesConfig(Config):
    """Any folder of images, searched with its sub-folders; no label needed."""

    kind: Literal["images"] = "images"
    root: str


class FolderConfig(Config):
    """A folder with ``train`` and ``val``, each with one sub-folder per class (the ImageNet layout)."""

    kind: Literal["folder"] = "folder"
    root: str


class VocConfig(Config):
    """A VOCdevkit (or its ``VOC<year>`` folder)."""

    kind: Literal["voc"] = "voc"
    root: str
    year: Literal[2007, 2012] = 2012


DatasetConfig = Annotated[ImagesConfig | FolderConfig | VocConfig | ScenesConfig, Field(discriminator="kind")]
AnyDataset = ImagesConfig | FolderConfig | VocConfig | ScenesConfig


def dataset_name(config: AnyDataset) -> str:
    """Return the name under which results are reported: ``voc2012``, ``scenes``, or the folder's own name."""
    if isinstance(config, ScenesConfig):
        return "scenes"
    if isinstance(config, VocConfig):
        return f"voc{config.year}"
    return Path(config.root).name


def dataset_root(config: AnyDataset, root: str | Path | None = None) -> Path:
    """Return where the files lie: ``root`` if given (scenes need it: the composed folder), else the configuration's."""
    if root is not None:
        return Path(root)
    if isinstance(config, ScenesConfig):
        raise ConfigError("scenes: the composed folder is needed", "run `dinoskip data scenes OUT` first")
    return Path(config.root).expanduser()


def _year(config: VocConfig | ScenesConfig) -> int:
    return config.year if isinstance(config, VocConfig) else SCENES_YEAR


def open_images(config: AnyDataset, root: str | Path | None = None, *, split: str = "train") -> ImageFolder:
    """Open a folder's images.

    ``images``: the whole folder. ``folder``: its ``split`` sub-folder. VOC layouts: the ids of
    ``ImageSets/Main/<split>.txt``. Raises :class:`DataError` for whatever is missing.
    """
    where = dataset_root(config, root)
    if isinstance(config, ImagesConfig):
        return ImageFolder.open(where)
    if isinstance(config, FolderConfig):
        return ImageFolder.open(where / split)
    folder = voc_folder(where, _year(config))
    table = FileTable.images(folder / "JPEGImages")
    paths = table.paths(read_list(folder, "Main", split), ".jpg")
    return ImageFolder(table.folder, tuple(path.name for path in paths))


def open_training_images(config: AnyDataset, root: str | Path | None = None, *, split: str = "train") -> Source:
    """Open the images to pretrain on: those of :func:`open_images`, or tar shards in their place."""
    where = dataset_root(config, root)
    if isinstance(config, ImagesConfig | FolderConfig):
        return open_source(where if isinstance(config, ImagesConfig) else where / split)
    return open_images(config, root, split=split)


def open_segmentation(config: AnyDataset, split: str, root: str | Path | None = None) -> SegmentationDataset:
    """Open a labelled segmentation split; :class:`ConfigError` for kinds that have no label maps."""
    where = dataset_root(config, root)
    if isinstance(config, ImagesConfig | FolderConfig):
        raise ConfigError(f"{config.kind}: this kind of dataset has no label maps", "use kind voc or scenes")
    return voc_segmentation(where, split, _year(config), name=dataset_name(config))


def open_detection(config: AnyDataset, split: str, root: str | Path | None = None) -> DetectionDataset:
    """Open a split with boxes; :class:`ConfigError` for kinds that have none."""
    where = dataset_root(config, root)
    if isinstance(config, ImagesConfig | FolderConfig):
        raise ConfigError(f"{config.kind}: this kind of dataset has no boxes", "use kind voc or scenes")
    return voc_detection(where, split, _year(config), name=dataset_name(config))


def open_labelled(config: AnyDataset, split: str, root: str | Path | None = None) -> LabelledFolder:
    """Open images with one class each: class folders, or on VOC layouts the class of each image's largest box.

    The classes of a ``folder`` are those of its ``train`` split, whatever ``split`` is opened.
    """
    where = dataset_root(config, root)
    if isinstance(config, ImagesConfig):
        raise ConfigError("images: this kind of dataset has no classes", "use kind folder, voc or scenes")
    if isinstance(config, FolderConfig):
        train = LabelledFolder.open(where / "train")
        return train if split == "train" else LabelledFolder.open(where / split, train.class_names)
    boxes = open_detection(config, split, root)
    labels, classes = dominant_labels(boxes)
    folder = boxes.image_paths[0].parent
    return LabelledFolder(folder, tuple(path.name for path in boxes.image_paths), labels, classes)


def annotation_of(image: Path) -> Path:
    """Where the boxes of an image of a VOC layout are, if it has any."""
    return image.parent.parent / "Annotations" / f"{image.stem}.xml"
