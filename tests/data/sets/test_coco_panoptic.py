from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import CocoPanopticConfig, check, open_images, open_labels
from dinoskip.data.sets.labels import SEGMENTATION
from dinoskip.errors import DataError

SEGMENTS = np.array([[0, 7, 7], [300, 300, 3 + 65536]])
WANTED = [[255, 1, 1], [0, 0, 2]]


def write(root: Path, split: str, names: tuple[str, ...], below: str = "annotations/") -> Path:
    maps = root / f"{below}panoptic_{split}2017"
    for folder in (maps, root / f"{split}2017", root / "annotations"):
        folder.mkdir(parents=True, exist_ok=True)
    colours = np.stack([SEGMENTS % 256, SEGMENTS // 256 % 256, SEGMENTS // 65536], axis=2).astype(np.uint8)
    for name in names:
        Image.fromarray(np.zeros((2, 3, 3), np.uint8)).save(root / f"{split}2017" / f"{name}.jpg")
        Image.fromarray(colours).save(maps / f"{name}.png")
    segments = [{"id": 7, "category_id": 18}, {"id": 300, "category_id": 1}, {"id": 65539, "category_id": 200}]
    content = {
        "images": [{"id": ord(name), "file_name": f"{name}.jpg"} for name in names],
        "annotations": [
            {"image_id": ord(name), "file_name": f"{name}.png", "segments_info": segments} for name in names
        ],
        "categories": [{"id": 200, "name": "rug"}, {"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
    }
    path = root / "annotations" / f"panoptic_{split}2017.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("below", ["annotations/", ""])
def test_segments_become_classes(tmp_path: Path, below: str) -> None:
    write(tmp_path, "train", ("b", "a"), below)
    write(tmp_path, "val", ("c",), below)
    config = CocoPanopticConfig(root=str(tmp_path))
    train = open_labels(SEGMENTATION, config, "train")
    assert (train.ids, train.class_names) == (("a", "b"), ("person", "dog", "rug"))
    assert train.label(1).tolist() == WANTED
    assert train.label(1).dtype == np.uint8
    assert [path.name for path in train.target_files] == ["a.png", "b.png", "panoptic_train2017.json"]
    assert len(open_images(config, split="val")) == 1
    drawn = open_labels(SEGMENTATION, CocoPanopticConfig(root=str(tmp_path), subset=1), "train")
    assert (len(drawn), drawn.label(0).tolist()) == (1, WANTED)
    rows = check(config)
    assert [(row.found, row.expected, row.fault_count, row.classes["rug"]) for row in rows] == [
        (2, 118287, 0, 2), (1, 5000, 0, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c["annotations"][0]["segments_info"].pop(), "c.png: segment 65539 is not in the annotations"),
        (lambda c: c["annotations"][0].update(file_name="../c.png"), "points outside"),
        (lambda c: c["annotations"][0]["segments_info"][0].update(category_id=5), "category 5 is not in it"),
        (
            lambda c: c["annotations"][0]["segments_info"][0].update(id=10**30),
            "is not a number of a category or segment",
        ),
        (lambda c: c["annotations"][0]["segments_info"][0].update(id=7.5), "7.5 is not a number"),
        (lambda c: c["annotations"][0]["segments_info"][0].update(id="7"), "'7' is not a number"),
        (lambda c: c["annotations"][0].update(image_id=4), "4 is annotated and no image of it"),
        (lambda c: c["images"].append({"id": 5, "file_name": "e.jpg"}), "5 is an image without an annotation"),
        (lambda c: c["images"].append(c["images"][0]), "image 99 is listed twice"),
        (lambda c: c["annotations"].append({**c["annotations"][0], "file_name": "d.png"}), "is listed twice"),
        (
            lambda c: c.update(
                annotations=[*c["annotations"], {**c["annotations"][0], "image_id": 5, "file_name": "c.jpg"}],
                images=[{"id": 99}, {"id": 5}],
            ),
            "c: is annotated twice",
        ),
        (lambda c: c["annotations"].append(5), "not a readable panoptic annotation"),
        (lambda c: c.update(categories=[]), "0 categories: expected 1 to 255"),
    ],
)
def test_bad_annotations_are_one_line(tmp_path: Path, change: Any, text: str) -> None:
    path = write(tmp_path, "val", ("c",))
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=text) as caught:
        open_labels(SEGMENTATION, CocoPanopticConfig(root=str(tmp_path)), "val").label(0)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "val", ("c", "d"))
    (tmp_path / "val2017" / "c.jpg").unlink()
    config = CocoPanopticConfig(root=str(tmp_path))
    with pytest.raises(DataError, match=r"c.jpg: missing, but the image list names it"):
        open_labels(SEGMENTATION, config, "val")
    faults: list[str] = []
    assert open_labels(SEGMENTATION, config, "val", faults=faults).ids == ("d",)
    assert len(faults) == 1
    path.unlink()
    with pytest.raises(DataError, match=r"panoptic_val2017.json: no such panoptic annotation"):
        open_labels(SEGMENTATION, config, "val")
