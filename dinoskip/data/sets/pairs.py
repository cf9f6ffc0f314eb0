"""Sets of images beside mask PNGs of the same name: shared by the kinds that are laid out so."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import list_images, name_key, require_folder
from dinoskip.data.recognise.generic import MASK_ENDINGS, MASK_EXTENSIONS
from dinoskip.data.schema import violated
from dinoskip.data.segmentation import ClassMap, SegmentationDataset
from dinoskip.data.sets.kind import DatasetKind, Published
from dinoskip.errors import DataError

MASK_SUFFIX = ".png"


@dataclass(frozen=True)
class Pairs:
    """Images and masks of the same relative name without its extension, which is the id; in the order of the ids.

    ``lone_images`` and ``lone_masks`` have no partner.
    """

    ids: tuple[str, ...]
    images: tuple[Path, ...]
    masks: tuple[Path, ...]
    lone_images: tuple[Path, ...]
    lone_masks: tuple[Path, ...]


class PairFolders(NamedTuple):
    """Folders of the images and the masks of a split, and the endings of names between the id and the extension.

    Files in ``masks`` that end in ``not_masks`` are passed over, if it is given. ``mask_extension`` is that of masks.
    """

    images: Path
    masks: Path
    image_ending: str = ""
    mask_ending: str = ""
    not_masks: str = ""
    mask_extension: str = MASK_SUFFIX


def _by_id(folder: Path, ending: str, wanted: Callable[[str, str], bool]) -> dict[str, Path]:
    """Images below a folder by id, if their stem and extension are ``wanted``.

    Raises :class:`DataError` for two that differ in the extension only.
    """
    by_id: dict[str, Path] = {}
    for name in list_images(folder):
        stem, dot, extension = name.rpartition(".")
        if stem.endswith(ending) and wanted(stem, dot + extension.lower()):
            other = by_id.setdefault(stem.removesuffix(ending), folder / name)
            if other != folder / name:
                raise violated(folder / name, f"{other.name} is of the same name, and one of them is not meant")
    return by_id


def pair(folders: PairFolders) -> Pairs:
    """Pair images and masks, sub-folders included. Raises :class:`DataError` if a folder is missing or has no image.

    Masks may lie beside their images, if those have another extension, or if the masks' names have an ending.
    """
    beside, ending, extension = folders.images == folders.masks, folders.mask_ending, folders.mask_extension

    def is_photo(stem: str, its: str) -> bool:
        return not beside or (not stem.endswith(ending) if ending else its != extension)

    photos = _by_id(folders.images, folders.image_ending, is_photo)
    labels = _by_id(folders.masks, ending, lambda _, its: its == extension)
    if folders.not_masks:
        labels = {name: path for name, path in labels.items() if not name.endswith(folders.not_masks)}
    both = sorted(photos.keys() & labels.keys(), key=name_key)
    return Pairs(
        tuple(both),
        tuple(photos[name] for name in both),
        tuple(labels[name] for name in both),
        tuple(photos[name] for name in sorted(photos.keys() - labels.keys(), key=name_key)),
        tuple(labels[name] for name in sorted(labels.keys() - photos.keys(), key=name_key)),
    )


def found_names(folders: PairFolders, ending: str | None) -> PairFolders:
    """Return the folders with the ending and extension by which most masks have an image; PNG of equal names at best.

    An ``ending`` that is given stays. Raises :class:`DataError` if a folder is missing or has no image, and, where the
    ending is found, if images have further masks (``X_mask_1.png`` beside ``X_mask.png``).
    """
    beside = folders.images == folders.masks
    photos = {name.rpartition(".")[0] for name in list_images(folders.images)}
    masks = [
        (stem, f".{its.lower()}") for stem, _, its in (name.rpartition(".") for name in list_images(folders.masks))
    ]
    best, most = folders._replace(mask_ending=ending or ""), 0
    for extension in MASK_EXTENSIONS:
        stems = [stem for stem, its in masks if its == extension]
        for end in (ending,) if ending is not None else MASK_ENDINGS:
            if beside and not end and extension != MASK_SUFFIX:
                continue  # which of two extensions is the mask's, nothing says
            count = sum(stem.endswith(end) and stem.removesuffix(end) in photos for stem in stems)
            if not end and beside:
                others = {stem for stem, its in masks if its != extension}
                count = sum(stem in others for stem in stems)
            if count > most:
                best, most = folders._replace(mask_ending=end, mask_extension=extension), count
            if count and not end:
                return best  # masks of the images' own names are meant, whatever else lies there
        if most:
            if ending is None:
                _refuse_further_masks(best, stems)
            return best
    return best


def _refuse_further_masks(folders: PairFolders, stems: Sequence[str]) -> None:
    end = folders.mask_ending
    read = {stem.removesuffix(end) for stem in stems if stem.endswith(end)}
    further = [stem for stem in stems if not stem.endswith(end) and stem.rpartition(end)[0] in read]
    if further:
        raise DataError(
            f"{folders.masks / min(further)}{folders.mask_extension}: a further mask of an image that has "
            f"{min(further).rpartition(end)[0]}{end}{folders.mask_extension} ({len(further):,} are such)",
            f"merge the masks of an image into one; mask_ending={end} reads those that end so alone",
        )


def open_pairs(
    name: str,
    split: str,
    folders: PairFolders,
    classes: ClassMap,
    *,
    faults: list[str] | None = None,
) -> SegmentationDataset:
    """Open a set by its masks: every mask needs its image, an image without a mask is not part of the set.

    Raises :class:`DataError` naming the first mask without an image. With ``faults``, lone masks and lone images are
    noted there instead.
    """
    pairs, images, masks = pair(folders), folders.images, folders.masks
    if faults is not None:
        faults += [f"{path}: this mask has no image in {images}" for path in pairs.lone_masks]
        faults += [f"{path}: this image has no mask in {masks}" for path in pairs.lone_images]
    elif pairs.lone_masks:
        raise DataError(
            f"{pairs.lone_masks[0]}: this mask has no image in {images} ({len(pairs.lone_masks)} have none)"
        )
    if not pairs.ids:
        raise _no_pairs(folders)
    return SegmentationDataset(
        name=name,
        split=split,
        ids=pairs.ids,
        class_names=classes.names,
        image_paths=pairs.images,
        label_paths=pairs.masks,
        palette=classes.palette,
        remap=classes,
    )


def _no_pairs(folders: PairFolders) -> DataError:
    """The error of folders without a pair; JPEG masks are named as such."""
    text = f"{folders.masks}: no {folders.mask_extension} here has an image of the same name in {folders.images}"
    photos = {name.rpartition(".")[0] for name in list_images(folders.images)}
    names = () if folders.masks == folders.images else list_images(folders.masks)
    lossy = next((n for n in names if n.lower().endswith((".jpg", ".jpeg")) and n.rpartition(".")[0] in photos), None)
    if lossy is None:
        return DataError(text)
    return DataError(
        f"{folders.masks / lossy}: masks as JPEG are not read: it changes values, and classes that nobody drew lie "
        "along borders",
        "export them again as PNG; a copy as PNG has the wrong values, too",
    )


class PairedMasks(DatasetKind):
    """A kind of images beside mask PNGs of the same name: where they lie, and what values in masks mean."""

    @abstractmethod
    def pair_folders(self, root: Path, split: str) -> PairFolders:
        """Return where the images and masks of a split lie."""

    @abstractmethod
    def class_map(self, root: Path, folders: PairFolders) -> ClassMap:
        """Return the classes of the masks in these folders."""

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open all images of a split, with a mask or not."""
        return ImageFolder.open(self.pair_folders(root, split).images)

    def open_segmentation(self, root: Path, split: str, faults: list[str] | None) -> SegmentationDataset:
        """Open a split; train may be a subset."""
        folders = self.pair_folders(root, split)
        dataset = open_pairs(self.dataset_name, split, folders, self.class_map(root, folders), faults=faults)
        return self.subsample(dataset)

    def subsample(self, dataset: SegmentationDataset) -> SegmentationDataset:
        """Return what is used of a split: all of it, unless a kind is :class:`TrainSubset` first."""
        return dataset


def known_split(kind: str, split: str, splits: tuple[str, ...]) -> None:
    """Raise :class:`DataError` unless the kind has this split."""
    if split not in splits:
        raise DataError(f"{kind}: there is no split {split!r}", f"there are {' and '.join(splits)}")


COCO_SITE = "http://images.cocodataset.org"
COCO_2017 = (
    Published(f"{COCO_SITE}/zips/train2017.zip", ("train2017",), "cced6f7f71b7629ddf16f17bbcfab6b2"),
    Published(f"{COCO_SITE}/zips/val2017.zip", ("val2017",), "442b8da7639aecaf257c1dceb8ba8c80"),
)
"""The archives of the images of COCO 2017."""


def coco_images(root: Path, part: str) -> Path:
    """Return the folder of the images of ``train2017`` and its like: below ``root`` or ``root/images``."""
    require_folder(root, "a COCO folder")
    return root / part if (root / part).is_dir() else root / "images" / part
