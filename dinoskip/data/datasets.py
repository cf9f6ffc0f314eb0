"""The datasets a configuration may name, and how each is opened for training and for evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dinoskip.config import Config
from dinoskip.data import coco, masks
from dinoskip.data.classmaps import ADE20K, COCO_STUFF, ClassMap, StuffClasses
from dinoskip.data.detection import DetectionDataset, dominant_labels, voc_detection
from dinoskip.data.folders import ImageFolder, LabelledFolder
from dinoskip.data.scenes import ScenesConfig
from dinoskip.data.segmentation import SegmentationDataset, voc_segmentation
from dinoskip.data.sources import Source, open_source
from dinoskip.data.voc import FileTable, read_list, voc_folder
from dinoskip.errors import ConfigError, DataError

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
    """A VOCdevkit (or its ``VOC<year>`` folder). ``train_list`` is what the split ``train`` of masks stands for."""

    kind: Literal["voc"] = "voc"
    root: str
    year: Literal[2007, 2012] = 2012
    train_list: Literal["train", "trainaug"] = "train"


class _Subset(Config):
    """``subset`` images of the training split are used, drawn by ``subset_seed``; all, if it is not given."""

    subset: int | None = Field(None, ge=1)
    subset_seed: int = Field(0, ge=0)


class Ade20kConfig(_Subset):
    """ADEChallengeData2016 (SceneParse150), or the folder that holds it."""

    kind: Literal["ade20k"] = "ade20k"
    root: str


def _text(value: object) -> object:
    """YAML reads a bare 27 as a number."""
    return str(value) if isinstance(value, int) else value


class CocoStuffConfig(_Subset):
    """A COCO folder with train2017, val2017 and stuffthingmaps."""

    kind: Literal["coco_stuff"] = "coco_stuff"
    root: str
    classes: Annotated[StuffClasses, BeforeValidator(_text)] = "171"


class MasksConfig(_Subset):
    """A folder of images and one of mask PNGs of the same names, with a list of classes. Paths are relative to root.

    ``{split}`` in a path stands for the split. Line i of ``classes`` (from 0) names value ``first_value + i``.
    """

    kind: Literal["masks"] = "masks"
    root: str
    images: str = "images/{split}"
    masks: str = "masks/{split}"
    classes: str = "classes.txt"
    first_value: int = Field(0, ge=0, le=254)


class Coco20kConfig(Config):
    """A COCO folder with train2014, annotations/instances_train2014.json and the published list of file names."""

    kind: Literal["coco20k"] = "coco20k"
    root: str
    filenames: str = coco.COCO20K_LIST


class CocoJsonConfig(Config):
    """Boxes of any JSON in COCO's format. File names in it are relative to ``root``, as is ``annotations``."""

    kind: Literal["coco_json"] = "coco_json"
    root: str
    annotations: str = "annotations.json"


AnyDataset = (
    ImagesConfig
    | FolderConfig
    | VocConfig
    | ScenesConfig
    | Ade20kConfig
    | CocoStuffConfig
    | MasksConfig
    | Coco20kConfig
    | CocoJsonConfig
)
DatasetConfig = Annotated[AnyDataset, Field(discriminator="kind")]
PairsConfig = Ade20kConfig | CocoStuffConfig | MasksConfig
BoxesConfig = Coco20kConfig | CocoJsonConfig
_NO_MASKS = "use kind voc, ade20k, coco_stuff, masks or scenes"
_NO_BOXES = "use kind voc, coco20k, coco_json or scenes"


def has_masks(config: AnyDataset) -> bool:
    """Whether :func:`open_segmentation` opens this kind."""
    return isinstance(config, VocConfig | ScenesConfig | PairsConfig)


def has_boxes(config: AnyDataset) -> bool:
    """Whether :func:`open_detection` opens this kind."""
    return isinstance(config, VocConfig | ScenesConfig | BoxesConfig)


def dataset_name(config: AnyDataset) -> str:
    """Return the name under which results are reported: ``voc2012``, ``ade20k``, or that of the folder or JSON."""
    if isinstance(config, ScenesConfig | Ade20kConfig | Coco20kConfig):
        return config.kind
    if isinstance(config, VocConfig):
        return f"voc{config.year}"
    if isinstance(config, CocoStuffConfig):
        return masks.coco_stuff_name(config.classes)
    if isinstance(config, CocoJsonConfig):
        return Path(config.annotations).stem
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
    ``ImageSets/Main/<split>.txt``. ADE20K, COCO-Stuff and ``masks``: all images of the split, with a mask or not.
    COCO20k and ``coco_json``: those of their list. Raises :class:`DataError` for whatever is missing.
    """
    where = dataset_root(config, root)
    if isinstance(config, ImagesConfig):
        return ImageFolder.open(where)
    if isinstance(config, FolderConfig):
        return ImageFolder.open(where / split)
    if isinstance(config, PairsConfig):
        return ImageFolder.open(_pair_folders(config, where, split)[0])
    if isinstance(config, BoxesConfig):
        paths = open_detection(config, split, root).image_paths
        return ImageFolder(where, tuple(path.relative_to(where).as_posix() for path in paths))
    folder = voc_folder(where, _year(config))
    table = FileTable.images(folder / "JPEGImages")
    paths = table.paths(read_list(folder, "Main", split), ".jpg")
    return ImageFolder(table.folder, tuple(path.name for path in paths))


def _pair_folders(config: PairsConfig, where: Path, split: str) -> tuple[Path, Path]:
    """Folder of images and folder of masks."""
    if isinstance(config, Ade20kConfig):
        return masks.ade20k_folders(where, split)
    if isinstance(config, CocoStuffConfig):
        return masks.coco_stuff_folders(where, split)
    return where / config.images.replace("{split}", split), where / config.masks.replace("{split}", split)


def open_training_images(config: AnyDataset, root: str | Path | None = None, *, split: str = "train") -> Source:
    """Open the images to pretrain on: those of :func:`open_images`, or tar shards in their place."""
    where = dataset_root(config, root)
    if isinstance(config, ImagesConfig | FolderConfig):
        return open_source(where if isinstance(config, ImagesConfig) else where / split)
    return open_images(config, root, split=split)


def open_segmentation(
    config: AnyDataset, split: str, root: str | Path | None = None, *, faults: list[str] | None = None
) -> SegmentationDataset:
    """Open a labelled segmentation split; :class:`ConfigError` for kinds that have no label maps.

    Of kinds with a ``subset``, ``train`` is that subset. With ``faults``, files that are missing or have no partner are
    noted there, and the images concerned are left out; without, the first one is a :class:`DataError`.
    """
    where, name = dataset_root(config, root), dataset_name(config)
    if isinstance(config, PairsConfig):
        classes = _classes(config, where)
        dataset = masks.open_pairs(name, split, *_pair_folders(config, where, split), classes, faults=faults)
        if config.subset is None or split != "train":
            return dataset
        return masks.subset_of(dataset, config.subset, config.subset_seed)
    if not isinstance(config, VocConfig | ScenesConfig):
        raise ConfigError(f"{config.kind}: this kind of dataset has no label maps", _NO_MASKS)
    if isinstance(config, VocConfig) and split == "train":
        split = config.train_list
    return voc_segmentation(where, split, _year(config), name=name, faults=faults)


def _classes(config: PairsConfig, where: Path) -> ClassMap:
    if isinstance(config, Ade20kConfig):
        return ADE20K
    if isinstance(config, CocoStuffConfig):
        return COCO_STUFF[config.classes]
    return masks.own_classes(where / config.classes, config.first_value)


def open_detection(
    config: AnyDataset, split: str, root: str | Path | None = None, *, faults: list[str] | None = None
) -> DetectionDataset:
    """Open a split with boxes; :class:`ConfigError` for kinds that have none.

    COCO20k and ``coco_json`` are one list of images each, whatever ``split`` is. ``faults`` as in
    :func:`open_segmentation`.
    """
    where, name = dataset_root(config, root), dataset_name(config)
    if isinstance(config, Coco20kConfig):
        return coco.coco20k(where, config.filenames, faults=faults)
    if isinstance(config, CocoJsonConfig):
        return coco.coco_json(where / config.annotations, where, name=name, faults=faults)
    if not isinstance(config, VocConfig | ScenesConfig):
        raise ConfigError(f"{config.kind}: this kind of dataset has no boxes", _NO_BOXES)
    return voc_detection(where, split, _year(config), name=name, faults=faults)


def open_labelled(config: AnyDataset, split: str, root: str | Path | None = None) -> LabelledFolder:
    """Open images with one class each: class folders, or on VOC layouts the class of each image's largest box.

    The classes of a ``folder`` are those of its ``train`` split, whatever ``split`` is opened.
    """
    where = dataset_root(config, root)
    if isinstance(config, FolderConfig):
        if not (where / "train").exists() and (any(where.glob("VOC2*")) or (where / "JPEGImages").is_dir()):
            raise DataError(f"{where}: has no folder train, it is laid out as Pascal VOC", "use kind voc")
        train = LabelledFolder.open(where / "train")
        return train if split == "train" else LabelledFolder.open(where / split, train.class_names)
    if not isinstance(config, VocConfig | ScenesConfig):
        raise ConfigError(
            f"{config.kind}: this kind of dataset has no classes of images", "use kind folder, voc or scenes"
        )
    boxes = open_detection(config, split, root)
    labels, classes = dominant_labels(boxes)
    folder = boxes.image_paths[0].parent
    return LabelledFolder(folder, tuple(path.name for path in boxes.image_paths), labels, classes)


def annotation_of(image: Path) -> Path:
    """Where the boxes of an image of a VOC layout are, if it has any."""
    return image.parent.parent / "Annotations" / f"{image.stem}.xml"
