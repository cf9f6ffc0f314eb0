"""Kind ``pf_pascal``: PF-PASCAL, pairs of VOC photographs with keypoints (Ham et al. 2017), by the lists of SCNet."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import folder_with, read_text
from dinoskip.data.schema import noted_in
from dinoskip.data.sets.kind import Archives, CheckedSplit, DatasetKind, Published
from dinoskip.data.sets.voc import VOC_CLASSES
from dinoskip.errors import DataError
from dinoskip.io.files import confined
from dinoskip_video.keypoints import KeypointDataset, KeypointFrames, KeypointPair, checked_points, upright_points

EXPECTED = {"val": 308, "test": 299}
"""Pairs of each split."""
_LISTS = "http://www.di.ens.fr/willow/research/cnngeometric/other_resources"


class PfPascalConfig(DatasetKind):
    """The folder ``PF-dataset-PASCAL`` with ``SPLIT_pairs_pf_pascal.csv`` in it, or the one above it."""

    archives = Archives(
        published=(
            Published(
                "http://www.di.ens.fr/willow/research/proposalflow/dataset/PF-dataset-PASCAL.zip",
                ("PF-dataset-PASCAL/JPEGImages",),
            ),
            Published(f"{_LISTS}/test_pairs_pf_pascal.csv", ("PF-dataset-PASCAL/test_pairs_pf_pascal.csv",)),
            Published(
                f"{_LISTS}/val_pairs_pf_pascal.csv", ("PF-dataset-PASCAL/val_pairs_pf_pascal.csv",), needed=False
            ),
        ),
        list_folders={f"{split}_pairs_pf_pascal.csv": "PF-dataset-PASCAL" for split in ("trn", *EXPECTED)},
    )

    order = 70
    kind: Literal["pf_pascal"] = "pf_pascal"
    root: str = Field(description="folder PF-dataset-PASCAL with the lists in it, or the one above it")

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open all images, whatever the split."""
        return ImageFolder.open(_folder(root) / "JPEGImages")

    def open_keypoints(self, root: Path, split: str, faults: list[str] | None) -> KeypointDataset:
        """Open the pairs of a list; a hit's threshold is a share of the target image's longer side."""
        folder = _folder(root)
        path = folder / f"{split}_pairs_pf_pascal.csv"
        rows = list(csv.reader(read_text(path, "list of pairs").splitlines()))[1:]
        numbers: dict[str, int] = {}
        frames = KeypointFrames(self.label_orientation)
        pairs = []
        for line, row in enumerate(rows, 2):
            with noted_in(faults):
                pairs.append(_pair(row, f"{path}:{line}", folder / "JPEGImages", numbers, frames))
        ids = tuple(numbers)
        paths = tuple(folder / "JPEGImages" / name for name in ids)
        opened = KeypointDataset(self.dataset_name, split, ids, paths, tuple(pairs), (path,))
        return frames.settle(opened, path, faults)

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """The lists that are there, and the published numbers of pairs; the test list always."""
        folder = _folder(root)
        splits = [split for split in EXPECTED if split == "test" or (folder / f"{split}_pairs_pf_pascal.csv").is_file()]
        return [CheckedSplit("correspondence", split, EXPECTED[split]) for split in splits]


def _folder(root: Path) -> Path:
    return folder_with("JPEGImages", root, "PF-dataset-PASCAL", "PF-dataset-PASCAL.zip")


def _pair(row: list[str], where: str, images: Path, numbers: dict[str, int], frames: KeypointFrames) -> KeypointPair:
    """A line ``source, target, class from 1, XA, YA, XB, YB``; coordinates have ``;`` between them."""
    try:
        names = [Path(text).name for text in row[:2]]
        if not (number := float(row[2])).is_integer() or not 1 <= number <= len(VOC_CLASSES):
            raise ValueError(f"class {row[2]} is none of 1 to {len(VOC_CLASSES)}")
        category = VOC_CLASSES[int(number) - 1]
        xa, ya, xb, yb = ([float(part) for part in text.split(";") if part.strip()] for text in row[3:7])
        points = [[[*point] for point in zip(x, y, strict=True)] for x, y in ((xa, ya), (xb, yb))]
    except (ValueError, IndexError, OverflowError) as error:
        raise DataError(f"{where}: not a pair of PF-PASCAL: {error}") from error
    for name in names:
        if not confined(images, name, where).is_file():
            raise DataError(f"{images / name}: no such image, {where} names it")
    turns = [frames.of(images / name, None, where) for name in names]
    sizes = [size for size, _ in turns]
    source_points, target_points = (
        upright_points(checked_points(listed, *of[:1], where), *of) for listed, of in zip(points, turns, strict=True)
    )
    if len(source_points) != len(target_points):
        raise DataError(f"{where}: {len(source_points)} points in one image, {len(target_points)} in the other")
    source, target = (numbers.setdefault(name, len(numbers)) for name in names)
    visible = np.ones(len(source_points), dtype=bool)
    pair_id, extent = f"{names[0]}-{names[1]}", float(max(sizes[1]))
    return KeypointPair(pair_id, category, source, target, source_points, target_points, extent, visible)
