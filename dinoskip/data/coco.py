"""Boxes of COCO-format JSON: any such file, and COCO20k, the part of train2014 that discovery is measured on."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from dinoskip.data.detection import Box, DetectionDataset
from dinoskip.data.masks import coco_images
from dinoskip.errors import DataError

COCO20K_LIST = "coco_20k_filenames.txt"
COCO20K_MD5 = "133cea5ffcea93dccbaeb62c38b24e7c"
COCO20K_JSON = "annotations/instances_train2014.json"


@dataclass(frozen=True, eq=False)
class CocoDetection(DetectionDataset):
    """Images with boxes that were read from one JSON. ``annotation_paths`` are the JSON and the list, if any."""

    found: tuple[tuple[Box, ...], ...] = ()

    def objects(self, index: int) -> list[Box]:
        """Return the objects of image ``index``, those marked as a crowd left out."""
        return list(self.found[index])


def safe_name(name: Any, source: Path) -> str:
    """Return a relative name that a file gives; :class:`DataError` if it is none or points outside its folder."""
    if not isinstance(name, str) or not name or "\\" in name or "\0" in name:
        raise DataError(f"{source}: {name!r} is not a file name")
    if name.startswith("/") or ".." in PurePosixPath(name).parts:
        raise DataError(f"{source}: refused: {name!r} points outside the folder of images")
    return name


def _load(path: Path) -> Any:
    """Return a pycocotools index of a JSON. It prints while it reads; that is not shown."""
    from pycocotools.coco import COCO

    if not path.is_file():
        raise DataError(f"{path}: no such file: expected boxes in COCO's format")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            index = COCO(str(path))
        complete = all(isinstance(index.dataset.get(key), list) for key in ("images", "annotations", "categories"))
    except (OSError, ValueError, AssertionError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: not a readable COCO file: {type(error).__name__}: {error}") from error
    if not complete:
        raise DataError(f"{path}: not a COCO file: it needs lists of images, annotations and categories")
    return index


def _classes(index: Any, path: Path) -> dict[Any, str]:
    """Category names by id, in the order of the ids."""
    try:
        names = {number: str(index.cats[number]["name"]) for number in sorted(index.cats)}
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: a category has no id or name") from error
    if not names or len(set(names.values())) != len(names):
        raise DataError(f"{path}: expected categories of different names")
    return names


def _box(entry: Mapping[str, Any], names: Mapping[Any, str], path: Path) -> Box:
    """Corners x, y, x + w, y + h, each rounded half to even, as the published evaluations do."""
    try:
        x, y, width, height = (float(value) for value in entry["bbox"])
        label = names[entry["category_id"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: annotation {entry.get('id')} has no bbox of four numbers or no known category"
        ) from error
    if not all(map(math.isfinite, (x, y, width, height))) or width < 0 or height < 0:
        raise DataError(f"{path}: annotation {entry.get('id')} has an impossible bbox {[x, y, width, height]}")
    return Box(label, round(x), round(y), round(x + width), round(y + height))


def _objects(index: Any, number: Any, names: Mapping[Any, str], path: Path) -> tuple[Box, ...]:
    return tuple(_box(entry, names, path) for entry in index.imgToAnns.get(number, ()) if not entry.get("iscrowd"))


class _Image(NamedTuple):
    number: Any  # in the JSON
    id: str
    file: Path


def _opened(
    index: Any,
    path: Path,
    images: Sequence[_Image],
    identity: Mapping[str, Any],
    lists: tuple[Path, ...],
    faults: list[str] | None,
) -> CocoDetection:
    """Join images with their boxes."""
    source = (lists or (path,))[0].name
    missing = [image.file for image in images if not image.file.is_file()]
    if missing and faults is None:
        more = f" (and {len(missing) - 1} more of {len(images)})" if len(missing) > 1 else ""
        raise DataError(f"{missing[0]}: missing, but {source} names it{more}")
    if faults is not None:
        faults += [f"{file}: missing, but {source} names it" for file in missing]
        gone = set(missing)
        images = [image for image in images if image.file not in gone]
    names = _classes(index, path)
    return CocoDetection(
        **identity,
        class_names=tuple(names.values()),
        image_paths=tuple(image.file for image in images),
        annotation_paths=(path, *lists),
        ids=tuple(image.id for image in images),
        found=tuple(_objects(index, image.number, names, path) for image in images),
    )


def coco_json(
    annotations: str | Path, images: str | Path, *, name: str | None = None, faults: list[str] | None = None
) -> CocoDetection:
    """Open the boxes of a JSON in COCO's format; ``images`` is the folder that its file names are relative to.

    All images of the file, in the order of their names, those without boxes too; crowds are left out. Raises
    :class:`DataError` for a damaged JSON, a name that points outside, one that comes twice, and for missing images,
    which with ``faults`` are noted there and left out.
    """
    path, folder = Path(annotations), Path(images)
    index = _load(path)
    try:
        named = sorted((safe_name(entry["file_name"], path), number) for number, entry in index.imgs.items())
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: an image has no id or file_name") from error
    twice = [entry for (entry, _), (following, _) in pairwise(named) if entry == following]
    if twice:
        raise DataError(f"{path}: {twice[0]!r} is listed twice")
    files = [_Image(number, entry, folder / entry) for entry, number in named]
    return _opened(index, path, files, {"name": name or path.stem, "split": path.stem}, (), faults)


def read_coco20k_list(path: Path) -> tuple[tuple[str, ...], bool]:
    """Return the file names of a list (``train2014/NAME.jpg``, one a line), and whether it is the published one."""
    try:
        content = path.read_bytes()
        lines = tuple(line.strip() for line in content.decode().splitlines() if line.strip())
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such image list", "it is datasets/coco_20k_filenames.txt of github.com/valeoai/LOST"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a list of file names: {error}") from error
    if not lines or len(set(lines)) != len(lines):
        raise DataError(f"{path}: the image list is empty or names an image twice")
    names = tuple(safe_name(line, path).rpartition("/")[2] for line in lines)
    return names, hashlib.md5(content, usedforsecurity=False).hexdigest() == COCO20K_MD5


def coco20k(root: str | Path, filename: str = COCO20K_LIST, *, faults: list[str] | None = None) -> CocoDetection:
    """Open COCO20k: 19,817 images of train2014, non-crowd boxes of instances_train2014.json.

    ``root`` holds ``train2014/`` (or ``images/train2014/``), ``annotations/`` and the list. A list that is not the
    published one (md5) is named in the split, which is in every row. Errors as :func:`coco_json`.
    """
    root = Path(root)
    folder, listed, path = coco_images(root, "train2014"), root / filename, root / COCO20K_JSON
    names, published = read_coco20k_list(listed)
    index = _load(path)
    numbers = {entry.get("file_name"): number for number, entry in index.imgs.items()}
    unknown = [name for name in names if name not in numbers]
    if unknown:
        raise DataError(f"{listed}: {unknown[0]!r} is not an image of {path.name} ({len(unknown)} are not)")
    split = "train2014" if published else f"{Path(filename).stem}, not the published list"
    files = [_Image(numbers[name], Path(name).stem, folder / name) for name in names]
    return _opened(index, path, files, {"name": "coco20k", "split": split}, (listed,), faults)
