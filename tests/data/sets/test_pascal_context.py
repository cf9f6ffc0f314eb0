from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import PascalContextConfig, check, open_images, open_labels
from dinoskip.data.sets.labels import SEGMENTATION
from dinoskip.data.sets.pascal_context import CLASSES
from dinoskip.errors import DataError
from tests.helpers.signatures import SIZE, blocks, judged, save, stopping

VALUES = np.array([[0, 1, 59, 255]], np.uint8)


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    folder = tmp_path / "VOCdevkit" / "VOC2010"
    for part in ("JPEGImages", "SegmentationClassContext", "ImageSets/SegmentationContext"):
        (folder / part).mkdir(parents=True)
    for name in ("2008_000002", "2008_000003"):
        Image.fromarray(np.zeros((1, 4, 3), np.uint8)).save(folder / "JPEGImages" / f"{name}.jpg")
        Image.fromarray(VALUES).save(folder / "SegmentationClassContext" / f"{name}.png")
    (folder / "ImageSets" / "SegmentationContext" / "train.txt").write_text("2008_000002\n2008_000003\n")
    (folder / "ImageSets" / "SegmentationContext" / "val.txt").write_text("2008_000003\n")
    return tmp_path


@pytest.mark.parametrize("root", ["", "VOCdevkit", "VOCdevkit/VOC2010"])
def test_with_and_without_background(devkit: Path, root: str) -> None:
    config = PascalContextConfig(root=str(devkit / root))
    train = open_labels(SEGMENTATION, config, "train")
    assert (train.name, train.num_classes, train.ids) == ("pascal_context59", 59, ("2008_000002", "2008_000003"))
    assert train.label(0).tolist() == [[255, 0, 58, 255]]
    whole = PascalContextConfig(root=str(devkit / root), classes=60)
    assert (whole.dataset_name, open_labels(SEGMENTATION, whole, "val").class_names[:2]) == (
        "pascal_context60", ("background", "aeroplane"),
    )  # fmt: skip
    assert open_labels(SEGMENTATION, whole, "val").label(0).tolist() == [[0, 1, 59, 255]]
    assert len(open_images(config, split="val")) == 1


@pytest.mark.parametrize(
    ("values", "check"),
    [
        ([0, 1, 2, 59], None),
        ([255, 0, 1, 58], "context-numbering"),  # less by one
        ([1, 2, 3, 59], "context-numbering"),  # one higher, 59 as 0 or left out
    ],
)
def test_numbers_of_classes_that_were_changed_are_doubtful(
    tmp_path: Path, values: list[int], check: str | None
) -> None:
    folder = tmp_path / "VOC2010"
    for number in range(5):
        save(folder / f"JPEGImages/{number}.jpg", np.zeros((*SIZE, 3), np.uint8))
        save(folder / f"SegmentationClassContext/{number}.png", blocks(values, number))
    (folder / "ImageSets/SegmentationContext").mkdir(parents=True)
    (folder / "ImageSets/SegmentationContext/train.txt").write_text("0\n1\n2\n3\n4\n")
    found = stopping(judged("segmentation", ["train"], kind="pascal_context", root=str(tmp_path)))
    assert found == ([("doubtful", check)] if check else [])


def test_classes_are_alphabetical_and_splits_are_checked(devkit: Path) -> None:
    assert list(CLASSES) == sorted(CLASSES)
    assert len(CLASSES) == 59
    rows = check(PascalContextConfig(root=str(devkit)))
    assert [(row.split, row.found, row.expected, row.fault_count) for row in rows] == [
        ("train", 2, 4996, 0), ("val", 1, 5104, 0),
    ]  # fmt: skip
    (devkit / "VOCdevkit" / "VOC2010" / "SegmentationClassContext" / "2008_000003.png").unlink()
    with pytest.raises(DataError, match=r"2008_000003.png: missing, but the image list names it"):
        open_labels(SEGMENTATION, PascalContextConfig(root=str(devkit)), "val")
