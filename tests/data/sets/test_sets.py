from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import TypeAdapter, ValidationError

from dinoskip.data import (
    Ade20kConfig,
    Coco20kConfig,
    CocoConfig,
    CocoJsonConfig,
    CocoStuffConfig,
    DatasetConfig,
    FolderConfig,
    ImagesConfig,
    MasksConfig,
    ScenesConfig,
    VocConfig,
    check,
    open_images,
    open_labels,
    open_training_images,
)
from dinoskip.data.sets import KINDS, AnyDataset, folder_kinds, published_kinds, synthetic_kinds
from dinoskip.data.sets.labels import CLASSES, DETECTION, LABELS, SEGMENTATION
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.images import read_image
from dinoskip.pipeline.stages.inputs import OneDataset
from dinoskip.pipeline.study import build_nodes, study_of
from dinoskip.settings.config import RawConfig, validate
from dinoskip.settings.keys import settings_for_key

ADAPTER = TypeAdapter(DatasetConfig)


def test_configuration_is_a_union_by_kind() -> None:
    assert ADAPTER.validate_python({"kind": "voc", "root": "x"}) == VocConfig(root="x", year=2012)
    assert isinstance(ADAPTER.validate_python({"kind": "scenes"}), ScenesConfig)
    for bad in (
        {"kind": "voc", "root": "x", "year": 2011},
        {"kind": "coco"},
        {"kind": "images", "root": "x", "year": 1},
    ):
        with pytest.raises(ValidationError):
            ADAPTER.validate_python(bad)


def test_a_split_may_stand_for_the_augmented_list(voc_tree: Path) -> None:
    config = VocConfig(root=str(voc_tree), train_list="trainaug")
    dataset = open_labels(SEGMENTATION, config, "train")
    assert (dataset.list_name, dataset.ids) == ("trainaug", ("a1",))
    assert dataset.label_paths[0].parent.name == "SegmentationClassAug"
    assert open_images(config).names == ("a1.jpg", "a2.jpg")


@pytest.mark.parametrize(
    ("config", "name", "masks", "boxes"),
    [
        (ImagesConfig(root="/a/photos"), "photos", False, False),
        (FolderConfig(root="/a/imagenet"), "imagenet", False, False),
        (VocConfig(root="/a/VOCdevkit", year=2007), "voc2007", True, True),
        (ScenesConfig(), "scenes", True, True),
        (Ade20kConfig(root="/a"), "ade20k", True, False),
        (CocoStuffConfig(root="/a"), "coco_stuff", True, False),
        (MasksConfig(root="/a/mine"), "mine", True, False),
        (CocoConfig(root="/a"), "coco2017", False, True),
        (CocoConfig(root="/a/birds", annotations="{split}.json"), "birds", False, True),
        (Coco20kConfig(root="/a"), "coco20k", False, True),
        (CocoJsonConfig(root="/a", annotations="b/birds.json"), "birds", False, True),
    ],
)
def test_what_each_kind_is_for(config: AnyDataset, name: str, masks: bool, boxes: bool, tmp_path: Path) -> None:
    assert (config.dataset_name, SEGMENTATION.given_by(config), DETECTION.given_by(config)) == (name, masks, boxes)
    for label, able in ((SEGMENTATION, masks), (DETECTION, boxes)):
        with pytest.raises(DataError if able else ConfigError):
            open_labels(label, config, "val", tmp_path / "none")


def test_voc_opens_in_every_role(voc_tree: Path) -> None:
    config = VocConfig(root=str(voc_tree))
    assert config.dataset_name == "voc2012"
    assert open_images(config).names == ("a1.jpg", "a2.jpg")
    assert len(open_images(config, split="trainval")) == 3
    assert open_labels(SEGMENTATION, config, "val").ids == ("a3",)
    assert open_labels(DETECTION, config, "trainval").name == "voc2012"
    labelled = open_labels(CLASSES, config, "trainval")
    assert [labelled.class_names[label] for label in labelled.labels] == ["dog", "dog", "cat"]
    assert labelled.path(0).is_file()


def test_folders_open_as_images_and_classes(photo_folder: Path) -> None:
    config = ImagesConfig(root=str(photo_folder))
    assert len(open_images(config)) == 12
    for label in LABELS.values():
        with pytest.raises(ConfigError, match="use kind"):
            open_labels(label, config, "val")
    classes = FolderConfig(root=str(photo_folder))
    with pytest.raises(DataError, match="train: no such folder"):
        open_images(classes)


def test_scenes_need_the_composed_folder(tmp_path: Path) -> None:
    config = ScenesConfig(images=4, size=64, classes=2)
    with pytest.raises(ConfigError, match=r"scenes: .*folder"):
        open_images(config)
    config.generate(tmp_path)
    assert open_labels(SEGMENTATION, config, "val", tmp_path).name == "scenes"
    assert len(open_images(config, tmp_path)) == 3
    assert open_labels(CLASSES, config, "train", tmp_path).class_names == ("flower", "coin")


def test_check_counts_faults_and_classes(voc_tree: Path) -> None:
    config = VocConfig(root=str(voc_tree))
    image = voc_tree / "VOC2012" / "JPEGImages" / "a1.jpg"
    image.write_bytes(image.read_bytes()[:300])
    (voc_tree / "VOC2012" / "Annotations" / "a2.xml").write_text("<annotation>")
    (voc_tree / "VOC2012" / "ImageSets" / "Segmentation" / "val.txt").unlink()
    train, val, trainaug, boxes = check(config)
    assert (train.found, train.expected, train.sampled, train.fault_count, train.ok) == (2, 1464, 2, 1, False)
    assert "a1.jpg" in train.faults[0]
    assert train.classes["dog"] == 25 * 15
    assert train.classes["cat"] == 0
    assert (val.found, val.fault_count) == (0, 1)
    assert "no such image list" in val.faults[0]
    assert trainaug.expected == 10582
    assert (boxes.expected, boxes.fault_count, boxes.classes["cat"]) == (11540, 2, 1)
    assert any("a2.xml" in line for line in boxes.lines())
    assert boxes.lines()[0].startswith("voc2012 detection trainval: 3 images of 11,540 expected")


def test_check_of_folders_and_scenes(photo_folder: Path, tmp_path: Path) -> None:
    for number in range(15):
        (photo_folder / f"bad{number}.jpg").write_bytes(b"no")
    (row,) = check(ImagesConfig(root=str(photo_folder)), sample=None)
    assert (row.found, row.fault_count, len(row.faults), row.ok) == (27, 15, 10, False)
    (sampled,) = check(ImagesConfig(root=str(photo_folder)), sample=5)
    assert sampled.sampled == 5
    config = ScenesConfig(images=5, size=64)
    config.generate(tmp_path / "scenes")
    rows = check(config, tmp_path / "scenes")
    assert [(row.task, row.found) for row in rows] == [
        ("segmentation", 4), ("segmentation", 1), ("detection", 4), ("detection", 1),
    ]  # fmt: skip
    assert all(row.ok for row in rows)
    with pytest.raises(DataError, match="no such folder"):
        check(ImagesConfig(root=str(tmp_path / "none")))


def test_shards_stand_in_for_a_folder_in_training(photo_folder: Path, voc_tree: Path, tmp_path: Path) -> None:
    for name in ("train", "val"):
        (tmp_path / "set" / name).mkdir(parents=True)
        with tarfile.open(tmp_path / "set" / name / "a.tar", "w") as archive:
            archive.add(photo_folder, "photos")
    assert len(open_training_images(FolderConfig(root=str(tmp_path / "set")))) == 12
    assert len(open_training_images(ImagesConfig(root=str(tmp_path / "set" / "val")))) == 12
    assert len(open_training_images(ImagesConfig(root=str(photo_folder)))) == 12
    assert open_training_images(VocConfig(root=str(voc_tree))).names == ("a1.jpg", "a2.jpg")


def test_a_voc_folder_given_as_class_folders_is_answered_with_its_kind(tmp_path: Path) -> None:
    (tmp_path / "VOC2007" / "JPEGImages").mkdir(parents=True)
    for root in (tmp_path, tmp_path / "VOC2007"):
        with pytest.raises(DataError, match=r"laid out as Pascal VOC \(use kind voc\)"):
            open_labels(CLASSES, FolderConfig(root=str(root)), "train")


def test_the_table_says_what_each_kind_can_do() -> None:
    assert set(folder_kinds()) == set(KINDS) - set(synthetic_kinds())
    own = [kind for kind in published_kinds() if KINDS[kind].__module__.startswith("dinoskip.")]
    assert own == ["voc", "ade20k", "coco_stuff", "coco", "coco20k"]
    with pytest.raises(ConfigError, match=r"use kind voc, ade20k, cityscapes, .* or scenes"):
        open_labels(SEGMENTATION, ImagesConfig(root="x"), "val")


def test_the_kinds_are_known_without_torch() -> None:
    code = "import sys, dinoskip.data.sets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_limit_cuts_every_labelled_split_down_alike(tmp_path: Path) -> None:
    root = ScenesConfig(images=16, size=64, val_fraction=0.5).generate(tmp_path / "scenes")
    whole, cut = ScenesConfig(images=16), ScenesConfig(images=16, limit=3)
    for label in (SEGMENTATION, DETECTION, CLASSES):
        every, part = open_labels(label, whole, "val", root), open_labels(label, cut, "val", root)
        assert (len(every), len(part)) == (8, 3)
        chosen = [every.ids.index(name) for name in part.ids]
        assert chosen == sorted(chosen)
        assert [part.path(i) for i in range(3)] == [every.path(i) for i in chosen]
        assert open_labels(label, ScenesConfig(images=16, limit=8), "val", root).ids == every.ids
    assert (
        open_labels(CLASSES, cut, "val", root).labels == open_labels(CLASSES, whole, "val", root).labels[chosen]
    ).all()
    part, every = open_labels(SEGMENTATION, cut, "val", root), open_labels(SEGMENTATION, whole, "val", root)
    assert (part.label(1) == every.label(every.ids.index(part.ids[1]))).all()


def test_a_limit_enters_the_keys_of_what_is_evaluated_and_of_nothing_else() -> None:
    def settings(**given: int) -> dict[str, object]:
        tree = {
            "name": "x",
            "data": {"scenes": {"kind": "scenes", **given}},
            "pretrain": {"dataset": "scenes"},
            "evaluate": {"knn": {"datasets": ["scenes"]}},
        }
        study, variants = study_of(RawConfig(tree))
        return {node.id: node.plain for node in build_nodes(study, variants) if node.stage != "report"}

    before, after = settings(), settings(limit=5)
    assert {name.partition("/")[0] for name in before if before[name] != after[name]} == {"features", "knn"}


def test_a_stated_pixel_range_reaches_every_image_of_a_set_and_its_keys(tmp_path: Path) -> None:
    values = (np.arange(192).reshape(12, 16) * 20).astype(np.uint16)  # 12 bits
    for split in ("train", "val"):
        for name in "ab":
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(values).save(tmp_path / split / name / "1.png")
    plain = FolderConfig(root=str(tmp_path))
    stated = FolderConfig(root=str(tmp_path), pixel_range=4095)
    expected = np.rint(values * (255 / 4095))
    with pytest.raises(DataError, match="pixel_range: 4095"):
        open_images(plain, split="val").read(0)
    labelled = open_labels(LABELS["classes"], stated, "val")
    for pixels in (
        open_images(stated, split="val").read(0),
        open_training_images(stated).read(0),
        read_image(labelled.path(1)),
        read_image(labelled.part([1]).path(0)),
    ):
        np.testing.assert_array_equal(pixels[..., 0], expected)
    assert settings_for_key(plain) == {"kind": "folder", "root": str(tmp_path)}
    assert settings_for_key(stated)["pixel_range"] == 4095
    assert open_training_images(stated).fingerprint() != open_training_images(plain).fingerprint()
    with pytest.raises(ConfigError, match="pixel_range"):
        validate(OneDataset, RawConfig({"dataset": {"kind": "folder", "root": str(tmp_path), "pixel_range": 12}}))
