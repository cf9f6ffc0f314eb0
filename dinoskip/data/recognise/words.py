"""Words by which people call folders and files of labels, of images and of splits."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

_LABEL_WORDS = frozenset(
    re.findall(
        r"\w+",
        """mask masks label labels seg segs segmentation segmentations semantic semantics annotation
        annotations ann anns gt gts groundtruth instance instances panoptic depth depths disparity
        disparities normals trimap trimaps matte mattes labelmap labelmaps labelids labeltrainids
        instanceids stuffthingmaps stuffthings gtfine gtcoarse segmap segmaps saliency parts sem pixelwise""",
    )
)
_IMAGE_WORDS = frozenset(
    re.findall(
        r"\w+",
        """image images img imgs photo photos photographs picture pictures rgb jpeg jpegs jpegimages jpg leftimg8bit
        rightimg8bit sat frames input inputs camera raw original originals""",
    )
)
_IN_LABELS = frozenset(
    re.findall(
        r"\w+",
        """trainval train training val valid validation test class classes object objects aug context ground truth map
        maps color colour colors id ids new png fine coarse raw binary v""",
    )
)
"""Words that stand beside a word of labels in the name of their folder, as in SegmentationClassAug."""

ARCHIVES = frozenset(["zip", "gz", "tgz", "bz2", "xz", "7z", "rar", "lmdb", "mdb", "tfrecord", "arrow"])
"""Endings of files that hold images and are not read in place: they must be unpacked."""
HDF5 = frozenset({"h5", "hdf5", "mat"})
"""Endings of files that hold arrays, such as those of NYU Depth V2."""


def unread_container(name: str) -> str | None:
    """Advice, by its name, for a file that may hold images and is not read in place; None for all other files."""
    ending = name.lower().rpartition(".")[2]
    if ending == "parquet":
        return "Parquet files are not read: write their images to files, or to .tar shards"
    if ending in HDF5:
        return "unpack it first: NYU Depth V2 by dinoskip data prepare nyu, other arrays by their own tools"
    return "unpack it first: .tar files alone are read in place, uncompressed" if ending in ARCHIVES else None


SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
"""Names that a split's folder or list has, the usual one first."""


def words_of(name: str) -> list[str]:
    """Words of a name in lower case: divided at other signs than letters, and before capitals."""
    divided = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return re.findall(r"[a-z]+", divided.lower())


@lru_cache(maxsize=1 << 16)
def names_labels(name: str) -> bool:
    """Whether a folder or a suffix of this name is one of label maps: it has a word for them, and no foreign ones.

    ``gt_2019``, ``SegmentationClassAug`` and ``label-maps`` are; ``with_mask`` and ``depth_of_field`` are not.
    """
    whole = re.sub(r"[^a-z0-9]", "", name.lower())
    words = words_of(name)
    if whole in _LABEL_WORDS or whole.rstrip("0123456789") in _LABEL_WORDS:
        return True
    return any(word in _LABEL_WORDS for word in words) and all(word in _LABEL_WORDS | _IN_LABELS for word in words)


@lru_cache(maxsize=1 << 16)
def names_images(name: str) -> bool:
    """Whether a folder or a suffix of this name is one of images, in one of its words; not if it has one of labels."""
    words = words_of(name)
    return any(word in _IMAGE_WORDS for word in [*words, name.lower()]) and not any(w in _LABEL_WORDS for w in words)


def name_both(names: Collection[str]) -> bool:
    """Whether one of these names is of images and one of labels, so that the folders are no classes."""
    return any(map(names_images, names)) and any(map(names_labels, names))


_ROLE = re.compile(r"(?:^|[_\-. ])([A-Za-z]+[0-9]*[A-Za-z]*)$")


_NUMBERED = re.compile(r"[_\-. ][0-9]{1,3}$")


def without_role(stem: str) -> tuple[str, str]:
    """Divide a file's stem into what names the picture and the role: ``0_gtFine_labelIds`` into 0 and the rest.

    The role is '' without words for labels or images at the end.
    """
    numbered = _NUMBERED.search(stem)  # 0_mask_12 is one of several masks of 0
    base = stem[: numbered.start()] if numbered else stem
    if numbered and not ((found := _ROLE.search(base)) and found.start() and names_labels(found[1])):
        return stem, ""
    while (found := _ROLE.search(base)) and found.start() and _is_role(found[1]):
        base = base[: found.start()]
    return base, stem[len(base) :]


_LEADING = re.compile(r"([A-Za-z][A-Za-z_\-. ]*?)[_\-. ]?(?=[0-9])")


def leading_role(stem: str) -> str:
    """The words before a file's number if one of them is for labels or images: ``sync_depth_`` of sync_depth_00045."""
    found = _LEADING.match(stem)
    words = words_of(found[1]) if found else []
    return found[0] if found and any(word in _LABEL_WORDS | _IMAGE_WORDS for word in words) else ""


def leads_to_labels(prefix: str) -> bool:
    """Whether the words before a file's number are of labels."""
    return any(word in _LABEL_WORDS for word in words_of(prefix))


def _is_role(word: str) -> bool:
    return names_labels(word) or names_images(word) or word.lower() in {"color", "colour", "rgb", "labeltrainids"}


def split_of(name: str) -> str | None:
    """The split that a folder of this name is of, such as ``val`` for Valid, valid2017 or val_2; None for others."""
    word = re.sub(r"[_\-]?((19|20)\d\d|\d)$", "", name).lower()
    return next((split for split, names in SPLITS.items() if word in names), None)
