"""Detectors on squares and bars that are easy to find, and on the sample of COCO."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm import create_model as timm_model

from dinoskip.data.sets.coco import CocoConfig
from dinoskip.data.sets.coco_json import CocoDetection
from dinoskip.data.sets.scenes import ScenesConfig
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import load_tensors
from dinoskip.models import Backbone, create_model
from dinoskip.results.rows import read_rows
from dinoskip_detection import DetectionConfig
from dinoskip_detection.objects import Objects, mirrored
from tests.helpers.tasks import evaluation_of

evaluate = evaluation_of("detection")

SIDE = 64
COCO_MINI = Path(__file__).parents[4] / "shared" / "data" / "coco_mini"


def squares_and_bars(root: Path, split: str, count: int) -> None:
    """Pictures of noise with one or two objects: bright squares of 20 pixels (7), dark bars of 12 × 28 (9)."""
    rng = np.random.default_rng(len(split))
    images, annotations = [], []
    (root / f"{split}2017").mkdir(parents=True)
    for number in range(1, count + 1):
        pixels = rng.integers(90, 150, (SIDE, SIDE, 3), dtype=np.uint8)
        images.append({"id": number, "file_name": f"{number}.png", "height": SIDE, "width": SIDE})
        for half in range(int(rng.integers(1, 3))):
            category, (w, h), shade = [(7, (20, 20), 250), (9, (28, 12), 5)][int(rng.integers(0, 2))]
            x, y = int(rng.integers(0, SIDE - w)), 32 * half + int(rng.integers(0, 32 - h))
            pixels[y : y + h, x : x + w] = shade
            outline = [[x, y, x + w, y, x + w, y + h, x, y + h]]
            annotations.append(
                {"id": len(annotations) + 1, "image_id": number, "category_id": category, "bbox": [x, y, w, h],
                 "area": w * h, "iscrowd": 0, "segmentation": outline}
            )  # fmt: skip
        Image.fromarray(pixels).save(root / f"{split}2017" / f"{number}.png")
    categories = [{"id": 7, "name": "square"}, {"id": 9, "name": "bar"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    path = root / "annotations" / f"instances_{split}2017.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def opened(root: Path, split: str) -> CocoDetection:
    dataset = CocoConfig(root=str(root)).open_detection(root, split, None)
    assert isinstance(dataset, CocoDetection)
    return dataset


def network(depth: int = 2) -> Backbone:
    torch.manual_seed(0)
    return Backbone.from_model(create_model("vit_mini_patch8", depth=depth, img_size=SIDE))


SMALL = DetectionConfig(channels=16, short_side=SIDE, long_side=SIDE, batch_size=2, epochs=1, lr=1e-3)
METRICS = [f"{what} {part}" for what in ("box", "mask") for part in ("AP", "AP50", "AP75")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("coco")
    squares_and_bars(root, "train", 4)
    squares_and_bars(root, "val", 3)
    return root


def test_rows_files_and_the_same_again(root: Path, tmp_path: Path) -> None:
    train, val = opened(root, "train"), opened(root, "val")
    backbone = network()
    before = {name: one.clone() for name, one in backbone.model.state_dict().items()}
    config = SMALL.model_copy(update={"trained": "each"})
    rows = evaluate(backbone, train, val, [1, 2], tmp_path / "one", config, {"model": "mini"}, seed=3, workers=1)
    assert read_rows(tmp_path / "one" / "rows.json") == rows
    assert [(row.block, row.metric) for row in rows[:12]] == [(block, one) for block in "12" for one in METRICS]
    assert {row.model for row in rows[12:]} == {"baseline: full image", "baseline: centre box"}
    first = rows[0]
    assert (first.task, first.dataset, first.split, first.n) == ("detection", "coco2017", "val", 3)
    assert first.protocol == "R-CNN, simple pyramid, frozen, 1 epochs of 2 at 0.001, 16 channels"
    results = json.loads((tmp_path / "one" / "detections_block2.json").read_text())
    assert {one["category_id"] for one in results} <= {7, 9}
    assert {one["image_id"] for one in results} <= {1, 2, 3}
    assert all((backbone.model.state_dict()[name] == one).all() for name, one in before.items()), "frozen"
    torch.rand(5)  # whatever was drawn before
    again = evaluate(network(), train, val, "all", tmp_path / "two", SMALL, {"model": "mini"}, seed=3, workers=2)
    assert again[:6] == rows[6:12], "the last block alone, whatever else is trained"
    unsorted = evaluate(network(), train, val, [2, 1], tmp_path / "three", SMALL, {"model": "mini"}, seed=3, workers=1)
    assert unsorted[:6] == rows[6:12], "the deepest of the blocks, in whatever order they are named"
    with pytest.raises(ConfigError, match="block 3"):
        evaluate(network(), train, val, [3], tmp_path / "four", SMALL, {"model": "mini"}, workers=1)


def test_an_outline_that_is_no_mask_is_refused_before_anything_is_written(root: Path, tmp_path: Path) -> None:
    squares_and_bars(tmp_path, "train", 4)
    path = tmp_path / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    content["annotations"][-1]["segmentation"] = {"size": [SIDE, SIDE], "counts": [10, 20]}
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="outline: counts"):
        evaluate(network(), opened(tmp_path, "train"), opened(root, "val"), "all", tmp_path / "out", SMALL, {})
    assert not list((tmp_path / "out").iterdir())


def test_fine_tuning_moves_a_copy_of_the_network(root: Path, tmp_path: Path) -> None:
    backbone = network()
    before = {name: one.clone() for name, one in backbone.model.state_dict().items()}
    config = SMALL.model_copy(update={"fine_tune": True})
    train, val = opened(root, "train"), opened(root, "val")
    evaluate(backbone, train, val, "all", tmp_path, config, {"model": "mini"}, workers=1)
    assert all((backbone.model.state_dict()[name] == one).all() for name, one in before.items())
    moved = load_tensors(tmp_path / "network_block2.safetensors")
    assert (moved["blocks.0.attn.qkv.weight"] - before["blocks.0.attn.qkv.weight"]).abs().max() > 1e-4
    assert not any(name.startswith("backbone.read") for name in load_tensors(tmp_path / "detector_block2.safetensors"))


def test_a_set_without_outlines_has_boxes_alone(tmp_path: Path) -> None:
    config = ScenesConfig(images=8, size=SIDE, classes=2)
    config.generate(tmp_path / "scenes")
    splits = [config.open_detection(tmp_path / "scenes", split, None) for split in ("train", "val")]
    backbone = Backbone.from_model(timm_model("resnet18", pretrained=False, num_classes=0), image_size=SIDE).parts[1]
    rows = evaluate(backbone, splits[0], splits[1], [2], tmp_path / "out", SMALL, {"model": "resnet"}, workers=1)
    assert [row.metric for row in rows] == 3 * ["box AP", "box AP50", "box AP75"]
    assert [row.block for row in rows if not row.is_baseline] == ["2"] * 3
    assert rows[0].classes == 2


@pytest.mark.slow
@pytest.mark.parametrize("fine_tune", [False, True])
def test_squares_and_bars_are_found(tmp_path: Path, fine_tune: bool) -> None:
    squares_and_bars(tmp_path, "train", 48)
    squares_and_bars(tmp_path, "val", 16)
    config = DetectionConfig(
        channels=32, short_side=SIDE, long_side=SIDE, batch_size=4, epochs=4, lr=1e-3, warmup=5, fine_tune=fine_tune
    )
    train, val = opened(tmp_path, "train"), opened(tmp_path, "val")
    rows = evaluate(network(), train, val, "all", tmp_path / "out", config, {"model": "mini"}, workers=1)
    values = {row.metric: row.value for row in rows if not row.is_baseline}
    assert values["box AP50"] > 25
    assert values["mask AP50"] > 25
    assert max(row.value for row in rows if row.is_baseline) < 5


def test_what_does_not_fit_is_said(root: Path, tmp_path: Path) -> None:
    train, val = opened(root, "train"), opened(root, "val")
    path = root / "annotations" / "instances_val2017.json"
    other = json.loads(path.read_text())
    other["categories"][0]["name"] = "disc"
    (root / "annotations" / "instances_other2017.json").write_text(json.dumps(other))
    (root / "other2017").symlink_to(root / "val2017")
    with pytest.raises(DataError, match="the classes of other are not those of train"):
        evaluate(network(), train, opened(root, "other"), "all", tmp_path, SMALL, {})
    empty = train.part([])
    with pytest.raises(DataError, match="no image has an object"):
        evaluate(network(), empty, val, "all", tmp_path, SMALL, {})
    with pytest.raises(DataError, match="loss is not finite, in steps 1 to 8"):
        evaluate(network(), train, val, "all", tmp_path, SMALL.model_copy(update={"lr": 1e30, "epochs": 4}), {})


def test_photographs_that_exif_turns_are_refused(tmp_path: Path) -> None:
    squares_and_bars(tmp_path, "train", 1)
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "train2017" / "1.png"
    Image.open(path).save(path, exif=exif)
    with pytest.raises(DataError, match="EXIF turns it"):
        Objects(opened(tmp_path, "train")).pixels(0)


def test_objects_of_an_image_and_its_mirror(root: Path) -> None:
    dataset = opened(root, "train")
    for index in range(len(dataset)):
        truth = Objects(dataset).truth(index, (SIDE, SIDE))
        for box, mask in zip(truth["boxes"].long().tolist(), truth["masks"], strict=True):
            assert mask[box[1] : box[3], box[0] : box[2]].all()
            assert mask.sum() == (box[2] - box[0]) * (box[3] - box[1])
        image, turned = mirrored(torch.zeros(3, SIDE, SIDE), truth)
        assert image.shape == (3, SIDE, SIDE)
        for box, mask in zip(turned["boxes"].long().tolist(), turned["masks"], strict=True):
            assert mask[box[1] : box[3], box[0] : box[2]].all()


@pytest.mark.skipif(not COCO_MINI.is_dir(), reason="the sample of COCO is not here")
def test_the_sample_of_coco(tmp_path: Path) -> None:
    train, val = opened(COCO_MINI, "train").part(range(2)), opened(COCO_MINI, "val").part(range(3))
    config = SMALL.model_copy(update={"short_side": 96, "long_side": 160})
    rows = evaluate(network(), train, val, "all", tmp_path, config, {"model": "mini"}, workers=1)
    assert [row.metric for row in rows[:6]] == METRICS
    assert {row.classes for row in rows} == {80}
    assert all(0 <= row.value <= 100 for row in rows)
