from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from dinoskip.data import DatasetConfig, check, open_labels
from dinoskip.data.recognise.published import PUBLISHED
from dinoskip.data.sets import KINDS, open_images
from dinoskip.data.sets.labels import SEGMENTATION
from dinoskip.data.sets.layouts import nearest_layout
from dinoskip.errors import DataError


def build(root: Path, *parts: str) -> None:
    for part in parts:
        if part.endswith((".json", ".jpg")):
            (root / part).parent.mkdir(parents=True, exist_ok=True)
            (root / part).write_text("{}")
        else:
            (root / part).mkdir(parents=True, exist_ok=True)


def config(kind: str, root: Path) -> DatasetConfig:
    return TypeAdapter(DatasetConfig).validate_python({"kind": kind, "root": str(root)})


@pytest.mark.parametrize(
    ("asked", "parts", "hint"),
    [
        ("ade20k", ("JPEGImages", "ImageSets"), "is laid out as PASCAL VOC: use kind voc"),
        ("voc", ("images/training", "annotations/training"), "is laid out as ADEChallengeData2016: use kind ade20k"),
        ("masks", ("leftImg8bit", "gtFine"), "is laid out as Cityscapes: use kind cityscapes"),
        ("ade20k", ("images/ADE",), "the full ADE20K of 2021: its masks number 3,688 names and their parts: get ADEC"),
        ("ade20k", ("images/training", "index_ade20k.mat"), "the full ADE20K of 2016: its masks number thousands"),
        ("coco_stuff", ("annotations/panoptic_val2017.json",), "is laid out as COCO panoptic: use kind coco_panoptic"),
        ("coco_stuff", ("imageLists", "images"), "COCO-Stuff 10k: its masks are MATLAB files: get COCO 2017"),
        ("cityscapes", ("data/leftImg8bit", "data/gtFine"), "data is laid out as Cityscapes: use root "),
        ("masks", ("train/a/1.jpg", "train/b/2.jpg", "val/a/3.jpg"), "is laid out as class folders: use kind folder"),
    ],
)
def test_a_refused_layout_is_named_with_the_nearest_expected_one(
    tmp_path: Path, asked: str, parts: tuple[str, ...], hint: str
) -> None:
    root = tmp_path / "set"
    build(root, *parts)
    with pytest.raises(DataError) as caught:
        open_labels(SEGMENTATION, config(asked, root), "val")
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert any(hint in fault for row in check(config(asked, root)) for fault in row.faults)


def test_one_folder_too_deep_is_named(tmp_path: Path) -> None:
    build(tmp_path, "images/training", "annotations/training")
    with pytest.raises(DataError, match=r"\(.* is laid out as ADEChallengeData2016: use root "):
        open_images(config("ade20k", tmp_path / "images"), split="val")


def test_a_right_layout_gets_no_hint(tmp_path: Path) -> None:
    build(tmp_path, "leftImg8bit", "gtFine")
    assert nearest_layout(tmp_path, "cityscapes") is None
    assert nearest_layout(tmp_path / "none", "voc") is None
    assert {layout.kind for layout in PUBLISHED} - {None} <= set(KINDS)
