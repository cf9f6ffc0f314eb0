"""Kinds ecssd, duts_te and dut_omron."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import TypeAdapter

from dinoskip.data import DatasetConfig, check, open_labels
from dinoskip.data.sets.labels import SEGMENTATION
from dinoskip.errors import DataError

LAYOUTS = [
    ("ecssd", "images", "ground_truth_mask", 1000),
    ("ecssd", "ECSSD/img", "ECSSD/gt", 1000),
    ("duts_te", "DUTS-TE/DUTS-TE-Image", "DUTS-TE/DUTS-TE-Mask", 5019),
    ("dut_omron", "DUT-OMRON-image", "pixelwiseGT-new-PNG", 5168),
]


def config(kind: str, root: Path) -> DatasetConfig:
    return TypeAdapter(DatasetConfig).validate_python({"kind": kind, "root": str(root)})


@pytest.mark.parametrize(("kind", "images", "masks", "count"), LAYOUTS)
def test_every_value_but_zero_is_the_object(tmp_path: Path, kind: str, images: str, masks: str, count: int) -> None:
    for folder in (images, masks):
        (tmp_path / folder).mkdir(parents=True)
    for name, values in (("2", [0, 255, 7]), ("1", [0, 0, 1])):
        Image.fromarray(np.zeros((1, 3, 3), dtype=np.uint8)).save(tmp_path / images / f"{name}.jpg")
        Image.fromarray(np.array([values], dtype=np.uint8)).save(tmp_path / masks / f"{name}.png")
    dataset = open_labels(SEGMENTATION, config(kind, tmp_path), "test")
    assert (dataset.name, dataset.ids, dataset.class_names) == (kind, ("1", "2"), ("background", "object"))
    assert dataset.label(1).tolist() == [[0, 1, 1]]
    (row,) = check(config(kind, tmp_path))
    assert (row.found, row.expected, row.fault_count, row.ok) == (2, count, 0, False)
    assert row.classes == {"background": 3, "object": 3}
    with pytest.raises(DataError, match="no split 'val'"):
        open_labels(SEGMENTATION, config(kind, tmp_path), "val")
    (tmp_path / masks / "3.png").write_bytes((tmp_path / masks / "1.png").read_bytes())
    with pytest.raises(DataError, match=r"3\.png: this mask has no image"):
        open_labels(SEGMENTATION, config(kind, tmp_path), "test")


def test_another_layout_is_named(tmp_path: Path) -> None:
    (tmp_path / "DUTS-TE-Image").mkdir()
    (tmp_path / "DUTS-TE-Mask").mkdir()
    with pytest.raises(DataError, match=r"expected ecssd: images/ and ground_truth_mask/.*DUTS-TE: use kind duts_te"):
        open_labels(SEGMENTATION, config("ecssd", tmp_path), "test")
