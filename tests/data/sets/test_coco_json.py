from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import Coco20kConfig, CocoJsonConfig, open_images, open_labels
from dinoskip.data.sets.coco20k import read_coco20k_list
from dinoskip.data.sets.coco_json import CocoDetection
from dinoskip.data.sets.labels import DETECTION, SEGMENTATION
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import confined

SHARED = Path(__file__).parents[3].parent / "shared"
NAMES = ("COCO_train2014_000000000009.jpg", "COCO_train2014_000000000002.jpg", "COCO_train2014_000000000005.jpg")


def annotation(number: int, image: int, box: list[float], category: int = 18, crowd: int = 0) -> dict[str, Any]:
    return {"id": number, "image_id": image, "category_id": category, "bbox": box, "iscrowd": crowd, "area": 1}


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """A COCO root with three images of train2014, the list naming two of them; 18 is dog, 1 person."""
    root = tmp_path / "coco"
    for folder in ("train2014", "annotations"):
        (root / folder).mkdir(parents=True)
    for name in NAMES:
        Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(root / "train2014" / name)
    content = {
        "images": [
            {"id": n, "file_name": name, "height": 40, "width": 60} for n, name in zip((9, 2, 5), NAMES, strict=True)
        ],
        "annotations": [
            annotation(1, 9, [0.5, 1.5, 10.0, 2.5]),
            annotation(2, 9, [2.4, 2.6, 3.2, 3.2], 1),
            annotation(3, 9, [0, 0, 60, 40], crowd=1),
            annotation(4, 5, [1, 1, 0.2, 0.2]),
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
    }
    (root / "annotations" / "instances_train2014.json").write_text(json.dumps(content))
    (root / "coco_20k_filenames.txt").write_text(f"train2014/{NAMES[0]}\ntrain2014/{NAMES[1]}\n")
    return root


def rewrite(root: Path, change: Any) -> None:
    path = root / "annotations" / "instances_train2014.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_coco20k_follows_its_list(coco: Path) -> None:
    config = Coco20kConfig(root=str(coco))
    dataset = open_labels(DETECTION, config, "trainval")
    assert (dataset.name, dataset.ids) == ("coco20k", tuple(name[:-4] for name in NAMES[:2]))
    assert dataset.split == "coco_20k_filenames, not the published list"
    assert dataset.class_names == ("person", "dog")
    # x, y, x + w, y + h, each rounded half to even: 0.5 1.5 10.5 4.0 and 2.4 2.6 5.6 5.8; the crowd is left out
    assert dataset.boxes(0).tolist() == [[0, 2, 10, 4], [2, 3, 6, 6]]
    assert dataset.boxes(0).dtype == np.float32
    assert dataset.box_labels(0) == ["dog", "person"]
    assert dataset.boxes(1).shape == (0, 4)
    assert [path.name for path in dataset.target_files] == ["instances_train2014.json", "coco_20k_filenames.txt"]
    assert open_images(config).names == tuple(f"train2014/{name}" for name in NAMES[:2])
    with pytest.raises(ConfigError, match="no label maps"):
        open_labels(SEGMENTATION, config, "val")


def test_images_may_lie_one_folder_deeper(coco: Path) -> None:
    (coco / "images").mkdir()
    (coco / "train2014").rename(coco / "images" / "train2014")
    assert open_labels(DETECTION, Coco20kConfig(root=str(coco)), "x").path(0).is_file()


def test_any_json_in_the_order_of_its_names(coco: Path) -> None:
    config = CocoJsonConfig(root=str(coco / "train2014"), annotations="../annotations/instances_train2014.json")
    dataset = open_labels(DETECTION, config, "all")
    assert config.dataset_name == dataset.name == "instances_train2014"
    assert dataset.ids == tuple(sorted(NAMES))
    assert [len(dataset.boxes(i)) for i in range(3)] == [0, 1, 2]
    assert dataset.boxes(1).tolist() == [[1, 1, 1, 1]]  # less than a pixel: kept, as in the published evaluations


def test_missing_images_are_counted_or_noted(coco: Path) -> None:
    for name in NAMES[:2]:
        (coco / "train2014" / name).unlink()
    config = Coco20kConfig(root=str(coco))
    with pytest.raises(DataError, match=r"9.jpg: missing, but coco_20k_filenames.txt names it \(and 1 more of 2\)"):
        open_labels(DETECTION, config, "x")
    faults: list[str] = []
    assert len(open_labels(DETECTION, config, "x", faults=faults)) == 0
    assert [fault.partition(": ")[2][:11] for fault in faults] == ["missing, bu", "missing, bu", "not the pub"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda c: c["images"][0].update(file_name="../../etc/passwd"),
            "entry '../../etc/passwd' points outside",
        ),
        (lambda c: c["images"][0].update(file_name="/etc/passwd"), "points outside"),
        (lambda c: c["images"][0].update(file_name=7), "7 is not a file name"),
        (lambda c: c["images"][0].pop("file_name"), "no id or file_name"),
        (lambda c: c["images"][0].update(file_name=NAMES[1]), "listed twice"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, 3]), "annotation 1 has no bbox of four numbers"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, -3, 4]), "annotation 1 has an impossible bbox"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, float("nan"), 4]), "sides of bbox are not finite"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, 10**400, 4]), "sides of bbox are not finite"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, 1e300, 4]), "impossible bbox"),
        (lambda c: c["annotations"][0].update(bbox=[-(2**25), 2, 3, 4]), "impossible bbox"),
        (lambda c: c["annotations"][0].update(category_id=99), "not listed: 99"),
        (lambda c: c["categories"][0].update(name="person"), "different names"),
        (lambda c: c["categories"][0].pop("name"), "a category has no id or name"),
        (lambda c: c.pop("categories"), "needs lists of images"),
        (lambda c: c.update(annotations=5), "needs lists of images"),
        (lambda c: c["annotations"][0].pop("image_id"), "not a readable COCO file"),
    ],
)
def test_bad_json_is_one_line(coco: Path, change: Any, text: str) -> None:
    rewrite(coco, change)
    config = CocoJsonConfig(root=str(coco / "train2014"), annotations="../annotations/instances_train2014.json")
    with pytest.raises(DataError, match=text) as caught:
        open_labels(DETECTION, config, "x")
    assert "instances_train2014.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_files_and_lists(coco: Path) -> None:
    path, names = coco / "annotations" / "instances_train2014.json", coco / "coco_20k_filenames.txt"
    config = Coco20kConfig(root=str(coco))
    for content in ("[1, 2]", "{", "", "null", "[" * 100_000, '{"images": ' + "1" * 5000 + "}"):
        whole = path.read_text()
        path.write_text(content)
        with pytest.raises(DataError, match="not a readable COCO file"):
            open_labels(DETECTION, config, "x")
        path.write_text(whole)
    for content, text in (
        ("", "empty"),
        (f"train2014/{NAMES[0]}\n" * 2, "twice"),
        ("train2014/other.jpg", "'other.jpg' is not an image of instances_train2014.json"),
        ("../other.jpg", "points outside"),
    ):
        names.write_text(content)
        with pytest.raises(DataError, match=text):
            open_labels(DETECTION, config, "x")
    names.unlink()
    with pytest.raises(DataError, match=r"no such image list .*LOST"):
        open_labels(DETECTION, config, "x")
    path.unlink()
    names.write_text(f"train2014/{NAMES[0]}\n")
    with pytest.raises(DataError, match="no such file: expected boxes"):
        open_labels(DETECTION, config, "x")


def test_reading_prints_nothing(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_labels(DETECTION, Coco20kConfig(root=str(coco)), "x")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["a\\b", "a\0", "", None, "a/../../b", "a" * 256, "a/" * 2100, "\ud800"])
def test_unsafe_names(name: Any) -> None:
    with pytest.raises(DataError):
        confined(Path("images"), name, Path("x.json"))


def test_real_samples() -> None:
    root = SHARED / "data" / "coco_mini"
    if not root.is_dir():
        pytest.skip("../shared/data/coco_mini is absent")
    mini = open_labels(DETECTION, Coco20kConfig(root=str(root), filenames="coco_20k_filenames_mini.txt"), "trainval")
    assert (len(mini), len(mini.class_names), mini.split) == (25, 80, "coco_20k_filenames_mini, not the published list")
    for part, images, boxes in (("train2017", 50, 465), ("val2017", 81, 824)):
        config = CocoJsonConfig(root=str(root / part), annotations=f"../annotations/instances_{part}.json")
        dataset = open_labels(DETECTION, config, "all")
        found, off = [dataset.boxes(index) for index in range(len(dataset))], []
        assert (len(dataset), sum(map(len, found))) == (images, boxes)
        for index in range(0, images, 7):
            with Image.open(dataset.path(index)) as image:
                assert (found[index] >= 0).all()
                assert (found[index][:, 2] <= image.width).all()
                assert (found[index][:, 3] <= image.height).all()
            masks = dataset.masks(index)  # type: ignore[attr-defined]
            for mask, box in zip(masks, found[index], strict=True):
                rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
                off.append(np.abs(np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) - box).max())
        assert np.mean(np.array(off) <= 2) > 0.95, "an outline fills its box, but for a few"
    names, published = read_coco20k_list(root / "coco_20k_filenames.txt")
    assert (len(names), published) == (19817, True)


def test_a_part_has_its_own_boxes_and_masks(coco: Path) -> None:
    """Boxes come from one JSON, so that a limit must not look for an annotation an image."""

    def outlines(content: dict[str, Any]) -> None:
        content["annotations"][0]["segmentation"] = [[0, 0, 10, 0, 10, 4, 0, 4]]
        content["annotations"][1]["segmentation"] = {"size": [40, 60], "counts": [123, 2, 2275]}
        content["annotations"][3]["segmentation"] = [[1, 1, 3, 1, 3, 3, 1, 3]]

    rewrite(coco, outlines)
    config = CocoJsonConfig(root=str(coco / "train2014"), annotations="../annotations/instances_train2014.json")
    whole = open_labels(DETECTION, config, "all")
    assert isinstance(whole, CocoDetection)
    for limit in (1, 2):
        part = open_labels(DETECTION, config.model_copy(update={"limit": limit}), "all")
        assert isinstance(part, CocoDetection)
        assert len(part) == limit
        for i, name in enumerate(part.ids):
            at = whole.ids.index(name)
            np.testing.assert_array_equal(part.boxes(i), whole.boxes(at))
            assert part.path(i) == whole.path(at)
            np.testing.assert_array_equal(part.masks(i), whole.masks(at))
    first = whole.masks(whole.ids.index(NAMES[0]))
    assert [(one.shape, int(one.sum())) for one in first] == [((40, 60), 40), ((40, 60), 2)], "crowds are left out"
    assert first[0][:4, :10].all()
    rewrite(coco, lambda content: content["images"][0].update(height=60, width=40))
    with pytest.raises(DataError, match="is of an image of 40×60 pixels, the file has 60×40"):
        open_labels(DETECTION, config, "all").masks(whole.ids.index(NAMES[0]))  # type: ignore[attr-defined]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("upright", [False, True])
def test_masks_lie_where_boxes_do_in_photographs_that_exif_turns(
    tmp_path: Path, orientation: int, upright: bool
) -> None:
    """Annotations are of the stored pixels, or of the upright photograph where they state its size."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "a.png", exif=exif)
    height, width = (30, 20) if upright and orientation >= 5 else (20, 30)
    content = {
        "images": [{"id": 1, "file_name": "a.png", "height": height, "width": width}],
        "annotations": [
            {**annotation(1, 1, [3, 2, 5, 4]), "segmentation": [[3, 2, 8, 2, 8, 6, 3, 6]]},
        ],
        "categories": [{"id": 18, "name": "dog"}],
    }
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    dataset = open_labels(DETECTION, CocoJsonConfig(root=str(tmp_path), label_orientation="stored"), "all")
    assert isinstance(dataset, CocoDetection)
    (mask,), (box,) = dataset.masks(0), dataset.boxes(0)
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    assert mask.shape == ((30, 20) if orientation >= 5 else (20, 30))
    assert [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1] == box.tolist()


def test_an_annotation_without_an_outline_is_a_box_alone(coco: Path) -> None:
    config = CocoJsonConfig(root=str(coco / "train2014"), annotations="../annotations/instances_train2014.json")
    dataset = open_labels(DETECTION, config, "all")
    assert isinstance(dataset, CocoDetection)
    at = dataset.ids.index(NAMES[0])
    dataset.check_outlines(at)
    with pytest.raises(DataError, match="annotation 1: has no outline"):
        dataset.masks(at)
    rewrite(coco, lambda content: content["annotations"][2].update(segmentation=[]))
    with pytest.raises(DataError, match="annotation 3: outline: empty"):
        open_labels(DETECTION, config, "all").check_outlines(at)
    left = open_labels(DETECTION, config.model_copy(update={"skip_broken": True}), "all")
    assert (NAMES[0] in left.ids, left.left_out) == (False, 1)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), None, True, [1]])
def test_a_number_that_no_other_entry_can_name_is_refused(coco: Path, number: Any) -> None:
    rewrite(coco, lambda content: content["annotations"][0].update(id=number))
    with pytest.raises(DataError, match="neither a name nor a number"):
        open_labels(DETECTION, Coco20kConfig(root=str(coco)), "trainval")


def test_an_area_below_nothing_is_refused(coco: Path) -> None:
    """pycocotools counts objects of an area from 0 on, and leaves out the others without a word."""
    path = coco / "annotations" / "instances_train2014.json"
    rewrite(coco, lambda content: content["annotations"][0].update(area=-1))
    dataset = open_labels(DETECTION, CocoJsonConfig(root=str(coco / "train2014"), annotations=str(path)), "all")
    assert isinstance(dataset, CocoDetection)
    images = [dataset.numbers.index(9), dataset.numbers.index(5)]
    with pytest.raises(DataError, match="annotation 1: its area is -1"):
        dataset.entries(images[0])
    assert [entry["id"] for entry in dataset.entries(images[1])] == [4]
