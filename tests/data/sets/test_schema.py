"""The border of every labelled kind: one violation in a valid set is one line that names the file and the remedy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dinoskip.data.sets import AnyDataset, open_labels
from dinoskip.data.sets.check import check
from dinoskip.data.sets.labels import LABELS
from dinoskip.errors import DataError
from dinoskip_dense.labels import DEPTH, NORMALS
from dinoskip_video.labels import CORRESPONDENCE
from tests.helpers.label_sets import (
    COCO20K,
    HEIGHT,
    PAIR,
    PANOPTIC,
    WIDTH,
    ade20k,
    coco,
    coco20k,
    davis,
    edited,
    normals,
    nyu,
    nyu_list,
    panoptic,
    pf_pascal,
    pf_row,
    picture,
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
    "coco20k list twice": (
        coco20k,
        lambda root: (root / "coco_20k_filenames.txt").write_text("train2014/a.png\nx/a.png\n"),
        "listed twice",
    ),
    "coco20k image twice": (
        coco20k,
        edited(lambda c: c["images"].append({**c["images"][0], "id": 9}), COCO20K),
        "file_name 'a.png' is listed twice",
    ),
    "coco20k name": (
        coco20k, edited(lambda c: c["images"][0].update(file_name=[]), COCO20K), "is neither a name nor a number",
    ),
    "coco20k box": (coco20k, edited(lambda c: c["annotations"][0].update(image_id=9), COCO20K), "image 9 is not in it"),
    "panoptic image": (
        panoptic, edited(lambda c: c["annotations"][0].update(image_id=9), PANOPTIC), "9 is annotated and no image",
    ),
    "panoptic annotation": (panoptic, edited(lambda c: c["annotations"].pop(), PANOPTIC), "without an annotation"),
    "ade20k image": (
        partial(ade20k, names="ab"), lambda root: (root / "images/validation/a.jpg").unlink(), "has no image",
    ),
    "ade20k image twice": (ade20k, lambda root: picture(root / "images/validation/a.jpeg"), "of the same name"),
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


def davis_of_two(root: Path) -> AnyDataset:
    config = davis(root)
    for part in ("JPEGImages", "Annotations"):
        shutil.copytree(root / part / "480p" / "bear", root / part / "480p" / "cow")
    (root / "ImageSets/2017/val.txt").write_text("bear\ncow\n")
    return config


BROKEN: dict[str, tuple[Callable[[Path], AnyDataset], Callable[[Path], object], int]] = {
    "coco": (coco, edited(lambda c: c["annotations"][0].update(bbox=[1, 2, 50, 5])), 1),
    "ade20k": (
        partial(ade20k, names="ab"),
        lambda root: (root / "annotations/validation/a.png").write_bytes(b"x"),
        1,
    ),
    "ade20k image": (
        partial(ade20k, names="ab"),
        lambda root: (root / "images/validation/b.jpg").unlink(),
        1,
    ),
    "davis": (davis_of_two, lambda root: (root / "Annotations/480p/cow/00002.png").write_bytes(b"x"), 1),
    "davis frame": (davis_of_two, lambda root: (root / "JPEGImages/480p/cow/00002.jpg").unlink(), 1),
    "panoptic": (panoptic, lambda root: (root / "val2017/b.jpg").write_bytes(b"x"), 1),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_left_out_and_counted_where_that_is_asked_for(tmp_path: Path, case: str) -> None:
    make, spoil, left_out = BROKEN[case]
    config = make(tmp_path)
    whole = opened(config)
    spoil(tmp_path)
    with pytest.raises(DataError):
        read_everything(config)
    label = next(one for one in LABELS.values() if one.given_by(config))
    part = opened(config.model_copy(update={"skip_broken": True}))
    assert (part.left_out, len(label.items(part))) == (left_out, len(label.items(whole)) - left_out)
    assert whole.left_out == 0


def opened(config: AnyDataset) -> Any:
    label = next(one for one in LABELS.values() if one.given_by(config))
    return open_labels(label, config, "test" if label in (CORRESPONDENCE, NORMALS, DEPTH) else "val")


def test_where_all_is_broken_one_line_says_so(tmp_path: Path) -> None:
    config = ade20k(tmp_path).model_copy(update={"skip_broken": True})
    for path in tmp_path.glob("annotations/validation/*.png"):
        path.write_bytes(b"x")
    with pytest.raises(DataError, match=r"nothing is left of it: .*/a.png"):
        opened(config)


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
