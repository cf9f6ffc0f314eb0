"""Commands and kinds take the photographs of a folder; every format that is decoded is listed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from PIL import Image

from dinoskip.data import ImagesConfig, VocConfig, check, list_images, open_images
from dinoskip.data.photographs import open_photographs, photographs_below
from dinoskip.data.sets import open_labels
from dinoskip.data.sets.labels import DETECTION
from dinoskip.data.shards import TarShards
from dinoskip.data.splits import split_path
from dinoskip.errors import DataError
from dinoskip.features.small_images import without_small
from dinoskip.features.transform import Transform
from dinoskip.io.images import EXTENSIONS, read_image
from dinoskip.pipeline.look.start import _flow
from dinoskip.pipeline.look.study import dataset_of, labels_of
from dinoskip.pipeline.stages.inputs import OneDataset
from dinoskip.settings.config import RawConfig, validate
from tests.helpers import folders_people_have as made
from tests.helpers.folders_people_have import photo


def test_every_format_that_is_decoded_is_listed(tmp_path: Path) -> None:
    formats = {".jfif": "JPEG", ".jpe": "JPEG", ".gif": "GIF", ".jp2": "JPEG2000", ".avif": "AVIF", ".dib": "DIB"}
    there = {ending: name for ending, name in formats.items() if ending in EXTENSIONS}
    assert {".jfif", ".jpe", ".gif", ".dib"} <= there.keys()
    for ending, name in there.items():
        made._photo(3).save(tmp_path / f"a{ending}", format=name)
    names = list_images(tmp_path)
    assert {Path(name).suffix for name in names} == there.keys()
    assert all(read_image(tmp_path / name).shape == (*made.SIZE, 3) for name in names)


def test_the_photographs_of_a_data_set_are_opened(tmp_path: Path) -> None:
    right = made.voc(tmp_path)
    for folder in (
        photographs_below(tmp_path),
        open_photographs(tmp_path),
        open_images(ImagesConfig(root=str(tmp_path))),
    ):
        assert set(folder.names) == right.photographs
    everything = open_images(ImagesConfig(root=str(tmp_path), everything=True))
    assert len(everything.names) == len(right.photographs) + right.maps
    assert photographs_below(tmp_path, everything=True).names == everything.names
    (row,) = check(ImagesConfig(root=str(tmp_path)))
    assert (row.found, row.fault_count, len(row.notes)) == (len(right.photographs), 0, 1)


def test_shards_are_opened_as_shards(tmp_path: Path) -> None:
    made.shards(tmp_path)
    assert isinstance(open_photographs(tmp_path), TarShards)


@pytest.mark.parametrize("kind", ["voc", "masks"])
def test_a_mixture_is_read_as_the_kind_that_is_named(tmp_path: Path, kind: str) -> None:
    made.voc(tmp_path, inner="VOC2012")
    made.pairs(tmp_path)
    with pytest.raises(DataError, match="is a mixture"):
        labels_of(tmp_path)
    assert labels_of(tmp_path, kind).data["kind"] == kind


def test_settings_that_are_recognised_go_into_a_study(tmp_path: Path) -> None:
    made.coco(tmp_path, ("train", "valid"), images="images/{}", json="annotations/instances_{}.json")
    labels = labels_of(tmp_path)
    assert labels.found["detection"] == ("val",)
    read = yaml.safe_load(_flow(labels.data))
    assert validate(OneDataset, RawConfig({"dataset": read})).dataset == dataset_of(labels.data)
    assert labels_of(tmp_path, "coco").data == labels.data


def test_voc_with_masks_alone_is_whole(tmp_path: Path) -> None:
    made.voc(tmp_path, boxes=False)
    rows = check(VocConfig(root=str(tmp_path)))
    assert [(row.task, row.split, row.fault_count) for row in rows] == [
        ("segmentation", "train", 0), ("segmentation", "val", 0),
    ]  # fmt: skip
    made.voc(tmp_path / "boxes")
    names = [(row.task, row.split) for row in check(VocConfig(root=str(tmp_path / "boxes")))]
    assert names == [("segmentation", "train"), ("segmentation", "val"), ("detection", "train"), ("detection", "val")]


def test_a_split_by_another_name(tmp_path: Path) -> None:
    (tmp_path / "valid").mkdir()
    assert split_path(tmp_path, "{split}", "val") == tmp_path / "valid"
    assert split_path(tmp_path, "{split}", "test") == tmp_path / "test"
    (tmp_path / "Validation").mkdir()
    with pytest.raises(DataError, match="may be"):
        split_path(tmp_path, "{split}", "val")
    (tmp_path / "val").mkdir()
    assert split_path(tmp_path, "{split}", "val") == tmp_path / "val"


def test_images_smaller_than_a_patch_are_left_out(tmp_path: Path) -> None:
    names = ["a.png", "b.png", "tiny.png"]
    for at, name in enumerate(names):
        photo(tmp_path / name, at)
    Image.new("RGB", (40, 9)).save(tmp_path / "tiny.png")
    made.text(tmp_path / "annotations.json", made.coco_json(names).replace(f'"height": {made.SIZE[0]}, ', ""))
    opened = open_labels(DETECTION, dataset_of({"kind": "coco_json", "root": str(tmp_path)}), "all")
    native = Transform(mode="native")
    kept = without_small(opened, native, 16)
    assert (kept.ids, kept.left_out) == (("a.png", "b.png"), 1)
    assert without_small(opened, native, 8) is opened
    assert without_small(opened, Transform(), 16) is opened, "it is enlarged"
    with pytest.raises(DataError, match="all images are smaller than a patch"):
        without_small(opened, native, 64)
