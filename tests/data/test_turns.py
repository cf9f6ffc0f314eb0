"""Labels that lie turned against their photographs, or beside others, are noticed; right ones are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.sets import open_labels
from dinoskip.data.sets.labels import LABELS
from dinoskip.data.turns import TURNS, TurnLevels, turn_levels, turned_shares
from dinoskip.io.images import turn_upright
from tests.helpers.signatures import dataset, judged, stopping

SHARED = Path(__file__).parents[3] / "shared"


def drawn(seed: int, shape: tuple[int, int] = (64, 64)) -> tuple[np.ndarray, np.ndarray, tuple[int, int, int, int]]:
    """A photograph of an object on a slope of grey, its label map, and its box x1 y1 x2 y2; none is symmetric."""
    rng = np.random.default_rng(seed)
    height, width = shape
    slope = np.linspace(60, 90, width)[None] + np.linspace(0, 20, height)[:, None]
    image = np.repeat(slope[..., None], 3, axis=2) + rng.normal(0, 2, (height, width, 3)).cumsum(axis=1) * 0.2
    x, y = int(rng.integers(4, 12)), int(rng.integers(4, 10))
    box = (x, y, x + 20, y + 14)
    labels = np.zeros(shape, np.uint8)
    labels[box[1] : box[3], box[0] : box[2]] = 1
    labels[box[1] : box[1] + 5, box[0] : box[0] + 9] = 0  # a corner of it
    image[labels == 1] += 90
    return np.clip(image, 0, 255).astype(np.uint8), labels, box


def masks(root: Path, change: Callable[[np.ndarray, int], np.ndarray], shape: tuple[int, int] = (64, 64)) -> Path:
    """A set of twelve photographs whose masks are changed."""
    for folder in ("images/train", "masks/train"):
        (root / folder).mkdir(parents=True)
    for number in range(12):
        image, labels, _ = drawn(number, shape)
        Image.fromarray(image).save(root / f"images/train/{number}.png")
        Image.fromarray(change(labels, number)).save(root / f"masks/train/{number}.png")
    (root / "classes.txt").write_text("background\nobject\n")
    return root


@pytest.mark.parametrize("turn", TURNS)
def test_turned_masks_are_refused_and_read_by_their_setting(tmp_path: Path, turn: int) -> None:
    back = {6: 8, 8: 6}.get(turn, turn)
    root = masks(tmp_path, lambda labels, _: turn_upright(labels, back))
    found = judged("segmentation", ["train"], kind="masks", root=str(root))
    if turn == 1:
        assert not stopping(found)
        return
    assert stopping(found) == [("refused", "turned-labels")]
    (one,) = (verdict for verdict in found if verdict.state == "refused")
    assert f"mask_turn={turn}" in one.remedy
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root), mask_turn=turn))
    opened = open_labels(LABELS["segmentation"], dataset(kind="masks", root=str(root), mask_turn=turn), "train")
    np.testing.assert_array_equal(opened.label(3), drawn(int(opened.ids[3]))[1])


def test_masks_turned_on_their_side_are_named_by_their_size(tmp_path: Path) -> None:
    root = masks(tmp_path, lambda labels, _: turn_upright(labels, 6), (48, 64))
    (one,) = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert (one.state, one.check) == ("refused", "mask-sizes")
    assert "12 of 12" in one.text
    assert "mask_turn=8" in one.remedy
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root), mask_turn=8))
    assert stopping(judged("segmentation", ["train"], kind="masks", root=str(root), mask_turn=6)) == [
        ("refused", "turned-labels")
    ]


def test_masks_of_another_size_are_refused_unless_broken_ones_are_left_out(tmp_path: Path) -> None:
    root = masks(tmp_path, lambda labels, number: labels[::2, ::2] if number == 5 else labels)
    (one,) = (v for v in judged("segmentation", ["train"], kind="masks", root=str(root)) if v.state == "refused")
    assert one.check == "mask-sizes"
    assert "5.png is 32×32 pixels" in one.text
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root), skip_broken=True))


def test_masks_of_other_photographs_are_doubtful(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    root = masks(tmp_path, lambda labels, _: np.roll(labels, rng.integers(8, 56, 2), (0, 1)))
    assert stopping(judged("segmentation", ["train"], kind="masks", root=str(root))) == [
        ("doubtful", "unlike-photographs")
    ]


def test_a_part_of_other_photographs_is_doubtful(tmp_path: Path) -> None:
    """The mean of the set does not show them."""

    def beside(labels: np.ndarray, number: int) -> np.ndarray:
        other = np.zeros_like(labels)
        other[28:36, 28:36] = 1  # in the middle, where no object is in any turn
        return labels if number % 2 else other

    found = judged("segmentation", ["train"], kind="masks", root=str(masks(tmp_path, beside)))
    assert stopping(found) == [("doubtful", "some-unlike")]
    assert "of 12 images do not follow" in next(one.text for one in found if one.check == "some-unlike")


def test_noise_and_pictures_of_one_colour_say_nothing(tmp_path: Path) -> None:
    root, rng = masks(tmp_path, lambda labels, _: labels[:, ::-1]), np.random.default_rng(0)
    for number in range(12):
        noise = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8) if number % 2 else np.full((64, 64, 3), 9, np.uint8)
        Image.fromarray(noise).save(root / f"images/train/{number}.png")
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root)))


def coco(root: Path, change: Callable[[list[float]], list[float]], mirrored: bool = False) -> Path:
    """A set of twelve photographs with a box each, x y width height, which is changed."""
    images, boxes = [], []
    for number in range(12):
        image, _, (x1, y1, x2, y2) = drawn(number)
        Image.fromarray(image[:, ::-1] if mirrored else image).save(root / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "height": 64, "width": 64})
        box = change([x1, y1, x2 - x1, y2 - y1])
        boxes.append({"id": number, "image_id": number, "category_id": 1, "bbox": box, "iscrowd": 0})
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "object"}]}
    (root / "annotations.json").write_text(json.dumps(content))
    return root


def test_boxes_of_mirrored_photographs_are_doubtful(tmp_path: Path) -> None:
    for name, mirrored, wanted in (("a", False, []), ("b", True, [("doubtful", "turned-labels")])):
        (tmp_path / name).mkdir()
        root = coco(tmp_path / name, lambda box: box, mirrored)
        assert stopping(judged("detection", ["val"], kind="coco_json", root=str(root))) == wanted


def test_a_part_that_is_mirrored_is_doubtful(tmp_path: Path) -> None:
    """As mirrored copies with the labels of the originals are: the mean of the set does not show them."""
    for name, mirrored, wanted in (("a", 0, []), ("b", 4, [("doubtful", "some-turned")])):
        (tmp_path / name).mkdir()
        root = masks(tmp_path / name, lambda labels, number, few=mirrored: labels[:, ::-1] if number < few else labels)
        found = judged("segmentation", ["train"], kind="masks", root=str(root))
        assert stopping(found) == wanted
        assert [one.text.count("4 of 12") for one in found if one.check == "some-turned"] == [1] * len(wanted)


def test_outlines_tell_more_than_boxes(tmp_path: Path) -> None:
    for name, mirrored in (("a", False), ("b", True)):
        (tmp_path / name).mkdir()
        path = coco(tmp_path / name, lambda box: box, mirrored) / "annotations.json"
        content = json.loads(path.read_text())
        for entry in content["annotations"]:
            x, y, width, height = entry["bbox"]
            right, low = x + width, y + height
            corners = [x + 9, y, right, y, right, low, x, low, x, y + 5, x + 9, y + 5]
            entry["segmentation"] = [corners]
        content["images"] = content["images"][:3]
        content["annotations"] = [one for one in content["annotations"] if one["image_id"] < 3]
        path.write_text(json.dumps(content))
        opened = open_labels(LABELS["detection"], dataset(kind="coco_json", root=str(path.parent)), "val")
        assert turn_levels(opened, range(3)).by == "outlines"
        wanted = [("doubtful", "turned-labels")] if mirrored else []
        assert stopping(judged("detection", ["val"], kind="coco_json", root=str(path.parent))) == wanted


CHANGED: dict[str, tuple[Callable[[list[float]], list[float]], str]] = {
    "half the size": (lambda b: [b[0] + b[2] / 4, b[1] + b[3] / 4, b[2] / 2, b[3] / 2], "twice its size"),
    "of images of half the size": (lambda b: [value / 2 for value in b], "doubled"),
    "centres for corners": (lambda b: [b[0] + b[2] / 2, b[1] + b[3] / 2, b[2], b[3]], "left and up"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_boxes_that_are_all_changed_alike_are_doubtful_by_the_change(tmp_path: Path, name: str) -> None:
    change, text = CHANGED[name]
    (one,) = judged("detection", ["val"], kind="coco_json", root=str(coco(tmp_path, change)))
    assert (one.state, one.check) == ("doubtful", "changed-boxes")
    assert text in one.text


def test_boxes_of_other_photographs_are_doubtful_and_no_turn_is_named(tmp_path: Path) -> None:
    root = coco(tmp_path, lambda box: [44, 44, 12, 12])  # on the slope, where no object is
    for number in range(12):  # in no turn, either: nothing has an edge
        slope = np.linspace(60, 140, 64)[None] + np.linspace(0, 70, 64)[:, None]
        Image.fromarray(np.repeat(slope[..., None], 3, axis=2).astype(np.uint8)).save(root / f"{number}.png")
    assert stopping(judged("detection", ["val"], kind="coco_json", root=str(root))) == [
        ("doubtful", "unlike-photographs")
    ]


def test_boxes_without_area_are_refused(tmp_path: Path) -> None:
    root = coco(tmp_path, lambda box: [*box[:2], 0, 0])
    (one,) = judged("detection", ["val"], kind="coco_json", root=str(root))
    assert (one.state, one.check) == ("refused", "boxes-without-area")


def test_outlines_of_other_photographs_are_doubtful(tmp_path: Path) -> None:
    path = coco(tmp_path, lambda box: box) / "annotations.json"
    content = json.loads(path.read_text())
    for entry in content["annotations"]:
        x, y, width, height = 26, 26, 12, 12  # the middle, where no object is, however it is turned
        entry["bbox"] = [x, y, width, height]
        entry["segmentation"] = [[x, y, x + width, y, x + width, y + height, x + 5, y + height, x, y + 5]]
    path.write_text(json.dumps(content))
    found = judged("detection", ["val"], kind="coco_json", root=str(tmp_path))
    assert stopping(found) == [("doubtful", "unlike-photographs")]


def test_boxes_in_shares_of_the_sides_are_refused(tmp_path: Path) -> None:
    root = coco(tmp_path, lambda box: [value / 64 for value in box])
    assert stopping(judged("detection", ["val"], kind="coco_json", root=str(root))) == [("refused", "boxes-in-shares")]


def test_boxes_that_cannot_be_read_are_refused_before_anything_is_computed(tmp_path: Path) -> None:
    root = coco(tmp_path, lambda box: [box[0] + 60, *box[1:]])
    found = judged("detection", ["val"], kind="coco_json", root=str(root))
    assert stopping(found) == [("refused", "unreadable-labels")]
    assert "12 of 12" in found[0].text


def test_boxes_turn_as_pictures_do() -> None:
    boxes = np.array([[0.125, 0.25, 0.5, 0.375]], np.float32)
    for turn in TURNS:
        picture = np.zeros((8, 8), bool)
        picture[2:3, 1:4] = True
        rows, columns = np.nonzero(turn_upright(picture, turn))
        wanted = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / 8
        np.testing.assert_allclose(turned_shares(boxes, turn)[0], wanted)


def test_levels_add_up() -> None:
    one = TurnLevels((1,) * 8, (0.5,) * 8, (0.1,) * 8)
    both = one + TurnLevels((1, 1, 1, 1, 0, 0, 0, 0), (0.7,) * 4 + (0.0,) * 4, (0.3,) * 4 + (0.0,) * 4)
    assert both.level(1) == pytest.approx(0.6)
    assert both.gain(4) == pytest.approx(0.2)
    assert both.gain(8) == pytest.approx(0.1)
    assert np.isnan(TurnLevels().gain(1))


@pytest.mark.skipif(not (SHARED / "data/voc_mini").is_dir(), reason="samples of VOC")
def test_masks_of_voc_follow_their_photographs() -> None:
    opened = open_labels(
        LABELS["segmentation"], dataset(kind="voc", root=str(SHARED / "data/voc_mini/VOCdevkit")), "train"
    )
    levels = turn_levels(opened, range(20))
    assert levels.files[0] == 20
    assert levels.level(1) > 0.7
    assert max(levels.level(turn) for turn in TURNS[1:4]) < 0.62
