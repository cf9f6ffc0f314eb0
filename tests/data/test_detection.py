from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.detection import annotated_boxes
from dinoskip.data.sets.coco_json import coco_json
from dinoskip.io.images import read_image

STORED = np.zeros((24, 40, 3), np.uint8)
STORED[3:9, 5:20, 0] = 255


def photograph(path: Path, orientation: int) -> list[float]:
    """Write a photograph with a red part; return where that is upright, x1 y1 x2 y2."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(STORED).save(path, exif=exif)
    rows, columns = np.nonzero(read_image(path)[..., 0])
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", ["<size><width>40</width><height>24</height></size>", ""])
def test_boxes_in_stored_pixels_are_turned_with_the_photograph(tmp_path: Path, orientation: int, size: str) -> None:
    red = photograph(tmp_path / "a.png", orientation)
    box = "<bndbox><xmin>6</xmin><ymin>4</ymin><xmax>20</xmax><ymax>9</ymax></bndbox>"
    (tmp_path / "a.xml").write_text(f"<annotation>{size}<object><name>red</name>{box}</object></annotation>")
    assert [list(item[1:]) for item in annotated_boxes(tmp_path / "a.png", tmp_path / "a.xml")] == [red]
    content = {
        "images": [{"id": 1, "file_name": "a.png", **({"height": 24, "width": 40} if size else {})}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [5, 3, 15, 6]}],
        "categories": [{"id": 1, "name": "red"}],
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert coco_json(tmp_path / "a.json", tmp_path).boxes(0).tolist() == [red]


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_boxes_of_the_upright_photograph_stay(tmp_path: Path, orientation: int) -> None:
    red = photograph(tmp_path / "a.png", orientation)
    x1, y1, x2, y2 = red
    box = f"<bndbox><xmin>{x1 + 1}</xmin><ymin>{y1 + 1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox>"
    size = "<size><width>24</width><height>40</height></size>"
    (tmp_path / "a.xml").write_text(f"<annotation>{size}<object><name>red</name>{box}</object></annotation>")
    assert [list(item[1:]) for item in annotated_boxes(tmp_path / "a.png", tmp_path / "a.xml")] == [red]
