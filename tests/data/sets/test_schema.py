"""The border of every labelled kind: one violation in a valid set is one line that names the file and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dinoskip.data.sets import AnyDataset
from dinoskip.errors import DataError
from tests.helpers.label_borders import Case, a_violation_is_one_line, opened, what_is_broken_is_left_out
from tests.helpers.label_sets import (
    COCO20K,
    HEIGHT,
    PANOPTIC,
    WIDTH,
    ade20k,
    coco,
    coco20k,
    edited,
    panoptic,
    picture,
    read_everything,
    voc,
    voc_edit,
)

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
}  # fmt: skip


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
    "panoptic": (panoptic, lambda root: (root / "val2017/b.jpg").write_bytes(b"x"), 1),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_left_out_and_counted_where_that_is_asked_for(tmp_path: Path, case: str) -> None:
    what_is_broken_is_left_out(tmp_path, *BROKEN[case], split="val", read=read_everything)


def test_where_all_is_broken_one_line_says_so(tmp_path: Path) -> None:
    config = ade20k(tmp_path).model_copy(update={"skip_broken": True})
    for path in tmp_path.glob("annotations/validation/*.png"):
        path.write_bytes(b"x")
    with pytest.raises(DataError, match=r"nothing is left of it: .*/a.png"):
        opened(config, "val")


@pytest.mark.parametrize("case", CASES)
def test_a_violation_is_one_line(tmp_path: Path, case: str) -> None:
    a_violation_is_one_line(tmp_path, CASES[case], read_everything)
