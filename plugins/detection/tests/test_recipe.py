"""Tests of the training of a detector, of the processing of its output, and of the baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools.mask import area

from dinoskip.data.sets.coco import CocoConfig
from dinoskip.data.sets.coco_json import CocoDetection
from dinoskip.models import Backbone, create_model
from dinoskip.results.rows import EvalResult
from dinoskip.results.statistics import score
from dinoskip_detection import DetectionConfig, fit
from dinoskip_detection.evaluation import baseline_entries, detection_rows, result_entries
from dinoskip_detection.fit import Found, find, fit_detector
from dinoskip_detection.model import decayed, detector
from dinoskip_detection.objects import Objects
from eval.object_scores import outline

SIDE = 32
SQUARE, BAR = 7, 9  # COCO's numbers of the two classes
Sized = tuple[int, list[int], int]  # class, x y w h, whether it is a crowd


def dataset(root: Path, split: str, images: list[list[Sized]]) -> CocoDetection:
    """Pictures of noise with bright boxes; a crowd's outline is run by run, as COCO has it."""
    rng = np.random.default_rng(0)
    listed, annotations = [], []
    (root / f"{split}2017").mkdir(parents=True)
    for number, objects in enumerate(images, 1):
        pixels = rng.integers(90, 150, (SIDE, SIDE, 3), dtype=np.uint8)
        listed.append({"id": number, "file_name": f"{number}.png", "height": SIDE, "width": SIDE})
        for category, (x, y, w, h), crowd in objects:
            pixels[y : y + h, x : x + w] = 250
            mask = np.zeros((SIDE, SIDE), dtype=np.uint8)
            mask[y : y + h, x : x + w] = 1
            ends = np.flatnonzero(np.diff(mask.T.ravel(), prepend=0, append=0))
            runs = np.diff(np.concatenate([[0], ends, [SIDE * SIDE]])).tolist()
            outline = {"size": [SIDE, SIDE], "counts": runs} if crowd else [[x, y, x + w, y, x + w, y + h, x, y + h]]
            annotations.append(
                {"id": len(annotations) + 1, "image_id": number, "category_id": category, "bbox": [x, y, w, h],
                 "area": w * h, "iscrowd": crowd, "segmentation": outline}
            )  # fmt: skip
        Image.fromarray(pixels).save(root / f"{split}2017" / f"{number}.png")
    categories = [{"id": SQUARE, "name": "square"}, {"id": BAR, "name": "bar"}]
    content = {"images": listed, "annotations": annotations, "categories": categories}
    path = root / "annotations" / f"instances_{split}2017.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    opened = CocoConfig(root=str(root)).open_detection(root, split, None)
    assert isinstance(opened, CocoDetection)
    return opened


ONE: Sized = (SQUARE, [4, 6, 10, 12], 0)
TWO: Sized = (BAR, [16, 2, 12, 8], 0)
CROWD: Sized = (BAR, [2, 20, 20, 10], 1)
SMALL = DetectionConfig(channels=8, short_side=SIDE, long_side=SIDE, batch_size=1, epochs=1, lr=1e-3, flip=0)


def network() -> Backbone:
    torch.manual_seed(0)
    return Backbone.from_model(create_model("vit_mini_patch8", depth=1, img_size=SIDE))


def weights(backbone: Backbone, data: CocoDetection, config: DetectionConfig, seed: int = 0) -> torch.Tensor:
    """All numbers of a detector that is trained on a set."""
    model = fit_detector(backbone, Objects(data), 1, config, seed=seed)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_rate_rises_and_falls_twice() -> None:
    config = DetectionConfig(lr=2.0, warmup=4)
    rates = [config.rate(step, 120) for step in range(120)]
    assert rates[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert set(rates[4:80]) == {2.0}
    assert rates[80:110] == pytest.approx([0.2] * 30)
    assert rates[110:] == pytest.approx([0.02] * 10)
    short = DetectionConfig(lr=2.0)
    assert [short.rate(step, 20) for step in range(3)] == pytest.approx([2 / 3, 4 / 3, 2.0]), "a tenth of all steps"
    assert short.rate(0, 9) == 2.0
    assert DetectionConfig(epochs=3, batch_size=4).steps(10) == 8
    assert DetectionConfig(epochs=0.1, batch_size=4).steps(10) == 1


class Still(DetectionConfig):
    """Training at the rate 0."""

    def rate(self, step: int, steps: int) -> float:
        return 0.0


def test_every_step_has_its_rate(tmp_path: Path) -> None:
    data = dataset(tmp_path, "train", [[ONE], [TWO]])
    once, twice = (Still.model_validate({**SMALL.model_dump(), "epochs": epochs}) for epochs in (1, 2))
    start = weights(network(), data, once)
    assert torch.equal(start, weights(network(), data, twice))
    assert not torch.equal(start, weights(network(), data, SMALL))


def test_matrices_and_kernels_decay_and_nothing_else() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2), torch.nn.Linear(2, 5)
    )
    model[3].requires_grad_(False)
    groups = decayed(model, 0.3)
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert [[tuple(one.shape) for one in group["params"]] for group in groups] == [
        [(4, 3, 3, 3), (2, 4)], [(4,), (4,), (4,), (2,)]
    ]  # fmt: skip


def test_the_decay_is_the_setting(tmp_path: Path) -> None:
    data = dataset(tmp_path, "train", [[ONE]])
    moved = [weights(network(), data, SMALL.model_copy(update={"weight_decay": decay})) for decay in (0.0, 5.0)]
    assert not torch.equal(*moved)


def test_images_are_normalised_as_the_network_was_trained() -> None:
    backbone = network()
    backbone.mean, backbone.std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    model = detector(backbone, 1, SMALL, 2, masks=True)
    seen = []
    model.backbone.read = lambda images: seen.append(images) or torch.zeros(1, backbone.dim, SIDE // 8, SIDE // 8)
    model.eval()([torch.full((3, SIDE, SIDE), 0.7)])
    wanted = (0.7 - torch.tensor(backbone.mean)) / torch.tensor(backbone.std)
    torch.testing.assert_close(seen[0][0, :, 5, 5], wanted)


def test_pixels_are_learnt_from_0_to_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []

    def watched(*args: Any, **settings: Any) -> torch.nn.Module:
        model = detector(*args, **settings)
        model.register_forward_pre_hook(lambda _, given: seen.extend(given[0]))
        return model

    monkeypatch.setattr(fit, "detector", watched)
    data = dataset(tmp_path, "train", [[ONE]])
    weights(network(), data, SMALL)
    wanted = torch.from_numpy(Objects(data).pixels(0)).permute(2, 0, 1) / 255
    torch.testing.assert_close(seen, [wanted])


def test_crowds_and_empty_boxes_are_not_learnt(tmp_path: Path) -> None:
    data = dataset(tmp_path, "train", [[ONE, CROWD, TWO], [CROWD], [(BAR, [3, 3, 0, 5], 0), ONE]])
    objects = Objects(data)
    truth = objects.truth(0, (SIDE, SIDE))
    assert truth["boxes"].tolist() == [[4, 6, 14, 18], [16, 2, 28, 10]]
    assert truth["labels"].tolist() == [1, 2]
    assert truth["masks"].sum((1, 2)).tolist() == [120, 96]
    assert len(objects.truth(1, (SIDE, SIDE))["boxes"]) == 0
    assert objects.truth(2, (SIDE, SIDE))["labels"].tolist() == [1]
    config = SMALL.model_copy(update={"epochs": 2})
    both = (weights(network(), data.part(which), config) for which in ([0, 1], [0]))
    assert torch.equal(*both), "an image of crowds alone is not visited"


def test_a_mirrored_set_is_the_set_mirrored(tmp_path: Path) -> None:
    boxes = [(category, [SIDE - x - w, y, w, h], crowd) for category, (x, y, w, h), crowd in (ONE, TWO)]
    data = dataset(tmp_path / "one", "train", [[ONE, TWO]])
    turned = dataset(tmp_path / "two", "train", [boxes])
    Image.fromarray(Objects(data).pixels(0)[:, ::-1]).save(tmp_path / "two" / "train2017" / "1.png")
    always = weights(network(), data, SMALL.model_copy(update={"flip": 1}))
    torch.testing.assert_close(always, weights(network(), turned, SMALL), rtol=1e-4, atol=1e-5)
    assert not torch.equal(always, weights(network(), data, SMALL))


def test_what_is_found_is_counted_from_0_and_masks_are_where_it_is_likelier_than_not(tmp_path: Path) -> None:
    data = dataset(tmp_path, "val", [[ONE]])
    seen = []

    def found(images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        seen.extend(images)
        mask = torch.full((2, 1, SIDE, SIDE), 0.45)
        mask[0, 0, :4, :5] = 0.55
        mask[1, 0, :2, :3] = 0.95
        boxes = torch.tensor([[0.0, 0, 5, 4], [1.234, 2, 3.456, 4]])
        return [{"boxes": boxes, "labels": torch.tensor([1, 2]), "scores": torch.tensor([0.5, 0.25]), "masks": mask}]

    (only,) = find(found, Objects(data), torch.device("cpu"))
    assert only.classes.tolist() == [0, 1]
    assert only.boxes.dtype == np.float64
    assert [int(area(one)) for one in only.outlines] == [20, 6]
    torch.testing.assert_close(seen[0][:, 10, 10], torch.full((3,), 250 / 255))


def test_baselines_are_counted_on_the_training_set(tmp_path: Path) -> None:
    train = dataset(tmp_path, "train", [[ONE, ONE, CROWD], [ONE, TWO], [CROWD]])
    val = dataset(tmp_path, "val", [[TWO, TWO], [TWO]])
    entries = baseline_entries(Objects(train), Objects(val))
    assert set(entries) == {"full image", "centre box"}
    for of_images in entries.values():
        assert len(of_images) == 2
        for image in of_images:
            assert [(one["category_id"], one["score"]) for one in image] == [(SQUARE, 0.75), (BAR, 0.25)]
    assert entries["centre box"][0][0]["bbox"] == [8, 8, 16, 16]


def test_boxes_are_scored_as_boxes_and_masks_as_masks(tmp_path: Path) -> None:
    """The right box, of which the mask has a corner of 7 by 8 pixels: an IoU of 56 / 120."""
    val = Objects(dataset(tmp_path, "val", [[ONE], [ONE, CROWD]]))
    mask = np.zeros((SIDE, SIDE), dtype=np.bool_)
    mask[6:14, 4:11] = True
    found = [{"category_id": SQUARE, "bbox": ONE[1], "score": 0.5, "segmentation": outline(mask)}]
    template = EvalResult("", 0.0, "detection", "1", "coco", "val", 2)
    recorded = detection_rows(template, [val.outlined(i) for i in range(2)], [found, found], val)
    values = {one.row.metric: one.row.value for one in recorded}
    assert list(values) == ["box AP", "box AP50", "box AP75", "mask AP", "mask AP50", "mask AP75"]
    assert list(values.values()) == pytest.approx([100, 100, 100, 0, 0, 0])
    for one in recorded:
        assert 100 * score(one.values) == pytest.approx(one.row.value)
        assert one.values.objects.tolist() == [[1, 0], [1, 0]], "a crowd is no object"


def test_results_are_coco_s() -> None:
    boxes = np.array([[1.0, 2, 11.008, 22], [3, 4, 5, 7.5]])
    mask = outline(np.ones((SIDE, SIDE), dtype=np.bool_))
    seen = Found(boxes, np.array([0.123456, 0.9]), np.array([1, 0]), [mask, mask])
    first, second = result_entries([seen], [SQUARE, BAR])[0]
    assert (first["category_id"], first["bbox"], first["score"]) == (BAR, [1, 2, 10.01, 20], 0.12346)
    assert (second["category_id"], second["bbox"]) == (SQUARE, [3, 4, 2, 3.5])
    assert json.loads(json.dumps(first))["segmentation"]["size"] == [SIDE, SIDE]
    alone = result_entries([Found(boxes, np.ones(2), np.array([0, 0]), None)], [SQUARE])[0]
    assert "segmentation" not in alone[0]


def test_a_seed_is_a_training_of_its_own_and_a_frozen_network_has_no_gradients(tmp_path: Path) -> None:
    data, backbone = dataset(tmp_path, "train", [[ONE]]), network()
    backbone.model.requires_grad_(True)
    assert not torch.equal(weights(backbone, data, SMALL, seed=0), weights(backbone, data, SMALL, seed=1))
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())
