"""Saliency over the store of a tiny backbone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import eval.resumed
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import ExportSettings, FeatureStore, FeatureWindows, Transform, export
from dinoskip.io.images import read_image
from dinoskip.io.parts import ALONE, Parts
from dinoskip.results.records import read_records
from dinoskip.results.rows import EvalResult, read_rows
from dinoskip.results.statistics import score
from dinoskip_dense.saliency import BilateralGrid, SaliencyConfig, solve
from eval.compare import compare
from eval.tokencut import TokenCut, tokencut
from plugins.dense.tests.saliency.test_scores import f_by_hand
from tests.helpers.folders import contents
from tests.helpers.tasks import evaluation_of, in_parts
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("saliency")

SIZES = ((40, 56), (37, 64), (12, 9))  # the last one has a single patch: nothing to cut


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> SegmentationDataset:
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    ids = tuple("cab")
    for name, (height, width) in zip(ids, SIZES, strict=True):
        truth = np.zeros((height, width), dtype=np.uint8)
        truth[height // 4 : 3 * height // 4, : width // 2] = 1
        pixels = rng.integers(0, 60, (height, width, 3)) + 150 * truth[..., None]
        Image.fromarray(pixels.astype(np.uint8)).save(root / f"{name}.png")
        truth[:2] = 255
        Image.fromarray(truth).save(root / f"{name}_mask.png")
    paths, masks = (tuple(root / f"{name}{end}.png" for name in ids) for end in ("", "_mask"))
    return SegmentationDataset("toy", "test", ids, paths, masks, class_names=("background", "object"))


def test_parts_of_several_processes_are_the_files_of_one(
    dataset: SegmentationDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eval.resumed, "IMAGES", 1)
    store = store_of(dataset, tmp_path / "store", Transform(mode="rounded"))

    def found(out: Path, parts: Parts) -> object:
        return evaluate(store, dataset, out, SaliencyConfig(), {}, device="cpu", parts=parts)

    found(tmp_path / "alone", ALONE)
    assert contents(in_parts(found, tmp_path)) == contents(tmp_path / "alone")


def store_of(dataset: SegmentationDataset, out: Path, transform: Transform) -> FeatureStore:
    backbone = tiny_vit(8)
    return export(backbone, dataset, out, "all", "key", "none", "float32", transform=transform)


@pytest.fixture(scope="module")
def store(dataset: SegmentationDataset, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    rounded = Transform(mode="rounded", resample="lanczos")
    return store_of(dataset, tmp_path_factory.mktemp("stores") / "rounded", rounded)


def test_windows_give_the_files_of_a_store(dataset: SegmentationDataset, store: FeatureStore, tmp_path: Path) -> None:
    settings = ExportSettings("all", "key", "none", "float32", batch_size=1, transform=store.transform)
    windows = FeatureWindows(tiny_vit(8), dataset, settings, limit=1)
    assert len(windows.windows()) == 3
    evaluate(store, dataset, tmp_path / "store", SaliencyConfig(solver=True), {})
    evaluate(windows, dataset, tmp_path / "windows", SaliencyConfig(solver=True), {})
    assert contents(tmp_path / "windows") == contents(tmp_path / "store")


def mask_of(store: FeatureStore, block: int, i: int, size: tuple[int, int]) -> np.ndarray:
    h, w = store.grid(i)
    component = np.ones((h, w), dtype=bool)
    if h * w >= 3:
        cut = tokencut(store.tokens(block, i), (h, w))
        assert isinstance(cut, TokenCut)
        component = cut.component
    rows, columns = (np.arange(n) * cells // n for n, cells in zip(size, (h, w), strict=True))
    return component[rows[:, None], columns[None]]


def test_masks_are_scored_image_by_image(dataset: SegmentationDataset, store: FeatureStore, tmp_path: Path) -> None:
    rows = evaluate(store, dataset, tmp_path, SaliencyConfig(), {"model": "tiny", "seed": 3}, workers=2)
    assert read_rows(tmp_path / "rows.json") == rows
    metrics = ("maxF", "IoU", "accuracy")
    assert [(row.block, row.metric) for row in rows[:6]] == [(block, metric) for block in "12" for metric in metrics]
    assert [row.model for row in rows[6::3]] == ["baseline: full image", "baseline: centre box"]
    records = read_records(tmp_path)
    assert len(records) == len(rows)
    for row, one in records.items():
        assert 100 * score(one.values) == pytest.approx(row.value, abs=1e-9)
        assert row.low is not None
        assert row.high is not None
        assert row.low - 1e-9 <= row.value <= row.high + 1e-9
    for row in rows[:6]:
        assert (row.task, row.protocol, row.facet, row.n) == ("saliency", "tokencut tau=0.2 eps=1e-05", "key", 3)
        assert row.resolution == "rounded, lanczos, scored at image size"
        for i, value in enumerate(records[row].values):
            truth, known = dataset.label(i), dataset.label(i) != 255
            mask = mask_of(store, int(row.block), i, SIZES[i])
            said, there = mask[known], truth[known] == 1
            wanted = {
                "maxF": f_by_hand(mask, truth),
                "IoU": (said & there).sum() / (said | there).sum(),
                "accuracy": (said == there).mean(),
            }
            assert value == pytest.approx(wanted[row.metric], abs=1e-9)
    whole = next(row for row in rows if row.model == "baseline: full image" and row.metric == "IoU")
    shares = [(label[label != 255] == 1).mean() for label in map(dataset.label, range(3))]
    assert whole.value == pytest.approx(100 * np.mean(shares))
    pair = compare(f"{tmp_path}@metric=IoU,block=1", f"{tmp_path}@metric=IoU,block=2")
    assert pair.mcnemar is None
    assert pair.difference.value == pytest.approx(rows[1].value - rows[4].value)


def test_the_solver_adds_rows_of_its_soft_maps(
    dataset: SegmentationDataset, store: FeatureStore, tmp_path: Path
) -> None:
    rows = evaluate(store, dataset, tmp_path, SaliencyConfig(solver=True), {}, workers=1)
    models = [row for row in rows if not row.is_baseline]
    assert [row.protocol.endswith("bilateral solver") for row in models] == [*[False] * 3, *[True] * 3] * 2
    smooth = {(row.block, row.metric): row for row in models if "solver" in row.protocol}
    assert {row.metric for row in rows if row.selected == "shown"} == {"maxF"}, "its threshold is the best on these"
    assert all((row in smooth.values()) == (row.selected == "shown") for row in models if row.metric == "maxF")
    for block in (1, 2):
        curves, iou = [], []
        for i in range(3):
            photo, truth = read_image(dataset.path(i)), dataset.label(i)
            mask = mask_of(store, block, i, SIZES[i])
            soft = solve(BilateralGrid.of(photo), mask[None].astype(np.float64))[0]
            curves.append([f_by_hand(soft > k / 255, truth) for k in range(0, 255)])
            said, there = (soft > 0.5)[truth != 255], truth[truth != 255] == 1
            iou.append((said & there).sum() / (said | there).sum())
        assert smooth[str(block), "maxF"].value == pytest.approx(100 * np.mean(curves, axis=0).max(), abs=1e-4)
        assert smooth[str(block), "IoU"].value == pytest.approx(100 * np.mean(iou), abs=1e-9)


def test_what_cannot_be_scored_is_one_line(dataset: SegmentationDataset, store: FeatureStore, tmp_path: Path) -> None:
    square = store_of(dataset, tmp_path / "square", Transform(size=32))
    with pytest.raises(ConfigError, match="transform mode rounded"):
        evaluate(square, dataset, tmp_path / "out", SaliencyConfig(), {})
    with pytest.raises(DataError, match="image 'a' is not in toy test"):
        evaluate(store, replace(dataset, ids=("c", "x", "b")), tmp_path / "out", SaliencyConfig(), {})


def test_baselines_are_the_same_whatever_the_model(
    dataset: SegmentationDataset, store: FeatureStore, tmp_path: Path
) -> None:
    def floor(tau: float) -> list[EvalResult]:
        rows = evaluate(store, dataset, tmp_path / str(tau), SaliencyConfig(tau=tau), {"model": f"tau {tau}"})
        return [row for row in rows if row.is_baseline]

    assert floor(0.2) == floor(0.6)


def test_pixels_without_a_network_are_baselines(
    dataset: SegmentationDataset, store: FeatureStore, tmp_path: Path
) -> None:
    without, rows = (
        evaluate(store, dataset, tmp_path / str(pixels), SaliencyConfig(pixels=pixels), {"model": "tiny"})
        for pixels in (False, True)
    )
    assert rows[: len(without)] == without
    floor = {(row.model, row.metric): row.value for row in rows[len(without) :]}
    assert {model for model, _ in floor} == {"baseline: colours", "baseline: random patch"}
    assert floor["baseline: colours", "IoU"] > 60  # the object is bright, all else is dark
