"""Kind spair71k: its layout, and what is said of files that are missing or no annotations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.orientation import label_orientation
from dinoskip.data.sets import open_images, open_labels
from dinoskip.data.sets.check import check
from dinoskip.errors import DataError
from dinoskip_video.labels import CORRESPONDENCE
from dinoskip_video.sets.spair import SpairConfig

ENTRY: dict[str, Any] = {
    "category": "cat",
    "src_imname": "a.jpg",
    "trg_imname": "b.jpg",
    "src_imsize": [20, 10, 3],
    "trg_bndbox": [2, 3, 12, 7],
    "src_kps": [[1, 2], [3, 4]],
    "trg_kps": [[5, 6], [7, 8]],
}


def write_pair(root: Path, name: str, entry: object) -> None:
    (root / "PairAnnotation" / "test").mkdir(parents=True, exist_ok=True)
    (root / "PairAnnotation" / "test" / f"{name}.json").write_text(json.dumps(entry))


@pytest.fixture
def spair(tmp_path: Path) -> Path:
    root = tmp_path / "SPair-71k"
    (root / "JPEGImages" / "cat").mkdir(parents=True)
    for name in "abc":
        Image.new("RGB", (20, 10)).save(root / "JPEGImages" / "cat" / f"{name}.jpg")
    write_pair(root, "000000-a-b:cat", ENTRY)
    write_pair(root, "000001-c-b_cat", {**ENTRY, "src_imname": "c.jpg"})  # as systems without : in names unpack it
    (root / "Layout" / "large").mkdir(parents=True)
    (root / "Layout" / "large" / "test.txt").write_text("000000-a-b:cat\n000001-c-b:cat\n")
    return root


@pytest.mark.parametrize("above", [False, True])
def test_pairs_of_a_list(spair: Path, above: bool) -> None:
    config = SpairConfig(root=str(spair.parent if above else spair))
    assert CORRESPONDENCE.given_by(config)
    dataset = open_labels(CORRESPONDENCE, config, "test")
    assert dataset.ids == ("cat/a.jpg", "cat/b.jpg", "cat/c.jpg")
    assert [(pair.source, pair.target, pair.category) for pair in dataset.pairs] == [(0, 1, "cat"), (2, 1, "cat")]
    pair = dataset.pairs[0]
    np.testing.assert_array_equal(pair.source_points, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(pair.target_points, [[5, 6], [7, 8]])
    assert pair.extent == 10
    assert pair.visible.all()
    assert dataset.size(0) == (10, 20)
    assert dataset.path(2) == spair / "JPEGImages" / "cat" / "c.jpg"
    assert dataset.class_names == ("cat",)
    assert len(dataset.target_files) == 2
    assert len(open_images(config)) == 3


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no box": (lambda entry: entry.pop("trg_bndbox"), "not an annotation of SPair-71k"),
    "empty box": (lambda entry: entry.update(trg_bndbox=[3, 3, 3, 3]), "box in the target image is empty"),
    "points": (lambda entry: entry["src_kps"].append([1, 1]), "3 points in one image, 2 in the other"),
    "no numbers": (lambda entry: entry.update(src_kps=[["a", 1], [2, 2]]), "keypoints are not numbers"),
    "not finite": (lambda entry: entry.update(src_kps=[[float("nan"), 1], [2, 2]]), "keypoints are not finite"),
    "outside": (lambda entry: entry.update(src_imname="../b.jpg"), "points outside"),
    "no image": (lambda entry: entry.update(src_imname="d.jpg"), "no such image"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_bad_annotations_are_one_line(spair: Path, change: str) -> None:
    edit, text = CHANGES[change]
    entry = json.loads(json.dumps(ENTRY))
    edit(entry)
    write_pair(spair, "000000-a-b:cat", entry)
    config = SpairConfig(root=str(spair))
    with pytest.raises(DataError, match=text):
        open_labels(CORRESPONDENCE, config, "test")
    faults: list[str] = []
    assert len(open_labels(CORRESPONDENCE, config, "test", faults=faults).pairs) == 1
    assert len(faults) == 1


@pytest.mark.parametrize(
    ("orientation", "size", "points"),
    [(1, [20, 10], [1, 2]), (6, [20, 10], [8, 1]), (6, [10, 20], [1, 2]), (8, [20, 10], [2, 19])],
)
def test_points_of_photographs_that_exif_turns_lie_as_the_stated_size_says(
    spair: Path, orientation: int, size: list[int], points: list[int]
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (20, 10)).save(spair / "JPEGImages/cat/a.jpg", exif=exif)
    write_pair(spair, "000000-a-b:cat", {**ENTRY, "src_imsize": [*size, 3]})
    opened = open_labels(CORRESPONDENCE, SpairConfig(root=str(spair)), "test")
    np.testing.assert_array_equal(opened.pairs[0].source_points[0], points)
    assert (opened.pairs[0].source_points <= np.array(opened.size(0))[::-1]).all()
    assert opened.labels_by == ""


def test_points_of_which_nothing_says_how_they_lie_are_refused_or_read_as_set(spair: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.new("RGB", (20, 10)).save(spair / "JPEGImages/cat/a.jpg", exif=exif)
    config = SpairConfig(root=str(spair))
    with pytest.raises(DataError, match=r"1 photographs are turned .*a\.jpg.*label_orientation"):
        open_labels(CORRESPONDENCE, config, "test")
    faults: list[str] = []
    assert len(open_labels(CORRESPONDENCE, config, "test", faults=faults).pairs) == 2
    assert len(faults) == 1
    for way, point in (("upright", [1, 2]), ("stored", [19, 8])):
        opened = open_labels(CORRESPONDENCE, config.model_copy(update={"label_orientation": way}), "test")
        assert opened.pairs[0].source_points[0].tolist() == point
        assert label_orientation(opened) == f"{way} (set)"


def test_what_is_missing_is_named(spair: Path) -> None:
    config = SpairConfig(root=str(spair))
    with pytest.raises(DataError, match="PairAnnotation/val: no such folder"):
        open_labels(CORRESPONDENCE, config, "val")
    (spair / "PairAnnotation" / "test" / "000000-a-b:cat.json").unlink()
    with pytest.raises(DataError, match=r"000000-a-b:cat\.json: no such file, it is in the list"):
        open_labels(CORRESPONDENCE, config, "test")
    with pytest.raises(DataError, match="no PairAnnotation here"):
        open_labels(CORRESPONDENCE, SpairConfig(root=str(spair / "Layout")), "test")


def test_check_counts_pairs(spair: Path) -> None:
    row = check(SpairConfig(root=str(spair)))[2]
    assert (row.task, row.split, row.found, row.expected, row.classes) == (
        "correspondence",
        "test",
        2,
        12234,
        {"cat": 2},
    )
    assert row.lines()[0].startswith("spair71k correspondence test: 2 pairs of 12,234 expected, 2 read")
