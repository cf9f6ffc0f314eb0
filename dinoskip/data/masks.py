"""Sets of images beside mask PNGs of the same name: ADE20K, COCO-Stuff, and any folder of one's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dinoskip.data.classmaps import ClassMap, StuffClasses, class_map
from dinoskip.data.folders import list_images, name_key, require_folder
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.subsets import draw
from dinoskip.errors import DataError

ADE20K_FOLDERS = {"train": "training", "val": "validation"}
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


def _by_id(folder: Path) -> dict[str, Path]:
    """Images below a folder by relative name without extension; of two that differ in it only, the first by name."""
    found: dict[str, Path] = {}
    for name in list_images(folder):
        found.setdefault(name.rpartition(".")[0], folder / name)
    return found


def pair(images: Path, masks: Path) -> Pairs:
    """Pair two folders, sub-folders included. Raises :class:`DataError` if one is missing or holds no image."""
    photos, labels = _by_id(images), {i: p for i, p in _by_id(masks).items() if p.suffix.lower() == MASK_SUFFIX}
    both = sorted(photos.keys() & labels.keys(), key=name_key)
    return Pairs(
        tuple(both),
        tuple(photos[name] for name in both),
        tuple(labels[name] for name in both),
        tuple(photos[name] for name in sorted(photos.keys() - labels.keys(), key=name_key)),
        tuple(labels[name] for name in sorted(labels.keys() - photos.keys(), key=name_key)),
    )


def open_pairs(
    name: str,
    split: str,
    images: Path,
    masks: Path,
    classes: ClassMap,
    *,
    faults: list[str] | None = None,
) -> SegmentationDataset:
    """Open a set by its masks: every mask needs its image, an image without a mask is not part of the set.

    Raises :class:`DataError` naming the first mask without an image. With ``faults``, lone masks and lone images are
    noted there instead.
    """
    pairs = pair(images, masks)
    if faults is not None:
        faults += [f"{path}: this mask has no image in {images}" for path in pairs.lone_masks]
        faults += [f"{path}: this image has no mask in {masks}" for path in pairs.lone_images]
    elif pairs.lone_masks:
        raise DataError(
            f"{pairs.lone_masks[0]}: this mask has no image in {images} ({len(pairs.lone_masks)} have none)"
        )
    if not pairs.ids:
        raise DataError(f"{masks}: no {MASK_SUFFIX} here has an image of the same name in {images}")
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


def subset_of(dataset: SegmentationDataset, count: int, seed: int) -> SegmentationDataset:
    """Return ``count`` images of a set, drawn by :func:`dinoskip.data.subsets.draw`."""
    chosen = draw(dataset.ids, count, seed)
    return replace(
        dataset,
        ids=tuple(dataset.ids[i] for i in chosen),
        image_paths=tuple(dataset.image_paths[i] for i in chosen),
        label_paths=tuple(dataset.label_paths[i] for i in chosen),
        drawn=f"{count} of {len(dataset)} by seed {seed}",
    )


def known_split(kind: str, split: str, splits: tuple[str, ...]) -> None:
    """Raise :class:`DataError` unless the kind has this split."""
    if split not in splits:
        raise DataError(f"{kind}: there is no split {split!r}", f"there are {' and '.join(splits)}")


def ade20k_folders(root: Path, split: str) -> tuple[Path, Path]:
    """Return the image and mask folder of train (20,210) or val (2,000).

    ``root`` is ADEChallengeData2016 or the folder that holds it.
    """
    known_split("ade20k", split, tuple(ADE20K_FOLDERS))
    require_folder(root, "ADEChallengeData2016")
    inner = root / "ADEChallengeData2016"
    base, name = inner if inner.is_dir() else root, ADE20K_FOLDERS[split]
    return base / "images" / name, base / "annotations" / name


def coco_images(root: Path, part: str) -> Path:
    """Where the images of ``train2017`` and its like lie: below ``root`` or ``root/images``."""
    require_folder(root, "a COCO folder")
    return root / part if (root / part).is_dir() else root / "images" / part


def coco_stuff_name(classes: StuffClasses) -> str:
    """``coco_stuff`` for the usual 171 classes, else ``coco_stuff27`` and so on: other classes, other numbers."""
    return "coco_stuff" if classes == "171" else f"coco_stuff{classes}"


def coco_stuff_folders(root: Path, split: str) -> tuple[Path, Path]:
    """Return the image and mask folder of train (118,287) or val (5,000) of 2017."""
    known_split("coco_stuff", split, ("train", "val"))
    return coco_images(root, f"{split}2017"), root / "stuffthingmaps" / f"{split}2017"


def read_classes(path: Path) -> tuple[str, ...]:
    """Class names of a list, one a line; :class:`DataError` if it is missing, empty, repeating or too long."""
    try:
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the list of classes cannot be read: {error}", "one class name a line") from error
    if not names or len(set(names)) != len(names) or len(names) > 255:
        raise DataError(f"{path}: expected 1 to 255 different class names, one a line")
    return names


def own_classes(path: Path, first: int) -> ClassMap:
    """Read a list of classes: line i (from 0) names value ``first + i``; 255 and values below ``first`` are ignored.

    Errors as :func:`read_classes`.
    """
    names = read_classes(path)
    if first + len(names) > 255:
        raise DataError(f"{path}: {len(names)} classes from value {first} on do not fit below 255")
    return class_map(names, first, (*range(first), 255))
