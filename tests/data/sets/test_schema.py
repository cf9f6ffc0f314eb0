"""The border of every labelled kind: one violation in a valid set is one line that names the file and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dinoskip.data.sets import AnyDataset
from dinoskip.data.sets.check import check
from dinoskip.errors import DataError
from tests.helpers.label_sets import (
    HEIGHT,
    PAIR,
    WIDTH,
    coco,
    davis,
    edited,
    normals,
    nyu,
    nyu_list,
    pf_pascal,
    pf_row,
    read_everything,
    save_normals,
    spair,
    spoilt,
    voc,
    voc_edit,
)

Case = tuple[Callable[[Path], AnyDataset], Callable[[Path], object], str]
DAVIS = "480p/bear/0000"
CASES: dict[str, Case] = {
    "coco image id": (coco, edited(lambda c: c["annotations"][0].update(image_id=9)), "image 9 is not in it"),
    "coco ids twice": (coco, edited(lambda c: c["images"][0].update(id=2)), "image 2 is listed twice"),
    "coco annotation twice": (coco, edited(lambda c: c["annotations"][0].update(id=2)), "annotation 2 is listed twice"),
    "coco category twice": (
        coco, edited(lambda c: c["categories"].append({"id": 3, "name": "cat"})), "category 3 is listed twice",
    ),
    "coco box": (coco, edited(lambda c: c["annotations"][0].update(bbox=[1, 2, 50, 5])), "lie outside the image"),
    "coco box left": (coco, edited(lambda c: c["annotations"][1].update(bbox=[-9, 2, 15, 5])), "lie outside the image"),
    "coco size": (coco, edited(lambda c: c["images"][0].update(height=WIDTH, width=HEIGHT)), "the file has 20×10"),
    "coco size text": (coco, edited(lambda c: c["images"][0].update(height="10")), "the file has 20×10"),
    "coco crowd": (coco, edited(lambda c: c["annotations"][0].update(iscrowd="0")), "iscrowd"),
    "voc box": (voc, voc_edit("<xmax>12", "<xmax>120"), "lie outside the image of 20×10"),
    "voc size": (voc, voc_edit(f"<width>{WIDTH}", "<width>300"), "the file has 20×10"),
    "davis frame": (davis, lambda root: (root / f"JPEGImages/{DAVIS}2.jpg").unlink(), "has a mask and no frame"),
    "davis both": (
        davis,
        lambda root: list(map(Path.unlink, root.glob(f"*/{DAVIS}2.*"))),
        "frames are not numbered evenly",
    ),
    "davis twice": (davis, lambda root: (root / "ImageSets/2017/val.txt").write_text("bear\nbear\n"), "listed twice"),
    "davis climbs": (davis, lambda root: (root / "ImageSets/2017/val.txt").write_text("a/../../bear\n"), "outside"),
    "nyu image": (nyu, nyu_list("../outside.png in/d.png 518\n"), "points outside"),
    "nyu depth": (nyu, nyu_list("in/a.png /in/../../outside_depth.png 518\n"), "points outside"),
    "nyu twice": (nyu, nyu_list("in/a.png in/d.png 518\n" * 2), "'in/a.png' is listed twice"),
    "normals nan": (normals, save_normals(normals=spoilt((HEIGHT, WIDTH, 3), np.nan)), "normals are not finite"),
    "normals depth": (normals, save_normals(depth=spoilt((HEIGHT, WIDTH), np.nan)), "depths are not finite"),
    "normals float image": (normals, save_normals(image=spoilt((HEIGHT, WIDTH, 3), np.nan)), "uint8"),
    "normals wide image": (normals, save_normals(image=np.full((HEIGHT, WIDTH, 3), 1000)), "uint8"),
    "normals grey": (normals, save_normals(image=np.zeros((HEIGHT, WIDTH), np.uint8)), "uint8"),
    "normals text": (normals, save_normals(normals=np.full((HEIGHT, WIDTH, 3), "a")), "normals are not numbers"),
    "spair infinite": (
        spair, edited(lambda c: c.update(trg_bndbox=[2, 3, float("inf"), 7]), PAIR), "trg_bndbox are not finite",
    ),
    "spair box": (spair, edited(lambda c: c.update(trg_bndbox=[2, 3, 120, 7]), PAIR), "lie outside the image"),
    "spair far": (spair, edited(lambda c: c.update(trg_kps=[[5, 6], [1e6, 8]]), PAIR), "lie outside the image"),
    "spair none": (spair, edited(lambda c: c.update(src_kps=[], trg_kps=[]), PAIR), "no keypoints"),
    "spair size": (spair, edited(lambda c: c.update(src_imsize=[HEIGHT, WIDTH, 3]), PAIR), "the file has 20×10"),
    "spair twice": (
        spair, lambda root: (root / "Layout/large/test.txt").write_text("0-a-b_cat\n0-a-b_cat\n"), "listed twice",
    ),
    "pf class 0": (pf_pascal, pf_row(**{"class": "0"}), "not a pair of PF-PASCAL"),
    "pf class inf": (pf_pascal, pf_row(**{"class": "inf"}), "not a pair of PF-PASCAL"),
    "pf lengths": (pf_pascal, pf_row(XA="1"), "not a pair of PF-PASCAL"),
    "pf far": (pf_pascal, pf_row(XB="5;600"), "lie outside the image"),
    "pf none": (pf_pascal, pf_row(XA="", YA="", XB="", YB=""), "no keypoints"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_violation_is_one_line(tmp_path: Path, case: str) -> None:
    make, spoil, text = CASES[case]
    root = tmp_path / "set"
    root.mkdir()
    config = make(root)
    read_everything(config)  # valid so far
    spoil(root)
    with pytest.raises(DataError, match=text) as caught:
        read_everything(config)
    assert str(root) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert any(text in fault for row in check(config) for fault in row.faults), "data check"
