"""The data sets that a configuration may name: ours, one file and one line a kind, and those of plug-ins.

Importing this package does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args

from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.orientation import Oriented, with_orientation
from dinoskip.data.segmentation import SegmentationDataset, draw
from dinoskip.data.sets.ade20k import Ade20kConfig
from dinoskip.data.sets.cityscapes import CityscapesConfig
from dinoskip.data.sets.coco import CocoConfig
from dinoskip.data.sets.coco20k import Coco20kConfig
from dinoskip.data.sets.coco_json import CocoJsonConfig
from dinoskip.data.sets.coco_panoptic import CocoPanopticConfig
from dinoskip.data.sets.coco_stuff import CocoStuffConfig
from dinoskip.data.sets.cvat import CvatConfig
from dinoskip.data.sets.folder import FolderConfig
from dinoskip.data.sets.images import ImagesConfig
from dinoskip.data.sets.kind import DatasetKind, Synthetic
from dinoskip.data.sets.labels import OF_A_SPLIT, Label
from dinoskip.data.sets.layouts import nearest_layout
from dinoskip.data.sets.masks import MasksConfig
from dinoskip.data.sets.pascal_context import PascalContextConfig
from dinoskip.data.sets.saliency import DutOmronConfig, DutsTeConfig, EcssdConfig
from dinoskip.data.sets.scenes import ScenesConfig
from dinoskip.data.sets.supervisely import SuperviselyConfig
from dinoskip.data.sets.voc import VocConfig
from dinoskip.data.sets.voc_xml import VocXmlConfig
from dinoskip.data.sets.yolo import YoloConfig
from dinoskip.data.shards import Source, TarShards
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.pixel_range import PIXEL_RANGE, RangedPath
from dinoskip.plugins import ByName, Table
from dinoskip.runtime.console import log

AnyDataset = (
    VocConfig
    | Ade20kConfig
    | CityscapesConfig
    | PascalContextConfig
    | CocoStuffConfig
    | CocoPanopticConfig
    | CocoConfig
    | Coco20kConfig
    | MasksConfig
    | EcssdConfig
    | DutsTeConfig
    | DutOmronConfig
    | CocoJsonConfig
    | YoloConfig
    | SuperviselyConfig
    | CvatConfig
    | VocXmlConfig
    | FolderConfig
    | ImagesConfig
    | ScenesConfig
)
"""Our own kinds. A kind is known by its ``kind``; all else follows from its class."""

D = TypeVar("D")
DatasetConfig = Annotated[AnyDataset, Field(discriminator="kind"), ByName("data_kinds", DatasetKind, "kind")]
KINDS: Mapping[str, type[DatasetKind]] = Table(
    "data_kinds", {cls.model_fields["kind"].default: cls for cls in get_args(AnyDataset)}, DatasetKind
)


def synthetic_kinds() -> tuple[str, ...]:
    """The kinds that are made from photographs inside installed packages."""
    return tuple(kind for kind, cls in KINDS.items() if issubclass(cls, Synthetic))


def folder_kinds() -> tuple[str, ...]:
    """The kinds that lie in a folder of the user's: what the command line offers for ``--kind`` and ``data check``."""
    return tuple(kind for kind, cls in KINDS.items() if "root" in cls.model_fields)


def published_kinds() -> tuple[str, ...]:
    """The kinds that ``data prepare`` unpacks."""
    return tuple(kind for kind, cls in KINDS.items() if cls.archives is not None)


def dataset_root(config: AnyDataset, root: str | Path | None = None) -> Path:
    """Return where the files lie: ``root`` if given (scenes need it: the composed folder), else the configuration's."""
    if root is not None:
        return Path(root)
    if isinstance(config, Synthetic):
        raise ConfigError(
            f"{config.kind}: the synthetic set's folder is needed", "run `dinoskip data scenes OUT` first"
        )
    return Path(config.root).expanduser()


@contextmanager
def _expected(config: AnyDataset, root: Path) -> Iterator[None]:
    """Add to what is missing a hint of what is there instead."""
    try:
        yield
    except DataError as error:
        hint = None if error.hint else nearest_layout(root, config.kind)
        if hint is None:
            raise
        raise DataError(error.message, hint) from error


def open_images(config: AnyDataset, root: str | Path | None = None, *, split: str = "train") -> ImageFolder:
    """Open the images of a split, labelled or not.

    ``images``: the whole folder. ``folder``: its ``split`` sub-folder. VOC layouts: the ids of
    ``ImageSets/Main/<split>.txt``. ADE20K, COCO-Stuff and ``masks``: all images of the split, with a mask or not.
    COCO20k and ``coco_json``: those of their list. Raises :class:`DataError` for whatever is missing.
    """
    where = dataset_root(config, root)
    with _expected(config, where):
        return _ranged(config, config.open_images(where, split))


def open_training_images(config: AnyDataset, root: str | Path | None = None, *, split: str = "train") -> Source:
    """Open the images to pretrain on: those of :func:`open_images`, or tar shards in their place."""
    where = dataset_root(config, root)
    with _expected(config, where):
        return _ranged(config, config.open_training_images(where, split))


def open_labels(
    label: Label[D],
    config: AnyDataset,
    split: str,
    root: str | Path | None = None,
    *,
    faults: list[str] | None = None,
) -> D:
    """Open a split with its labels; :class:`ConfigError` for kinds that have none of this label.

    Of kinds with a ``subset``, ``train`` is that subset; with a ``limit``, a split is cut down to it. With ``faults``,
    files that are missing or have no partner are noted there, and the images concerned are left out; without, the first
    one is a :class:`DataError`, or left out and counted where the settings say ``skip_broken``. Kinds that are one
    list of images, such as ``coco_json``, are the same in any split.
    """
    where = dataset_root(config, root)
    if not label.given_by(config):
        *most, last = (kind for kind, cls in KINDS.items() if label.given_by(cls))
        text = f"{config.kind}: this kind of dataset has no {label.what}"
        raise ConfigError(text, f"use kind {', '.join(most)} or {last}")
    skips, noted = config.skip_broken and faults is None, list[str]()
    with _expected(config, where):
        opened = getattr(config, label.method)(where, split, noted if skips else faults)
        _check_split(label, config, opened)
        opened = _ranged(config, opened)
        if isinstance(opened, Oriented):
            known: Any = opened
            if isinstance(opened, SegmentationDataset) and config.mask_turn != 1:
                known = replace(opened, turn=config.mask_turn)
            opened = with_orientation(known, config.label_orientation, f"{where}: {split}", faults)
        if skips:
            opened = without_broken(label, opened, noted, f"{where}: {split}")
    items = label.items(opened)
    if config.limit is not None and config.limit < len(items):
        opened = opened.part(draw(items, config.limit, seed=0))
    found: D = opened
    return found


R = TypeVar("R")


def _ranged(config: Any, opened: R) -> R:
    """Add the range of pixels in the settings to an opened split or source: paths of images carry it to the decoder.

    Raises :class:`ConfigError` for kinds whose images are read without it.
    """
    white, known = config.pixel_range, cast(Any, opened)
    if white is None:
        return opened
    if isinstance(opened, ImageFolder | TarShards):
        return cast(R, replace(known, root=RangedPath.of(known.root, white)))
    if "image_paths" not in {field.name for field in fields(known)}:
        raise ConfigError(f"{config.kind}: images of this kind are read without pixel_range", f"use {PIXEL_RANGE}")
    return cast(R, replace(known, image_paths=tuple(RangedPath.of(path, white) for path in known.image_paths)))


def _check_split(label: Label[Any], config: DatasetKind, opened: Any) -> None:
    """Refuse what a stranger's kind opens a split as, if the pipeline could not use it later."""
    if lacking := [name for name in OF_A_SPLIT if not hasattr(opened, name)]:
        raise ConfigError(
            f"{type(config).__name__}.{label.method}: {type(opened).__name__} has no {' and no '.join(lacking)}",
            "derive it from dinoskip.data.labelled_images.LabelledImages, which has",
        )


def without_broken(label: Label[Any], opened: Any, found: list[str], where: str) -> Any:
    """A split without what cannot be read: every image is decoded with its label, every frame of a video.

    ``found`` says what has been left out already; what is left out here is added. ``where`` names the split. Raises
    :class:`DataError` if nothing is left.
    """
    _, read = label.count(opened)
    kept = []
    for position, indices in enumerate(label.indices(opened)):
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
