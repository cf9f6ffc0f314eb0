"""Kind coco: a JSON and a folder of images for each split; what a detector is trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.recognise import recognise
from dinoskip.data.sets import open_labels
from dinoskip.data.sets.coco import CocoConfig
from dinoskip.data.sets.coco_json import CocoDetection
from dinoskip.data.sets.labels import DETECTION
from dinoskip.errors import DataError

OBJECT: dict[str, Any] = {
    "id": 1, "image_id": 1, "category_id": 3, "bbox": [1.4, 2, 4, 3], "segmentation": [[1, 2, 5, 2, 5, 5, 1, 5]],
}  # fmt: skip


def make(root: Path, split: str, *objects: dict[str, Any], folder: str = "", annotations: str = "") -> None:
    path = root / (annotations or f"annotations/instances_{split}2017.json")
    images = root / (folder or f"{split}2017")
    for place in (path.parent, images):
        place.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 10, 3), np.uint8)).save(images / "a.png")
    content = {
        "images": [{"id": 1, "file_name": "a.png", "height": 8, "width": 10}],
        "annotations": [{**one, "id": number} for number, one in enumerate(objects, 1)],
        "categories": [{"id": 3, "name": "dog"}],
    }
    path.write_text(json.dumps(content))


def opened(config: CocoConfig, split: str) -> CocoDetection:
    dataset = open_labels(DETECTION, config, split)
    assert isinstance(dataset, CocoDetection)
    return dataset


def test_each_split_has_its_json_and_folder(tmp_path: Path) -> None:
    make(tmp_path, "train", OBJECT)
    make(tmp_path, "val")
    assert recognise(tmp_path).settings == {"kind": "coco", "root": str(tmp_path)}
    config = CocoConfig(root=str(tmp_path))
    train, val = opened(config, "train"), opened(config, "val")
    assert [(one.name, one.split, len(one.objects(0))) for one in (train, val)] == [
        ("coco2017", "train", 1), ("coco2017", "val", 0),
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"instances_test2017\.json: no such file"):
        opened(config, "test")
    (tmp_path / "images").mkdir()
    (tmp_path / "val2017").rename(tmp_path / "images" / "val2017")
    assert opened(config, "val").path(0) == tmp_path / "images" / "val2017" / "a.png"


def test_own_names(tmp_path: Path) -> None:
    make(tmp_path / "birds", "val", OBJECT, folder="pictures", annotations="val.json")
    own = CocoConfig(root=str(tmp_path / "birds"), images="pictures", annotations="{split}.json")
    assert opened(own, "val").name == "birds"
    assert [row.expected for row in own.checked_splits(tmp_path)] == [None, None]


def test_entries_have_crowds_and_an_area(tmp_path: Path) -> None:
    crowd = {**OBJECT, "iscrowd": 1, "area": 7.5, "segmentation": {"size": [8, 10], "counts": [20, 5, 55]}}
    make(tmp_path, "val", OBJECT, crowd)
    dataset = opened(CocoConfig(root=str(tmp_path)), "val")
    plain, other = dataset.entries(0)
    assert (plain["area"], plain["iscrowd"], other["area"], other["iscrowd"]) == (12, 0, 7.5, 1)
    assert plain["bbox"][0] == 1.4, "not rounded, as boxes for CorLoc are"
    assert dataset.outline(plain, (8, 10)).sum() == 12
    assert dataset.outline(other, (8, 10)).sum() == 5
    assert dataset.categories == {3: "dog"}


@pytest.mark.parametrize("area", ["x", None, float("nan"), [1]])
def test_an_area_that_is_none(tmp_path: Path, area: object) -> None:
    make(tmp_path, "val", {**OBJECT, "area": area})
    with pytest.raises(DataError, match="annotation 1"):
        opened(CocoConfig(root=str(tmp_path)), "val").entries(0)
