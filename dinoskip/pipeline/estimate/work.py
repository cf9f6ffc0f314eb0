"""Work of the stages of a study: images that pass through networks, counted in the data sets, and features read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dinoskip.data.sets import open_labels, open_training_images
from dinoskip.data.sets.kind import Synthetic
from dinoskip.data.sets.labels import LABELS
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.images import image_size
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stages.accuracy import AccuracySettings
from dinoskip.pipeline.stages.settings import FeatureSettings, TaskSettings
from dinoskip.pipeline.variants import Variant
from dinoskip.settings.networks import Network, network_of_config
from dinoskip.settings.vit_config import VitConfig

IMAGENET = {"train": 1_281_167, "val": 50_000}  # images of ILSVRC2012, as published
CLASSES = 1000  # of ImageNet-1k
_PHOTOGRAPH, _COCO = (375, 500), (480, 640)  # most of VOC and ADE20K; of COCO


@dataclass(frozen=True)
class PassedImages:
    """Images that a network sees: how many, patches of each, and of how many blocks features are taken."""

    network: Network
    images: int
    tokens: int
    blocks: int

    @property
    def flop(self) -> float:
        """Operations of the forward passes."""
        return float(self.network.flops(self.tokens)) * self.images

    @property
    def values(self) -> float:
        """Numbers in the features of all patches."""
        return float(self.images) * self.tokens * self.blocks * self.network.width


def network_of(variant: Variant | None) -> Network:
    """The network of a variant: its own, or its backbone's as far as it is known; else a ViT-S/16."""
    known = None if variant is None else variant.network
    return known or network_of_config(VitConfig())


class StudyImages:
    """Images of a study's data sets, listed where they are; of embedded sets as their settings say.

    With ``assume`` those of a set that is not there are counted as published, ImageNet-1k's where nothing is; without,
    :class:`DataError` says what is missing. ``assumed`` are the names of the sets so counted.
    """

    def __init__(self, study: StudyBase, *, assume: bool = False) -> None:
        self.data, self.assume, self.assumed = study.data, assume, set[str]()
        self._opened: dict[tuple[str, str, str], Any] = {}

    def count(self, name: str, split: str, use: str) -> int:
        """Images of a split, its subset or limit where one is asked for."""
        opened, config = self._open(name, split, use), self.data[name]
        return _published(config, split, use) if opened is None else len(opened)

    def sides(self, name: str, split: str, use: str) -> tuple[int, int]:
        """(height, width): of the first image, as composed, or as most of a kind that is not there are."""
        config: Any = self.data[name]
        if isinstance(config, Synthetic):
            return config.size, config.size  # type: ignore[attr-defined]
        opened = self._open(name, split, use)
        if opened is not None:
            return image_size(opened.path(0))
        return config.image_size or (_COCO if config.kind.startswith("coco") else _PHOTOGRAPH)

    def classes(self, name: str) -> int:
        """Classes of images; ImageNet-1k's of a set that is not there."""
        opened = self._open(name, "train", "classes")
        return CLASSES if opened is None else len(opened.class_names)

    def _open(self, name: str, split: str, use: str) -> Any:
        """A split; None of an embedded set, and with ``assume`` of one that is not there."""
        config = self.data[name]
        if isinstance(config, Synthetic):
            return None
        if (name, split, use) not in self._opened:
            try:
                opened = (
                    open_training_images(config, split=split)
                    if use == "pretraining"
                    else open_labels(LABELS[use], config, split)
                )
            except (ConfigError, DataError):
                if not self.assume:
                    raise
                self.assumed.add(name)
                opened = None
            self._opened[name, split, use] = opened
        return self._opened[name, split, use]


def _published(config: Any, split: str, use: str) -> int:
    """Images of a split as its authors say, or its settings; else ImageNet-1k's."""
    least = [] if use == "pretraining" else [getattr(config, "limit", None)]
    if split == "train" and use == "segmentation":
        least, split = [*least, getattr(config, "subset", None)], getattr(config, "train_list", split)
    splits = config.published_splits(Path(getattr(config, "root", ".")))
    of_use = [known.expected for known in splits if (known.task, known.split) == (use, split)]
    of_split = [known.expected for known in splits if known.split == split or len(splits) == 1]
    scored = [known.expected for known in splits if known.split != "train" != split and isinstance(config, Synthetic)]
    known = [count for count in (*of_use, *of_split, *scored) if count]
    return int(min([known[0] if known else IMAGENET.get(split, IMAGENET["val"]), *(most for most in least if most)]))


def windows_of(sides: tuple[int, int], size: int, stride: int) -> int:
    """Windows of an image whose short side is brought to ``size``, one every ``stride`` pixels."""
    scaled = (int(side * size / min(sides) + 0.5) for side in sides)
    return math.prod(1 + math.ceil(max(side - size, 0) / stride) for side in scaled)


@dataclass(frozen=True)
class _SectionPasses:
    """The settings of a task that say how many images it sends through the network; 0 and None where it has none."""

    flip_test: bool = False
    stride: int = 0
    iterations: int = 0
    batch_size: int = 0
    epochs: float = 0
    size: int = 0
    crop: tuple[int, int] | None = None
    short_side: int = 0

    @classmethod
    def of(cls, section: Any) -> _SectionPasses:
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in vars(section).items() if name in known and value})


class StudyWork:
    """Images that the nodes of one study pass through their networks, and features that they read."""

    def __init__(self, images: StudyImages, variants: Sequence[Variant], nodes: Sequence[Node]) -> None:
        self.images = images
        self.networks = {variant.name: network_of(variant) for variant in variants}
        self.stores = {
            node.id: self._features(node, node.settings) for node in nodes if isinstance(node.settings, FeatureSettings)
        }

    def passed(self, node: Node) -> list[PassedImages]:
        """The images that an evaluating node sends through its network, in windows or while it fits and scores."""
        if node.id in self.stores:
            return [self.stores[node.id]]
        settings = node.settings
        if isinstance(settings, TaskSettings) and settings.network and not self.read(node):
            return [self._live(node, settings)]
        if isinstance(settings, AccuracySettings):
            size = settings.job.supervise.augment.size
            return [self._of(node, (), self.images.count(settings.dataset, "val", "classes"), (size, size))]
        return self.windows(node)

    def read(self, node: Node) -> list[PassedImages]:
        """The features that a node reads, of stores and of windows that it makes."""
        return [self.stores[source] for source in node.inputs.values() if source in self.stores] + self.windows(node)

    def windows(self, node: Node) -> list[PassedImages]:
        """The features that a node computes as it reads them."""
        settings = node.settings
        parts = settings.windows.values() if isinstance(settings, TaskSettings) else ()
        return [self._features(node, part) for part in parts]

    def _features(self, node: Node, wanted: FeatureSettings) -> PassedImages:
        """Images through a network for features."""
        where = self._data(node), wanted.split, wanted.use
        native = wanted.transform["mode"] in {"native", "rounded"}
        sides = self.images.sides(*where) if native else (wanted.transform.get("size", 224),) * 2
        return self._of(node, wanted.blocks, self.images.count(*where), sides)

    def _live(self, node: Node, settings: TaskSettings) -> PassedImages:
        """Training images as often as the section says, and the scored ones once, or twice where they are flipped."""
        record, given = settings.record, _SectionPasses.of(settings.section)
        name, splits = self._data(node), list(record.splits(settings.section).values())
        images = self.images.count(name, splits[-1], record.label) * (2 if given.flip_test else 1)
        if given.stride:
            images *= windows_of(self.images.sides(name, splits[-1], record.label), given.size, given.stride)
        if given.iterations:
            images += given.iterations * given.batch_size
        elif given.epochs:
            images += round(self.images.count(name, splits[0], record.label) * given.epochs)
        sides = (given.size, given.size) if given.size else given.crop
        height, width = sides or self.images.sides(name, splits[-1], record.label)
        scale = given.short_side / min(height, width) if given.short_side else 1
        return self._of(node, settings.study.blocks, images, (round(height * scale), round(width * scale)))

    def _of(self, node: Node, blocks: str | Sequence[int], images: int, sides: tuple[int, int]) -> PassedImages:
        network = self.networks.get(node.variant) or network_of(None)
        count = network.depth if isinstance(blocks, str) else len(blocks)
        return PassedImages(network, images, network.tokens(*sides), count)

    def _data(self, node: Node) -> str:
        """The name of the data set that a node reads."""
        if isinstance(node.settings, TaskSettings):
            return str(node.settings.context["dataset"])
        last = node.id.rpartition("/")[2]
        return next(
            name for name in sorted(self.images.data, key=len, reverse=True) if f"{last}-".startswith(f"{name}-")
        )
