"""Definition of a kind of data set: a configuration class that opens its images and labels, and its published files.

A kind is one class in one file: of this package, in the table of ``dinoskip/data/sets/__init__.py``, or of a plug-in,
with an entry point of ``dinoskip.data_kinds``. It derives from :class:`DatasetKind` and has the method of each label
that it gives (:mod:`dinoskip.data.sets.labels`), such as ``open_segmentation(root, split, faults)``; opening, checking,
preparing and the command line follow from that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.segmentation import SegmentationDataset, subset_of
from dinoskip.data.sets.signatures import Signature
from dinoskip.data.shards import Source
from dinoskip.io.pixel_range import LARGEST, SMALLEST
from dinoskip.settings.config import Config, dump


class CheckedSplit(NamedTuple):
    """A split that ``data check`` looks at; ``expected`` is the published number of images, None if there is none.

    ``task`` is the name of a label, or ``images``.
    """

    task: str
    split: str
    expected: int | None = None


def splits_of(task: str, **expected: int | None) -> tuple[CheckedSplit, ...]:
    """Splits with labels of one kind, and their published numbers."""
    return tuple(CheckedSplit(task, split, count) for split, count in expected.items())


@dataclass(frozen=True)
class Published:
    """A file that is published: where, its md5 (empty: not known), and what lies where when it is in place.

    ``gives`` are paths below the data set's root. ``into`` is the folder that it is unpacked into. ``needed``: whether
    the kind cannot do without.
    """

    url: str
    gives: tuple[str, ...]
    md5: str = ""
    into: str = ""
    needed: bool = True

    @property
    def name(self) -> str:
        """Name of the file: the last part of its URL."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Archives:
    """Archives of a kind, for ``data prepare``.

    ``published`` are the files of its authors. ``folder_for`` returns the folder below the root for an archive that is
    not known by name, from its members' names. ``list_folders`` has the folders of .txt and .csv lists by name (others
    go to the root). ``in_place`` are endings of files that are read where they lie, below the root. ``finish`` makes
    below the root what is made of several archives, and says in lines what it did; it is called after every
    preparation.
    """

    published: tuple[Published, ...]
    folder_for: Callable[[Sequence[str]], str] = lambda _: ""
    list_folders: dict[str, str] = field(default_factory=dict)
    in_place: tuple[str, ...] = ()
    finish: Callable[[Path], list[str]] = lambda _: []


class DatasetKind(Config, ABC):
    """A kind of data set. Every method gets the folder ``root`` that holds it and raises :class:`DataError`.

    ``archives`` is None for kinds that have none published; ``splits`` are those that every such data set has. With a
    list for ``faults``, files that are missing or have no partner are noted there and the images concerned are left
    out; without, the first one is a :class:`DataError`.
    """

    archives: ClassVar[Archives | None] = None
    splits: ClassVar[tuple[CheckedSplit, ...]] = ()
    signatures: ClassVar[tuple[Signature, ...]] = ()
    """Rules of its own on what label files hold, beside those of each label."""
    image_size: ClassVar[tuple[int, int] | None] = None
    """Height and width of its images, where estimates of time need them and the files are not there."""
    order: ClassVar[int | None] = None
    """Its place among the kinds of plug-ins, the smallest first; None: behind those that have one, by name."""

    limit: int | None = Field(None, ge=1, description="images of every evaluated split, drawn by seed 0; null: all")
    skip_broken: bool = Field(
        False, description="leave out of an evaluated split what is broken; rows say how many (left_out)"
    )

    label_orientation: Literal["auto", "upright", "stored"] = Field(
        "auto",
        description="how masks and boxes lie of photographs that EXIF turns, where sizes do not say it: upright, as "
        "drawing tools show them; stored, on the pixels as stored; auto: as the photographs themselves show",
    )

    pixel_range: int | None = Field(
        None,
        ge=SMALLEST,
        le=LARGEST,
        description="value of images of 16 bits that is white, such as 4095 of 12 bits; null: as DINOSKIP_PIXEL_RANGE "
        "says, or 65535",
    )

    mask_turn: int = Field(
        1,
        ge=1,
        le=8,
        description="turn that masks need before they are read, by EXIF's numbers: 1 none, 2 mirrored left to right, 3 "
        "by 180 degrees, 4 mirrored top to bottom, 5 transposed, 6 and 8 by 90 degrees",
    )

    @property
    def dataset_name(self) -> str:
        """The name under which results are reported: by default the kind's."""
        return str(type(self).model_fields["kind"].default)

    @property
    def paper_name(self) -> str:
        """The name of the data set in the tables of papers; "" of what is in none."""
        return ""

    @abstractmethod
    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images of a split, labelled or not."""

    def named_classes(self, image: Path) -> frozenset[str] | None:
        """The classes that another annotation of a photograph names, to compare masks with; None: there is none."""
        return None

    def open_training_images(self, root: Path, split: str) -> Source:
        """Open the images to pretrain on: by default those of :meth:`open_images`."""
        return self.open_images(root, split)

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """Say which splits ``data check`` looks at: by default the kind's ``splits``."""
        return list(self.splits)

    def published_splits(self, root: Path) -> list[CheckedSplit]:
        """Say which splits are published, whether below ``root`` or not; by default those that are checked."""
        return self.checked_splits(root)

    def own_layout(self, root: Path) -> str:
        """Say that the set below ``root`` has a published set's layout and is another one; "" where it is not."""
        return ""


class Synthetic(DatasetKind):
    """A kind that is made from photographs inside installed packages, by a study's ``data`` stage; it has no root."""

    @property
    def recipe(self) -> dict[str, Any]:
        """The settings that its files are made by, as their folder records them."""
        return {key: value for key, value in dump(self).items() if key not in DatasetKind.model_fields}

    @abstractmethod
    def generate(self, out: Path) -> Path:
        """Make it below ``out``, complete or not at all; return the folder that the ``open_`` methods take as root."""


class SplitSynthetic(Synthetic):
    """A synthetic set whose last ``val_fraction`` images are held out; both splits have the same ``labels``."""

    labels: ClassVar[tuple[str, ...]]
    images: int = Field(default=240, ge=4, le=100_000, description="in both splits together")
    val_fraction: float = Field(default=0.25, gt=0, lt=1, description="share of the images, the last ones, held out")

    @property
    def held_out(self) -> int:
        """Number of images in the validation split."""
        return min(self.images - 1, max(1, round(self.images * self.val_fraction)))

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """List both splits with each of their labels and their number of images."""
        counts = {"train": self.images - self.held_out, "val": self.held_out}
        return [CheckedSplit(label, split, count) for label in self.labels for split, count in counts.items()]


def as_text(value: object) -> object:
    """Return a whole number as text, before it is validated: YAML reads a bare 27 as a number."""
    return str(value) if isinstance(value, int) else value


class TrainSubset(Config):
    """``subset`` images of the training split are used, drawn by ``subset_seed``; all, if it is not given."""

    subset: int | None = Field(None, ge=1, description="training images that are used; null: all")
    subset_seed: int = Field(0, ge=0, description="seed of the draw of the subset")

    def subsample(self, dataset: SegmentationDataset) -> SegmentationDataset:
        """Return the subset of a training split; other splits, and all if no number is given, as they are."""
        if self.subset is None or dataset.split != "train":
            return dataset
        return subset_of(dataset, self.subset, self.subset_seed)
