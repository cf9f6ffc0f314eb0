"""Small valid sets of videos and pairs, to be spoilt in one place; and all that an evaluation reads of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dinoskip.data.sets import AnyDataset, open_labels
from dinoskip_video.labels import CORRESPONDENCE, VIDEO
from dinoskip_video.sets.davis import DavisConfig
from dinoskip_video.sets.pf_pascal import PfPascalConfig
from dinoskip_video.sets.spair import SpairConfig
from tests.helpers.label_sets import HEIGHT, WIDTH, picture


def davis(root: Path) -> AnyDataset:
    for frame in range(4):
        picture(root / "JPEGImages" / "480p" / "bear" / f"{frame:05d}.jpg")
        mask = root / "Annotations" / "480p" / "bear" / f"{frame:05d}.png"
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.ones((HEIGHT, WIDTH), np.uint8)).save(mask)
    (root / "ImageSets" / "2017").mkdir(parents=True)
    for split in ("train", "val"):
        (root / "ImageSets" / "2017" / f"{split}.txt").write_text("bear\n")
    return DavisConfig(root=str(root))


def spair(root: Path) -> AnyDataset:
    for name in "ab":
        picture(root / "JPEGImages" / "cat" / f"{name}.jpg")
    entry = {
        "category": "cat", "src_imname": "a.jpg", "trg_imname": "b.jpg",
        "src_imsize": [WIDTH, HEIGHT, 3], "trg_imsize": [WIDTH, HEIGHT, 3], "trg_bndbox": [2, 3, 12, 7],
        "src_kps": [[1, 2], [3, 4]], "trg_kps": [[5, 6], [7, 8]],
    }  # fmt: skip
    for part in ("PairAnnotation/test", "Layout/large"):
        (root / part).mkdir(parents=True)
    (root / PAIR).write_text(json.dumps(entry))
    (root / "Layout" / "large" / "test.txt").write_text("0-a-b_cat\n")
    return SpairConfig(root=str(root))


PAIR = "PairAnnotation/test/0-a-b_cat.json"


def pf_pascal(root: Path) -> AnyDataset:
    for name in "ab":
        picture(root / "JPEGImages" / f"{name}.jpg")
    pf_row()(root)
    return PfPascalConfig(root=str(root))


def pf_row(**changes: str) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        row = {"source": "JPEGImages/a.jpg", "target": "JPEGImages/b.jpg", "class": "1", "XA": "1;2", "YA": "3;4",
               "XB": "5;6", "YB": "7;8"} | changes  # fmt: skip
        with open(root / "test_pairs_pf_pascal.csv", "w", newline="") as stream:
            csv.writer(stream).writerows([row.keys(), row.values()])

    return apply


def read_everything(config: AnyDataset) -> list[Any]:
    """Open and read a split as an evaluation does; all that a score is made of, as plain lists."""
    if isinstance(config, DavisConfig):
        videos = open_labels(VIDEO, config, "val")
        return [(videos.ids[index], videos.label(index).tolist()) for index in range(len(videos))]
    pairs = open_labels(CORRESPONDENCE, config, "test")
    return [
        (
            pair.category,
            pairs.ids[pair.source],
            pairs.ids[pair.target],
            pair.extent,
            pair.source_points.tolist(),
            pair.target_points.tolist(),
        )
        for pair in pairs.pairs
    ]
