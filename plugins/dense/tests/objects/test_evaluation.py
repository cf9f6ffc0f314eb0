"""Objects over the store of a tiny backbone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dinoskip_dense.objects.evaluation
import eval.resumed
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import ExportSettings, FeatureStore, FeatureWindows, Transform, export
from dinoskip.io.parts import ALONE, Parts
from dinoskip.results.records import read_records
from dinoskip.results.rows import read_rows
from dinoskip.results.statistics import score
from dinoskip_dense.objects import ObjectsConfig, maskcut
from dinoskip_dense.objects.evaluation import object_boxes, to_pixels
from eval.compare import compare
from eval.object_scores import match_boxes, match_masks, outline
from tests.helpers.folders import contents
from tests.helpers.tasks import evaluation_of, in_parts
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("objects")


@dataclass
class Photographs:
    root: Path
    ids: tuple[str, ...] = ("b", "a", "c")
    name: str = "toy"
    split: str = "val"

    def path(self, index: int) -> Path:
        return self.root / f"{self.ids[index]}.png"

    def boxes(self, index: int) -> np.ndarray:
        return np.array([[4, 6, 24, 30], [40, 10, 70, 44]], dtype=np.float32)[: index + 1 if index < 2 else 0]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Photographs:
    photos, rng = Photographs(tmp_path_factory.mktemp("images")), np.random.default_rng(0)
    for index in range(3):
        pixels = rng.integers(0, 60, (50, 80, 3))
        for x1, y1, x2, y2 in photos.boxes(index).astype(int):
            pixels[y1:y2, x1:x2, index % 3] += 150
        Image.fromarray(pixels.astype(np.uint8)).save(photos.path(index))
    return photos


def store_of(dataset: Photographs, out: Path, transform: Transform) -> FeatureStore:
    backbone = tiny_vit(8)
    return export(backbone, dataset, out, "all", "key", "none", "float32", transform=transform, batch_size=1)


@pytest.fixture(scope="module")
def store(dataset: Photographs, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    square = Transform(size=64, resample="lanczos")
    return store_of(dataset, tmp_path_factory.mktemp("stores") / "square", square)


@pytest.mark.parametrize("positions", ["keep", "rasa"])
def test_parts_of_several_processes_are_the_files_of_one(
    dataset: Photographs, store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, positions: str
) -> None:
    monkeypatch.setattr(eval.resumed, "IMAGES", 1)
    config = ObjectsConfig.model_validate({"size": 64, "positions": positions})

    def found(out: Path, parts: Parts) -> object:
        return evaluate(store, dataset, out, config, {}, device="cpu", parts=parts)

    found(tmp_path / "alone", ALONE)
    assert contents(in_parts(found, tmp_path)) == contents(tmp_path / "alone")


def test_windows_give_the_files_of_a_store_after_a_stop_too(
    dataset: Photographs, store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ExportSettings("all", "key", "none", "float32", batch_size=1, transform=store.transform)
    windows = FeatureWindows(tiny_vit(8), dataset, settings, limit=1)
    evaluate(store, dataset, tmp_path / "store", ObjectsConfig(size=64), {})
    original, seen = dinoskip_dense.objects.evaluation.each_graph, []

    def stopped(part: FeatureStore, *args: Any) -> Any:
        seen.append(part.ids)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return original(part, *args)

    monkeypatch.setattr(dinoskip_dense.objects.evaluation, "each_graph", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate(windows, dataset, tmp_path / "windows", ObjectsConfig(size=64), {})
    evaluate(windows, dataset, tmp_path / "windows", ObjectsConfig(size=64), {})
    assert seen == [("b",), ("a",), ("a",), ("c",)]
    assert contents(tmp_path / "windows") == contents(tmp_path / "store")


def test_boxes_are_those_of_the_masks(dataset: Photographs, store: FeatureStore, tmp_path: Path) -> None:
    config = ObjectsConfig(size=64)
    rows = evaluate(store, dataset, tmp_path, config, {"model": "tiny", "seed": 3}, workers=2)
    assert read_rows(tmp_path / "rows.json") == rows
    assert [(row.block, row.metric) for row in rows] == [
        (block, metric) for block in ("1", "2", "", "") for metric in ("AP50", "AP", "AR100")
    ]
    assert rows[0].protocol == "maskcut tau=0.15 eps=1e-05 rounds=3, no CRF"
    assert (rows[0].task, rows[0].resolution, rows[0].facet) == ("objects", "64 square, lanczos", "key")
    written = json.loads((tmp_path / "boxes.json").read_text())
    truth = [dataset.boxes(i) for i in range(3)]
    for number, block in enumerate((1, 2)):
        masks, boxes = np.load(tmp_path / f"objects_block{block}.npy"), []
        for i in range(3):
            rounds = maskcut(store.tokens(block, i), (8, 8))
            own, numbers, _ = object_boxes(rounds, 64, (50, 80))
            boxes.append(np.array(own).reshape(-1, 4))
            assert written[dataset.ids[i]][str(block)] == boxes[-1].tolist()
            np.testing.assert_array_equal(masks[i], numbers)
        matched = match_boxes(boxes, truth)
        values = [row.value for row in rows[3 * number : 3 * number + 3]]
        assert values == pytest.approx([100 * matched.ap[0], 100 * matched.ap.mean(), 100 * matched.ar.mean()])
    records = read_records(tmp_path)
    assert list(records) == rows
    assert all(100 * score(one.values) == pytest.approx(row.value) for row, one in records.items())
    for metric, value in zip(("AP50", "AP", "AR100"), values, strict=True):
        pair = compare(f"{tmp_path}@metric={metric},block=2", f"{tmp_path}@metric={metric},block=1")
        assert pair.a.row.value == value
        assert pair.difference.n == 3


def test_a_box_is_tight_around_its_object() -> None:
    features = np.zeros((100, 3), dtype=np.float32)
    features[:, 0] = 1
    place = np.zeros((10, 10), dtype=bool)
    place[2:5, 3:7] = True
    place[3, 4] = False  # a hole, which is filled
    features[place.ravel()] = (0, 1, 0)
    boxes, numbers, _ = object_boxes(maskcut(features, (10, 10), rounds=1), 100, (200, 50))
    assert boxes == [(15, 40, 35, 100)]
    assert numbers[2:5, 3:7].all()
    assert numbers.sum() == 12


def test_what_cannot_be_cut_is_one_line(dataset: Photographs, store: FeatureStore, tmp_path: Path) -> None:
    native = store_of(dataset, tmp_path / "native", Transform(mode="native"))
    with pytest.raises(ConfigError, match="transform mode square"):
        evaluate(native, dataset, tmp_path / "out", ObjectsConfig(), {})
    with pytest.raises(DataError, match="image 'c' is not in toy val"):
        evaluate(store, Photographs(dataset.root, ("b", "a")), tmp_path / "out", ObjectsConfig(), {})


class Outlined(Photographs):
    """The same with masks: the boxes of even images, half of those of odd ones."""

    def masks(self, index: int) -> list[np.ndarray]:
        made = []
        for x1, y1, x2, y2 in self.boxes(index).astype(int):
            mask = np.zeros((50, 80), dtype=bool)
            mask[y1:y2, x1 : x2 if index % 2 == 0 else (x1 + x2) // 2] = True
            made.append(mask)
        return made


def test_masks_are_scored_where_a_set_has_them(dataset: Photographs, store: FeatureStore, tmp_path: Path) -> None:
    config = ObjectsConfig(size=64, masks=True)
    with pytest.raises(ConfigError, match="toy has boxes alone"):
        evaluate(store, dataset, tmp_path / "no", config, {})
    outlined = Outlined(dataset.root)
    rows = evaluate(store, outlined, tmp_path / "masks", config, {})
    alone = evaluate(store, dataset, tmp_path / "boxes", ObjectsConfig(size=64), {})
    assert rows[: len(alone)] == alone
    masks = rows[len(alone) :]
    assert [(row.block, row.metric) for row in masks] == [
        (block, f"mask {metric}") for block in ("1", "2", "", "") for metric in ("AP50", "AP", "AR100")
    ]
    truth = [[outline(mask) for mask in outlined.masks(i)] for i in range(3)]
    for row, block in ((masks[0], 1), (masks[3], 2)):
        predicted = []
        for i in range(3):
            _, _, filled = object_boxes(maskcut(store.tokens(block, i), (8, 8)), 64, (50, 80))
            predicted.append([outline(to_pixels(one, 64, (50, 80))) for one in filled])
        assert row.value == 100 * match_masks(predicted, truth).ap[0]
    assert set(contents(tmp_path / "masks")) == set(contents(tmp_path / "boxes"))
