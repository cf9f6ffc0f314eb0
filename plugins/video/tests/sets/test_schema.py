"""The border of videos and pairs: one violation in a valid set is one line that names the file and the remedy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dinoskip.data.sets import AnyDataset
from plugins.video.tests.label_sets import PAIR, davis, pf_pascal, pf_row, read_everything, spair
from tests.helpers.label_borders import Case, Maker, a_violation_is_one_line, what_is_broken_is_left_out
from tests.helpers.label_sets import HEIGHT, WIDTH, edited

DAVIS = "480p/bear/0000"
CASES: dict[str, Case] = {
    "davis frame": (davis, lambda root: (root / f"JPEGImages/{DAVIS}2.jpg").unlink(), "has a mask and no frame"),
    "davis both": (
        davis,
        lambda root: list(map(Path.unlink, root.glob(f"*/{DAVIS}2.*"))),
        "frames are not numbered evenly",
    ),
    "davis twice": (davis, lambda root: (root / "ImageSets/2017/val.txt").write_text("bear\nbear\n"), "listed twice"),
    "davis climbs": (davis, lambda root: (root / "ImageSets/2017/val.txt").write_text("a/../../bear\n"), "outside"),
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


BROKEN: dict[str, tuple[Maker, Callable[[Path], object], int]] = {
    "davis": (davis_of_two, lambda root: (root / "Annotations/480p/cow/00002.png").write_bytes(b"x"), 1),
    "davis frame": (davis_of_two, lambda root: (root / "JPEGImages/480p/cow/00002.jpg").unlink(), 1),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_left_out_and_counted_where_that_is_asked_for(tmp_path: Path, case: str) -> None:
    what_is_broken_is_left_out(tmp_path, *BROKEN[case], split="val", read=read_everything)


@pytest.mark.parametrize("case", CASES)
def test_a_violation_is_one_line(tmp_path: Path, case: str) -> None:
    a_violation_is_one_line(tmp_path, CASES[case], read_everything)
