from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import Ade20kConfig, CocoStuffConfig, MasksConfig, open_images, open_labels
from dinoskip.data.sets.labels import SEGMENTATION
from dinoskip.errors import ConfigError, DataError


def write(root: Path, images: str, masks: str, names: tuple[str, ...], value: int = 1) -> None:
    """Photographs and masks of 6×4 pixels: column 0 has value 0, all else ``value``."""
    labels = np.full((4, 6), value, np.uint8)
    labels[:, 0] = 0
    for name in names:
        (root / images / name).parent.mkdir(parents=True, exist_ok=True)
        (root / masks / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(root / images / f"{name}.jpg")
        Image.fromarray(labels).save(root / masks / f"{name}.png")


@pytest.fixture
def ade(tmp_path: Path) -> Path:
    root = tmp_path / "ADEChallengeData2016"
    for part, prefix in (("training", "train"), ("validation", "val")):
        write(root, f"images/{part}", f"annotations/{part}", tuple(f"ADE_{prefix}_{n:08}" for n in range(1, 6)), 150)
    return tmp_path


@pytest.mark.parametrize("below", ["", "ADEChallengeData2016"])
def test_ade20k(ade: Path, below: str) -> None:
    config = Ade20kConfig(root=str(ade / below))
    train, val = (open_labels(SEGMENTATION, config, split) for split in ("train", "val"))
    assert (train.name, train.split, train.list_name, config.dataset_name) == ("ade20k", "train", "train", "ade20k")
    assert (train.ids[0], val.ids[-1], train.num_classes) == ("ADE_train_00000001", "ADE_val_00000005", 150)
    assert (train.class_names[0], train.class_names[149]) == ("wall", "flag")
    assert train.label(0)[0].tolist() == [255, 149, 149, 149, 149, 149]
    assert len(open_images(config, split="val")) == 5
    with pytest.raises(DataError, match=r"no split 'trainaug' \(there are train and val\)"):
        open_labels(SEGMENTATION, config, "trainaug")


def test_further_masks_of_an_image_are_refused_unless_the_ending_is_stated(tmp_path: Path) -> None:
    """The second masks of images with two objects were passed over without a word."""
    names = ("a", "b")
    write(tmp_path, "images/train", "masks/train", names)
    for name in names:
        (tmp_path / f"masks/train/{name}.png").rename(tmp_path / f"masks/train/{name}_mask.png")
    (tmp_path / "classes.txt").write_text("background\nobject")
    shutil.copy(tmp_path / "masks/train/b_mask.png", tmp_path / "masks/train/b_mask_1.png")
    with pytest.raises(DataError) as error:
        open_labels(SEGMENTATION, MasksConfig(root=str(tmp_path)), "train")
    assert "b_mask_1.png" in str(error.value)
    assert len(open_labels(SEGMENTATION, MasksConfig(root=str(tmp_path), mask_ending="_mask"), "train")) == 2


def test_subsets_are_of_the_training_split(ade: Path) -> None:
    config = Ade20kConfig(root=str(ade), subset=3, subset_seed=1)
    train = open_labels(SEGMENTATION, config, "train")
    assert (len(train), train.split, train.list_name) == (3, "train", "train, 3 of 5 by seed 1")
    assert [path.stem for path in train.label_paths] == [path.stem for path in train.image_paths] == list(train.ids)
    assert len(open_labels(SEGMENTATION, config, "val")) == 5
    assert len(open_images(config)) == 5
    with pytest.raises(ConfigError, match="6 images are asked for, the list has 5"):
        open_labels(SEGMENTATION, Ade20kConfig(root=str(ade), subset=6), "train")


def test_coco_stuff_folders_and_name(tmp_path: Path) -> None:
    for part in ("train2017", "val2017"):
        write(tmp_path, f"images/{part}", f"stuffthingmaps/{part}", ("000000000001", "000000000002"), 181)
    config = CocoStuffConfig(root=str(tmp_path), classes=27)
    assert (config.classes, config.dataset_name) == ("27", "coco_stuff27")
    assert CocoStuffConfig(root="x").dataset_name == "coco_stuff"
    dataset = open_labels(SEGMENTATION, config, "val")
    assert dataset.label(1)[0].tolist() == [9, 24, 24, 24, 24, 24]
    (tmp_path / "images" / "val2017").rename(tmp_path / "val2017")
    assert open_labels(SEGMENTATION, config, "val").ids == dataset.ids


def test_pairs_that_are_not_are_named(ade: Path) -> None:
    base = ade / "ADEChallengeData2016"
    config = Ade20kConfig(root=str(ade))
    (base / "annotations" / "validation" / "ADE_val_00000002.png").unlink()
    assert len(open_labels(SEGMENTATION, config, "val")) == 4  # an image without a mask is no part of the set
    (base / "images" / "validation" / "ADE_val_00000004.jpg").unlink()
    with pytest.raises(
        DataError, match=r"ADE_val_00000004.png: this mask has no image in .*validation \(1 have none\)"
    ):
        open_labels(SEGMENTATION, config, "val")
    faults: list[str] = []
    assert len(open_labels(SEGMENTATION, config, "val", faults=faults)) == 3
    assert [fault.partition(":")[0].rpartition("/")[2] for fault in faults] == [
        "ADE_val_00000004.png",
        "ADE_val_00000002.jpg",
    ]
    Image.fromarray(np.full((4, 6), 151, np.uint8)).save(base / "annotations" / "validation" / "ADE_val_00000001.png")
    with pytest.raises(DataError, match=r"label value 151 \(24 pixels\) is outside the 150 classes"):
        open_labels(SEGMENTATION, config, "val", faults=[]).label(0)


def test_own_folders(tmp_path: Path) -> None:
    write(tmp_path, "images/train", "masks/train", ("a", "sub/b"), 3)
    write(tmp_path, "photos", "labels", ("z",), 4)
    (tmp_path / "classes.txt").write_text("road\n\nsky\n")
    config = MasksConfig(root=str(tmp_path), first_value=2)
    dataset = open_labels(SEGMENTATION, config, "train")
    assert (dataset.name, dataset.ids, dataset.class_names) == (tmp_path.name, ("a", "sub/b"), ("road", "sky"))
    assert dataset.label(1)[0].tolist() == [255, 1, 1, 1, 1, 1]
    other = config.model_copy(update={"images": "photos", "masks": "labels"})
    with pytest.raises(DataError, match="label value 4"):
        open_labels(SEGMENTATION, other, "val").label(0)
    for content, text in (
        ("", "1 to 255 different"),
        ("a\na\n", "different"),
        ("\n".join(map(str, range(255))), "do not fit"),
    ):
        (tmp_path / "classes.txt").write_text(content)
        with pytest.raises(DataError, match=text):
            open_labels(SEGMENTATION, config, "train")
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(DataError, match=r"classes.txt: no such list of classes"):
        open_labels(SEGMENTATION, config, "train")
