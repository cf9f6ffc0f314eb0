"""COCO JSON and VOC annotations, damaged: boxes in the stated range, or one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from dinoskip.data.detection import MAX_COORDINATE, Box, read_voc_xml
from dinoskip.data.sets.coco_json import coco_json
from tests.helpers.mutations import attack, refused

VOC = [
    b"<annotation><filename>a.jpg</filename><size><width>40</width><height>30</height><depth>3</depth></size>"
    b"<object><name>dog</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax>"
    b"<ymax>25.5</ymax></bndbox></object></annotation>",
    b'<?xml version="1.0" encoding="utf-8"?><annotation><object><name>cat</name><bndbox><xmin>1e3</xmin><ymin>2</ymin>'
    b"<xmax>1e4</xmax><ymax>3</ymax></bndbox><part><name>head</name></part></object></annotation>",
    "<?xml version='1.0' encoding='utf-16'?><annotation><object/></annotation>".encode("utf-16"),
    b'<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>',
]
COCO = {
    "images": [{"id": 1, "file_name": "a.png", "height": 4, "width": 6}, {"id": 2, "file_name": "b.png"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 3, "bbox": [0.5, 1, 2, 2.5], "iscrowd": 0,
         "segmentation": [[0.5, 1, 2.5, 1, 2.5, 3.5]]},
        {"id": 2, "image_id": 2, "category_id": 3, "bbox": [0, 0, 1, 1], "iscrowd": 1,
         "segmentation": {"size": [4, 6], "counts": [0, 2, 22]}},
    ],
    "categories": [{"id": 3, "name": "dog"}, {"id": 4, "name": "cat"}],
}  # fmt: skip
HUGE = st.sampled_from((10**400, -(10**18), 1e308, float("nan"), float("inf"), 2**63, "9" * 400, -0.0, "../x", "/x"))
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | HUGE,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(("id", "bbox", "name")), inner),
    max_leaves=8,
)


def check_box(box: Box) -> None:
    assert all(abs(value) <= MAX_COORDINATE + 1 for value in box[1:])
    assert box.label


def check_voc(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    boxes: list[Box] = []
    if not refused(lambda: boxes.extend(read_voc_xml(path).objects), str(path)):
        for box in boxes:
            check_box(box)
            assert box.x1 < box.x2
            assert box.y1 < box.y2


def check_coco(content: bytes, root: Path) -> None:
    path = root / "boxes.json"
    path.write_bytes(content)
    boxes: list[np.ndarray] = []

    def read() -> None:
        opened = coco_json(path, root)
        boxes.extend(opened.boxes(index) for index in range(len(opened)))
        for index in range(len(opened)):
            opened.check_outlines(index)

    if not refused(read, str(root)):
        for found in boxes:
            assert ((found >= -2) & (found <= 8)).all(), "inside images of 6 x 4 pixels"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png"):
        Image.new("RGB", (6, 4)).save(tmp_path / name)
    return tmp_path


def attack_values(root: Path, cases: int) -> None:
    """Put any value in any place of a valid COCO file."""
    places = [(part, row, key) for part, rows in COCO.items() for row, entry in enumerate(rows) for key in entry]

    @settings(
        max_examples=cases, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(st.tuples(st.sampled_from(places), ANY), min_size=1, max_size=3))
    def run(changes: list[tuple[tuple[str, int, str], object]]) -> None:
        content = json.loads(json.dumps(COCO))
        for (part, row, key), value in changes:
            content[part][row][key] = value
        check_coco(json.dumps(content).encode(), root)

    run()


def test_voc_xml(tmp_path: Path) -> None:
    attack(VOC, lambda content: check_voc(content, tmp_path / "a.xml"), 150)


def test_coco_json(root: Path) -> None:
    attack([json.dumps(COCO).encode()], lambda content: check_coco(content, root), 100)
    attack_values(root, 100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_voc_xml_many(tmp_path: Path) -> None:
    attack(VOC, lambda content: check_voc(content, tmp_path / "a.xml"), 20_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_coco_json_many(root: Path) -> None:
    attack([json.dumps(COCO).encode()], lambda content: check_coco(content, root), 10_000)
    attack_values(root, 10_000)
