from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import CityscapesConfig, check, open_images, open_labels
from dinoskip.data.sets.cityscapes import CLASSES, LABEL_IDS
from dinoskip.data.sets.labels import SEGMENTATION
from dinoskip.errors import DataError

NAMES = ("aachen/aachen_000000_000019", "ulm/ulm_000001_000019")


def write(root: Path, split: str, names: tuple[str, ...], values: np.ndarray, ending: str) -> None:
    for name in names:
        image, mask = (root / part / split / name for part in ("leftImg8bit", "gtFine"))
        for path in (image, mask):
            path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((*values.shape, 3), np.uint8)).save(f"{image}_leftImg8bit.png")
        Image.fromarray(values).save(f"{mask}{ending}.png")
        Image.fromarray(np.zeros((*values.shape, 4), np.uint8)).save(f"{mask}_gtFine_color.png")
        Image.fromarray(values).save(f"{mask}_gtFine_instanceIds.png")


VALUES = np.array([[0, 7, 8, 33], [26, 29, 34 - 1, 255]], np.uint8)


def test_label_ids_become_the_19_classes(tmp_path: Path) -> None:
    write(tmp_path, "train", NAMES, VALUES, "_gtFine_labelIds")
    write(tmp_path, "val", NAMES[:1], VALUES, "_gtFine_labelIds")
    config = CityscapesConfig(root=str(tmp_path))
    train = open_labels(SEGMENTATION, config, "train")
    assert (train.name, train.ids, train.num_classes) == ("cityscapes", NAMES, 19)
    assert train.label(0).tolist() == [[255, 0, 1, 18], [13, 255, 18, 255]]
    assert train.path(1).name == "ulm_000001_000019_leftImg8bit.png"
    assert len(open_images(config, split="val")) == 1
    assert dict(zip(LABEL_IDS, CLASSES, strict=True)) == {
        7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light",
        20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car",
        27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle",
    }  # fmt: skip
    rows = check(config)
    assert [(row.split, row.found, row.expected, row.fault_count) for row in rows] == [
        ("train", 2, 2975, 0), ("val", 1, 500, 0),
    ]  # fmt: skip
    assert len(open_labels(SEGMENTATION, CityscapesConfig(root=str(tmp_path), subset=1), "train")) == 1


def test_train_ids_are_the_classes(tmp_path: Path) -> None:
    write(tmp_path, "val", NAMES, np.array([[0, 18, 255]], np.uint8), "_gtFine_labelTrainIds")
    assert open_labels(SEGMENTATION, CityscapesConfig(root=str(tmp_path)), "val").label(1).tolist() == [[0, 18, 255]]
    write(tmp_path, "val", NAMES, np.array([[19]], np.uint8), "_gtFine_labelTrainIds")
    with pytest.raises(DataError, match="label value 19"):
        open_labels(SEGMENTATION, CityscapesConfig(root=str(tmp_path)), "val").label(0)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    config = CityscapesConfig(root=str(tmp_path))
    write(tmp_path, "val", NAMES, VALUES, "_gtFine_labelIds")
    with pytest.raises(DataError, match=r"gtFine/train: no such folder: expected the masks of Cityscapes"):
        open_labels(SEGMENTATION, config, "train")
    with pytest.raises(DataError, match=r"no split 'test' \(there are train and val\)"):
        open_labels(SEGMENTATION, config, "test")
    (tmp_path / "gtFine" / "val" / f"{NAMES[0]}_gtFine_labelIds.png").unlink()
    assert open_labels(SEGMENTATION, config, "val").ids == NAMES[1:]
