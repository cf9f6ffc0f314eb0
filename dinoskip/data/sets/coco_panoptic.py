"""Kind ``coco_panoptic``: the classes of COCO 2017's panoptic segments, 80 things and 53 kinds of stuff."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.schema import both_ways, resolve, unique, violated
from dinoskip.data.segmentation import IGNORE, SegmentationDataset, class_map
from dinoskip.data.sets.kind import DatasetKind, TrainSubset, splits_of
from dinoskip.data.sets.pairs import coco_images, known_split
from dinoskip.data.sets.voc import with_files
from dinoskip.errors import DataError, guard
from dinoskip.io.files import confined, read_regular
from dinoskip.io.images import read_image

MAX_JSON = 2 << 30  # bytes; the published one of train has 180 MB


@dataclass(frozen=True, eq=False)
class PanopticDataset(SegmentationDataset):
    """Images with maps of segments. ``segments`` has for every id the segments' numbers int64 (K,), their classes.

    ``annotations`` is the file that says so.
    """

    segments: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    annotations: Path = Path()

    @property
    def target_files(self) -> tuple[Path, ...]:
        """The files that hold what images are measured against."""
        return (*self.label_paths, self.annotations)

    def read_labels(self, index: int) -> np.ndarray:
        """Return the class of every pixel's segment, 255 without one; :class:`DataError` for one that is not listed."""
        path = self.label_paths[index]
        red, green, blue = np.moveaxis(read_image(path, upright=False).astype(np.int64), 2, 0)
        numbers, places = np.unique(red + 256 * green + 65536 * blue, return_inverse=True)
        listed, classes = self.segments[self.ids[index]]
        unknown = np.setdiff1d(numbers, [0, *listed])
        if unknown.size:
            raise DataError(f"{path}: segment {unknown[0]} is not in the annotations")
        if (lost := np.setdiff1d(listed, numbers)).size:
            raise violated(path, f"has no pixel of segment {lost[0]}, which {self.annotations.name} lists")
        meaning = dict(zip(listed.tolist(), classes.tolist(), strict=True))
        values = np.array([meaning.get(int(number), IGNORE) for number in numbers], dtype=np.uint8)
        return values[places.reshape(red.shape)]


def _read(path: Path) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], tuple[str, ...]]:
    """Segments by image and class names of a panoptic JSON, images and classes in the order of their names and ids."""
    with guard(path, "panoptic annotation of COCO"):
        content: dict[str, Any] = json.loads(read_regular(path, MAX_JSON))
        names = {_whole(entry["id"], path): str(entry["name"]) for entry in content["categories"]}
        number = {category: place for place, category in enumerate(sorted(names))}
        if not names or len(names) > IGNORE:
            raise DataError(f"{path}: {len(names)} categories: expected 1 to {IGNORE}")
        unique((entry["id"] for entry in content["categories"]), "category", path)
        unique((entry["file_name"] for entry in content["annotations"]), "file_name", path)
        _check_images(content, path)
        segments: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for entry in content["annotations"]:
            name = confined(path.parent, entry["file_name"], path).stem
            where = f"{path}: {name}"
            if name in segments:
                raise violated(where, "is annotated twice")
            resolve((segment["category_id"] for segment in entry["segments_info"]), number, "category", where)
            listed = [(_whole(part["id"], where), number[part["category_id"]]) for part in entry["segments_info"]]
            table = np.array(listed, dtype=np.int64).reshape(-1, 2)
            unique(table[:, 0].tolist(), "segment", where)
            segments[name] = (table[:, 0], table[:, 1])
    return {name: segments[name] for name in sorted(segments)}, tuple(names[category] for category in sorted(names))


def _whole(number: Any, where: object) -> int:
    """A number of the JSON; :class:`DataError` for text, a fraction, a truth value or one that no map can hold."""
    if type(number) is not int or not 0 <= number < 1 << 24:
        raise violated(where, f"{number!r} is not a number of a category or segment")
    return number


def _check_images(content: dict[str, Any], path: Path) -> None:
    """Raise :class:`DataError` unless images and annotations name one another, each once, where the file has images."""
    numbers = [entry["image_id"] for entry in content["annotations"]]
    unique(numbers, "annotation of image", path)
    if "images" in content:
        listed = [entry["id"] for entry in content["images"]]
        unique(listed, "image", path)
        both_ways(numbers, listed, ("is annotated and no image of it", "is an image without an annotation"), path)


class CocoPanopticConfig(TrainSubset, DatasetKind):
    """A COCO folder with train2017, val2017, and ``panoptic_*2017`` maps and JSON in ``annotations``."""

    splits = splits_of("segmentation", train=118_287, val=5_000)
    kind: Literal["coco_panoptic"] = "coco_panoptic"
    root: str = Field(description="COCO folder with train2017, val2017 and annotations")

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open all images of a split."""
        known_split(self.kind, split, ("train", "val"))
        return ImageFolder.open(coco_images(root, f"{split}2017"))

    def open_segmentation(self, root: Path, split: str, faults: list[str] | None) -> SegmentationDataset:
        """Open train or val; train may be a subset. Pixels of crowds have their segment's class as all others."""
        known_split(self.kind, split, ("train", "val"))
        part = f"panoptic_{split}2017"
        annotations = root / "annotations" / f"{part}.json"
        segments, classes = _read(annotations)
        folder = root / "annotations" / part
        masks = folder if folder.is_dir() else root / part
        ids, images, labels = with_files(tuple(segments), coco_images(root, f"{split}2017"), masks, ".png", faults)
        return self.subsample(
            PanopticDataset(
                self.dataset_name, split, ids, images, labels, class_map(classes).palette, class_names=classes,
                segments=segments, annotations=annotations,
            )
        )  # fmt: skip
