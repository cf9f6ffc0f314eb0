"""Kind ``spair71k``: SPair-71k, pairs of photographs of 18 categories with keypoints (Min et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import folder_with, read_names, require_folder
from dinoskip.data.schema import inside, noted_in, real_numbers
from dinoskip.data.sets.kind import Archives, DatasetKind, Published, splits_of
from dinoskip.errors import DataError
from dinoskip.io.files import confined, read_json
from dinoskip_video.keypoints import KeypointDataset, KeypointFrames, KeypointPair, checked_points, upright_points


class SpairLayout(DatasetKind):
    """Pairs in the layout of SPair-71k."""

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open all images, whatever the split."""
        return ImageFolder.open(spair_folder(root) / "JPEGImages")

    def open_keypoints(self, root: Path, split: str, faults: list[str] | None) -> KeypointDataset:
        """Open the pairs of a split, in the order of its list."""
        folder = spair_folder(root)
        annotations, images = folder / "PairAnnotation" / split, folder / "JPEGImages"
        require_folder(annotations, f"the annotations of the {split} pairs")
        numbers: dict[str, int] = {}
        frames = KeypointFrames(self.label_orientation)
        pairs, files, present = [], [], {path.name for path in annotations.iterdir()}
        # number-source-target:category, where some systems put _ for the :
        for listed in read_names(folder / "Layout" / "large" / f"{split}.txt", "pair"):
            with noted_in(faults):
                path = annotations / _file_name(listed, present, annotations)
                pairs.append(_pair(path, listed, images, numbers, frames))
                files.append(path)
        paths = tuple(images / name for name in numbers)
        opened = KeypointDataset(self.dataset_name, split, tuple(numbers), paths, tuple(pairs), tuple(files))
        return frames.settle(opened, f"{folder}: {split}", faults)


class SpairConfig(SpairLayout):
    """The folder ``SPair-71k`` of SPair-71k.tar.gz, or the one above it."""

    archives = Archives(
        published=(
            Published(
                "http://cvlab.postech.ac.kr/research/SPair-71k/data/SPair-71k.tar.gz",
                ("SPair-71k/JPEGImages", "SPair-71k/PairAnnotation/test", "SPair-71k/Layout/large"),
            ),
        ),
    )

    splits = splits_of("correspondence", trn=53_340, val=5_384, test=12_234)
    order = 60
    kind: Literal["spair71k"] = "spair71k"
    root: str = Field(description="folder SPair-71k, or the one above it")


def spair_folder(root: Path) -> Path:
    """Find the folder with ``PairAnnotation``: ``root`` or ``root/SPair-71k``. Raises :class:`DataError`."""
    return folder_with("PairAnnotation", root, "SPair-71k", "SPair-71k.tar.gz")


def _file_name(listed: str, present: Iterable[str], folder: Path) -> str:
    for candidate in (f"{listed}.json", f"{listed.replace(':', '_')}.json"):
        if candidate in present:
            return candidate
    raise DataError(f"{folder / listed}.json: no such file, it is in the list")


def _pair(path: Path, name: str, images: Path, numbers: dict[str, int], frames: KeypointFrames) -> KeypointPair:
    entry: Any = read_json(path)
    try:
        category, box = str(entry["category"]), real_numbers(entry["trg_bndbox"], "sides of trg_bndbox", path)
        named = [f"{category}/{entry[key]}" for key in ("src_imname", "trg_imname")]
        given = [entry[key] for key in ("src_kps", "trg_kps")]
        stated = [entry.get(key) for key in ("src_imsize", "trg_imsize")]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not an annotation of SPair-71k: {error!r}") from error
    for image_id in named:
        if not confined(images, image_id, path).is_file():
            raise DataError(f"{images / image_id}: no such image, {path.name} names it")
    points, shapes, turns = [], [], []
    for key, image_id, values, side in zip(("src", "trg"), named, given, stated, strict=True):
        said = tuple(side[1::-1]) if isinstance(side, list) else side  # width, height, channels
        size, orientation = frames.of(images / image_id, said, f"{path}: {key}_imsize")
        points.append(upright_points(checked_points(values, size, f"{path}: {key}_kps"), size, orientation))
        shapes.append(size)
        turns.append(orientation)
    if len(points[0]) != len(points[1]) or len(box) != 4:
        raise DataError(f"{path}: {len(points[0])} points in one image, {len(points[1])} in the other")
    inside(box, shapes[1], "corners of trg_bndbox", path)
    source, target = (numbers.setdefault(image_id, len(numbers)) for image_id in named)
    extent = max(box[2] - box[0], box[3] - box[1])
    if not extent > 0:
        raise DataError(f"{path}: the object's box in the target image is empty")
    visible = np.ones(len(points[0]), dtype=bool)
    corners = upright_points(np.array(box, dtype=np.float64).reshape(2, 2), shapes[1], turns[1])
    around = np.concatenate([corners.min(0), corners.max(0)])
    return KeypointPair(name, category, source, target, points[0], points[1], extent, visible, around)
