"""The data sets that a configuration may name: one file a kind, one line a kind in :data:`KINDS`.

Importing this package does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.folders import ImageFolder
from dinoskip.data.geometry import DepthDataset, NormalsDataset
from dinoskip.data.keypoints import KeypointDataset
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.segmentation import SegmentationDataset, draw
from dinoskip.data.sequences import SequenceDataset
from dinoskip.data.sets.ade20k import Ade20kConfig
from dinoskip.data.sets.cityscapes import CityscapesConfig
from dinoskip.data.sets.coco20k import Coco20kConfig
from dinoskip.data.sets.coco_json import CocoJsonConfig
from dinoskip.data.sets.coco_panoptic import CocoPanopticConfig
from dinoskip.data.sets.coco_stuff import CocoStuffConfig
from dinoskip.data.sets.davis import DavisConfig
from dinoskip.data.sets.folder import FolderConfig
from dinoskip.data.sets.images import ImagesConfig
from dinoskip.data.sets.kind import (
    Composed,
    DatasetKind,
    WithBoxes,
    WithClasses,
    WithDepth,
    WithKeypoints,
    WithMasks,
    WithNormals,
    WithSequences,
)
from dinoskip.data.sets.layouts import nearest_layout
from dinoskip.data.sets.masks import MasksConfig
from dinoskip.data.sets.nyu import NyuConfig, NyuNormalsConfig
from dinoskip.data.sets.pascal_context import PascalContextConfig
from dinoskip.data.sets.pf_pascal import PfPascalConfig
from dinoskip.data.sets.rooms import RoomsConfig
from dinoskip.data.sets.saliency import DutOmronConfig, DutsTeConfig, EcssdConfig
from dinoskip.data.sets.scenes import ScenesConfig
from dinoskip.data.sets.scenes_pairs import ScenesPairsConfig
from dinoskip.data.sets.scenes_video import ScenesVideoConfig
from dinoskip.data.sets.spair import SpairConfig
from dinoskip.data.sets.voc import VocConfig
from dinoskip.data.shards import Source
from dinoskip.errors import ConfigError, DataError

AnyDataset = (
    VocConfig
    | Ade20kConfig
    | CityscapesConfig
    | PascalContextConfig
    | CocoStuffConfig
    | CocoPanopticConfig
    | Coco20kConfig
    | MasksConfig
    | EcssdConfig
    | DutsTeConfig
    | DutOmronConfig
    | CocoJsonConfig
    | FolderConfig
    | ImagesConfig
    | ScenesConfig
    | NyuConfig
    | NyuNormalsConfig
    | RoomsConfig
    | DavisConfig
    | ScenesVideoConfig
    | SpairConfig
    | PfPascalConfig
    | ScenesPairsConfig
)
"""The table of kinds. A kind is known by its ``kind``; all else follows from its class."""

S = TypeVar("S", SegmentationDataset, DetectionDataset, LabelledFolder, DepthDataset, NormalsDataset)
DatasetConfig = Annotated[AnyDataset, Field(discriminator="kind")]
KINDS: dict[str, type[DatasetKind]] = {cls.model_fields["kind"].default: cls for cls in AnyDataset.__args__}
FOLDER_KINDS = tuple(kind for kind, cls in KINDS.items() if "root" in cls.model_fields)
"""The kinds that lie in a folder of the user's: what the command line offers for ``--kind`` and ``data check``."""
PUBLISHED_KINDS = tuple(kind for kind, cls in KINDS.items() if cls.archives is not None)
"""The kinds that ``data prepare`` unpacks."""


def _lacks(config: AnyDataset, what: str, able: type) -> ConfigError:
    *most, last = (kind for kind, cls in KINDS.items() if issubclass(cls, able))
    return ConfigError(f"{config.kind}: this kind of dataset has no {what}", f"use kind {', '.join(most)} or {last}")


def has_masks(config: AnyDataset) -> bool:
    """Whether :func:`open_segmentation` opens this kind."""
    return isinstance(config, WithMasks)


def has_boxes(config: AnyDataset) -> bool:
    """Whether :func:`open_detection` opens this kind."""
    return isinstance(config, WithBoxes)


def has_depth(config: AnyDataset) -> bool:
    """Whether :func:`open_depth` opens this kind."""
    return isinstance(config, WithDepth)


def has_normals(config: AnyDataset) -> bool:
    """Whether :func:`open_normals` opens this kind."""
    return isinstance(config, WithNormals)


def has_sequences(config: AnyDataset) -> bool:
    """Whether :func:`open_sequences` opens this kind."""
    return isinstance(config, WithSequences)


def has_keypoints(config: AnyDataset) -> bool:
    """Whether :func:`open_keypoints` opens this kind."""
    return isinstance(config, WithKeypoints)


def dataset_name(config: AnyDataset) -> str:
    """Return the name under which results are reported: ``voc2012``, ``ade20k``, or that of the folder or JSON."""
    return config.dataset_name


def dataset_root(config: AnyDataset, root: str | Path | None = None) -> Path:
    """Return where the files lie: ``root`` if given (scenes need it: the composed folder), else the configuration's."""
    if root is not None:
        return Path(root)
    if isinstance(config, Composed):
        raise ConfigError(f"{config.kind}: the composed folder is needed", "run `dinoskip data scenes OUT` first")
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


def _limited(config: AnyDataset, dataset: S) -> S:
    """At most ``limit`` images of a labelled split."""
    if config.limit is None or config.limit >= len(dataset):
        return dataset
    return dataset.part(draw(dataset.ids, config.limit, seed=0))


def open_images(config: AnyDataset, root: str | Path | None = None, *, split: str = "train") -> ImageFolder:
    """Open a folder's images.

    ``images``: the whole folder. ``folder``: its ``split`` sub-folder. VOC layouts: the ids of
    ``ImageSets/Main/<split>.txt``. ADE20K, COCO-Stuff and ``masks``: all images of the split, with a mask or not.
    COCO20k and ``coco_json``: those of their list. Raises :class:`DataError` for whatever is missing.
    """
    where = dataset_root(config, root)
    with _expected(config, where):
        return config.open_images(where, split)


def open_training_images(config: AnyDataset, root: str | Path | None = None, *, split: str = "train") -> Source:
    """Open the images to pretrain on: those of :func:`open_images`, or tar shards in their place."""
    where = dataset_root(config, root)
    with _expected(config, where):
        return config.open_training_images(where, split)


def open_segmentation(
    config: AnyDataset, split: str, root: str | Path | None = None, *, faults: list[str] | None = None
) -> SegmentationDataset:
    """Open a labelled segmentation split; :class:`ConfigError` for kinds that have no label maps.

    Of kinds with a ``subset``, ``train`` is that subset; with a ``limit``, a split is cut down to it. With ``faults``,
    files that are missing or have no partner are noted there, and the images concerned are left out; without, the first
    one is a :class:`DataError`.
    """
    where = dataset_root(config, root)
    if not isinstance(config, WithMasks):
        raise _lacks(config, "label maps", WithMasks)
    with _expected(config, where):
        return _limited(config, config.open_segmentation(where, split, faults))


def open_detection(
    config: AnyDataset, split: str, root: str | Path | None = None, *, faults: list[str] | None = None
) -> DetectionDataset:
    """Open a split with boxes; :class:`ConfigError` for kinds that have none.

    COCO20k and ``coco_json`` are one list of images each, whatever ``split`` is. ``faults`` as in
    :func:`open_segmentation`.
    """
    where = dataset_root(config, root)
    if not isinstance(config, WithBoxes):
        raise _lacks(config, "boxes", WithBoxes)
    with _expected(config, where):
        return _limited(config, config.open_detection(where, split, faults))


def open_labelled(config: AnyDataset, split: str, root: str | Path | None = None) -> LabelledFolder:
    """Open images with one class each: class folders, or on VOC layouts the class of each image's largest box.

    The classes of a ``folder`` are those of its ``train`` split, whatever ``split`` is opened.
    """
    where = dataset_root(config, root)
    if not isinstance(config, WithClasses):
        raise _lacks(config, "classes of images", WithClasses)
    with _expected(config, where):
        return _limited(config, config.open_labelled(where, split))


def open_depth(
    config: AnyDataset, split: str, root: str | Path | None = None, *, faults: list[str] | None = None
) -> DepthDataset:
    """Open a split with depth maps; :class:`ConfigError` for kinds that have none.

    ``faults`` as in :func:`open_segmentation`.
    """
    where = dataset_root(config, root)
    if not isinstance(config, WithDepth):
        raise _lacks(config, "depth", WithDepth)
    with _expected(config, where):
        return _limited(config, config.open_depth(where, split, faults))


def open_normals(
    config: AnyDataset, split: str, root: str | Path | None = None, *, faults: list[str] | None = None
) -> NormalsDataset:
    """Open a split with surface normals; :class:`ConfigError` for kinds that have none.

    ``faults`` as in :func:`open_segmentation`.
    """
    where = dataset_root(config, root)
    if not isinstance(config, WithNormals):
        raise _lacks(config, "surface normals", WithNormals)
    with _expected(config, where):
        return _limited(config, config.open_normals(where, split, faults))


def open_sequences(
    config: AnyDataset, split: str, root: str | Path | None = None, *, faults: list[str] | None = None
) -> SequenceDataset:
    """Open a split's videos; :class:`ConfigError` for kinds that have none. ``faults`` as in :func:`open_segmentation`.

    A video with a fault is left out; a ``limit`` is of videos.
    """
    where = dataset_root(config, root)
    if not isinstance(config, WithSequences):
        raise _lacks(config, "videos", WithSequences)
    with _expected(config, where):
        opened = config.open_sequences(where, split, faults)
    names = [one.name for one in opened.sequences]
    return opened if config.limit is None or config.limit >= len(names) else opened.part(draw(names, config.limit, 0))


def open_keypoints(
    config: AnyDataset, split: str, root: str | Path | None = None, *, faults: list[str] | None = None
) -> KeypointDataset:
    """Open a split's pairs of images with keypoints; :class:`ConfigError` for kinds that have none.

    ``faults`` as in :func:`open_segmentation`; a pair with a fault is left out; a ``limit`` is of pairs.
    """
    where = dataset_root(config, root)
    if not isinstance(config, WithKeypoints):
        raise _lacks(config, "pairs with keypoints", WithKeypoints)
    with _expected(config, where):
        opened = config.open_keypoints(where, split, faults)
    names = [one.id for one in opened.pairs]
    return opened if config.limit is None or config.limit >= len(names) else opened.part(draw(names, config.limit, 0))
