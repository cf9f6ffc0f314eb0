"""k-NN on stores of a tiny backbone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image

import eval.knn.evaluation
import eval.knn.memory
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import ExportSettings, FeatureWindows, Transform, export
from dinoskip.io.parts import ALONE, Parts
from dinoskip.results.records import read_records
from dinoskip.results.rows import EvalResult, read_rows
from eval.knn import KnnConfig
from eval.knn.pictures import NEIGHBOURS, nearest_images
from tests.helpers.folders import contents
from tests.helpers.knn import knn_classify
from tests.helpers.tasks import evaluation_of, in_parts
from tests.helpers.tiny_vit import tiny_vit

evaluate = evaluation_of("knn")


def images(root: Path, split: str, count: int) -> LabelledFolder:
    """Noise of two classes by turns, dark and light."""
    rng = np.random.default_rng(count)
    for number in range(count):
        path = root / split / ("dark", "light")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 60, (20, 24, 3)) + 180 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return LabelledFolder.open(root / split)


@pytest.mark.parametrize("backend", ["torch", "faiss"])
def test_parts_of_several_processes_are_the_files_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Literal["torch", "faiss"]
) -> None:
    backbone, transform = tiny_vit(8, 16, 3), Transform(mode="center_crop", size=16)
    sets = {split: images(tmp_path / "images", split, n) for split, n in (("train", 11), ("val", 7))}
    stores = {s: export(backbone, d, tmp_path / s, "all", tokens=False, transform=transform) for s, d in sets.items()}
    monkeypatch.setattr(eval.knn.memory, "memory_limit", lambda: 2 * 2 * 3 * 4 * 192 * 18)  # two blocks at once
    monkeypatch.setattr(eval.knn.evaluation, "queries_together", lambda *_: 2)
    monkeypatch.setattr(eval.knn.evaluation, "QUERIES", 5)

    def found(out: Path, parts: Parts) -> object:
        config = KnnConfig(k=(1, 3), backend=backend)
        return evaluate(*stores.values(), *sets.values(), out, config, {}, device="cpu", parts=parts)

    found(tmp_path / "alone", ALONE)
    assert contents(in_parts(found, tmp_path)) == contents(tmp_path / "alone")


@pytest.mark.parametrize("backend", ["torch", "faiss"])
def test_windows_give_the_rows_of_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Literal["torch", "faiss"]
) -> None:
    backbone = tiny_vit(8, 16, 2)
    transform = Transform(mode="center_crop", size=16)
    sets = {split: images(tmp_path / "images", split, n) for split, n in (("train", 11), ("val", 6))}
    train, val = (
        export(backbone, sets[split], tmp_path / split, "all", tokens=False, transform=transform) for split in sets
    )
    settings = ExportSettings("all", batch_size=4, tokens=False, transform=transform)
    windows = FeatureWindows(backbone, sets["train"], settings, limit=1)
    monkeypatch.setattr(eval.knn.evaluation, "_PART_VALUES", 3 * 2 * train.dim)  # three images, of windows of four
    for name, features in (("store", train), ("windows", windows)):
        config = KnnConfig(k=(1, 3, 11), backend=backend)
        evaluate(features, val, *sets.values(), tmp_path / name, config, {}, device="cpu")
    shutil.rmtree(tmp_path / "store" / NEIGHBOURS)  # of windows nobody keeps what their pictures need
    assert contents(tmp_path / "windows") == contents(tmp_path / "store")
    for k, config in ((12, KnnConfig(k=(12,))), (3, KnnConfig(k=(3,), backend="ivf"))):
        with pytest.raises(ConfigError, match=f"k: {k} neighbours were asked of 11" if k == 12 else "ivf needs"):
            evaluate(windows, val, *sets.values(), tmp_path, config, {})


def test_evaluate_classifies_every_block(tmp_path: Path) -> None:
    backbone = tiny_vit(8, 16, 2)
    transform = Transform(mode="center_crop", size=16)
    sets = {split: images(tmp_path / "images", split, n) for split, n in (("train", 9), ("val", 6))}
    stores = {s: export(backbone, d, tmp_path / s, "all", tokens=False, transform=transform) for s, d in sets.items()}
    context = {"model": "tiny", "dataset": "shades"}
    rows = evaluate(*stores.values(), *sets.values(), tmp_path / "knn", KnnConfig(k=(1, 3)), context, device="cpu")
    assert read_rows(tmp_path / "knn" / "rows.json") == rows
    floor = [row for row in rows if row.is_baseline]
    assert [(r.model, r.metric, r.value) for r in floor] == [
        (f"baseline: {name}", f"accuracy_k{k}", 50.0) for k in (1, 3) for name in ("majority class", "chance")
    ]
    records = read_records(tmp_path / "knn")
    assert set(records) == set(rows) - {row for row in rows if "chance" in row.model}
    assert {one.ids for one in records.values()} == {stores["val"].ids}
    assert all(100 * one.values.mean() == pytest.approx(row.value) for row, one in records.items())
    rows = rows[: -len(floor)]
    assert [(r.block, r.metric) for r in rows] == [(b, f"accuracy_k{k}") for b in "12" for k in (1, 3)]
    assert all(r.low is not None and r.high is not None and r.low <= r.value <= r.high for r in rows)
    assert all((r.n, r.classes, r.dataset, r.split, r.model) == (6, 2, "shades", "val", "tiny") for r in rows)
    for row in rows:
        k, block = int(row.metric.removeprefix("accuracy_k")), int(row.block)
        have = knn_classify(stores["train"].cls(block), sets["train"].labels, stores["val"].cls(block), k)
        assert (records[row].values == (have == sets["val"].labels)).all()
        assert row.value == pytest.approx(100 * np.mean(have == sets["val"].labels))
    without = export(backbone, sets["val"], tmp_path / "without", "all", cls=False, transform=transform)
    with pytest.raises(DataError, match="no class tokens"):
        evaluate(stores["train"], without, *sets.values(), tmp_path, KnnConfig(), {})


def test_blocks_in_turn_where_memory_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny_vit(8, 16, 3)
    transform = Transform(mode="center_crop", size=16)
    sets = {split: images(tmp_path / "images", split, n) for split, n in (("train", 9), ("val", 6))}
    stores = {s: export(backbone, d, tmp_path / s, "all", tokens=False, transform=transform) for s, d in sets.items()}
    original, together = eval.knn.evaluation.knn_predictions, []

    def predictions(train: torch.Tensor, *args: Any, **kw: Any) -> Any:
        together.append(len(train))
        return original(train, *args, **kw)

    def rows(out: str, **settings: Any) -> list[EvalResult]:
        return evaluate(*stores.values(), *sets.values(), tmp_path / out, KnnConfig(k=(1, 3), **settings), {})

    monkeypatch.setattr(eval.knn.evaluation, "knn_predictions", predictions)
    whole = rows("whole")
    monkeypatch.setattr(eval.knn.memory, "memory_limit", lambda: 2 * 2 * 3 * 4 * 192 * 15)
    assert rows("parts") == whole
    assert together == [3, 2, 1]
    assert read_records(tmp_path / "parts").keys() == read_records(tmp_path / "whole").keys()
    assert {row.protocol for row in rows("ivf", backend="ivf") if not row.is_baseline} == {
        "dino k-NN, temperature 0.07, ivf index"
    }


def test_neighbours_are_drawn_framed_by_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, transform = tiny_vit(8, 16, 2), Transform(mode="center_crop", size=16)
    sets = {split: images(tmp_path / "images", split, n) for split, n in (("train", 9), ("val", 6))}
    train, val = (export(backbone, d, tmp_path / s, "all", tokens=False, transform=transform) for s, d in sets.items())
    monkeypatch.setattr(eval.knn.pictures, "_ROWS", 4)  # three parts of nine
    rows = evaluate(train, val, *sets.values(), tmp_path / "knn", KnnConfig(k=(5,)), {}, device="cpu")
    for block in (1, 2):
        memory, queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train.cls(block), val.cls(block)))
        near = nearest_images(train, val, block, range(6), 5)
        cosines = np.sort(queries.astype(np.float64) @ memory.T.astype(np.float64))[:, ::-1][:, :5]
        found = np.take_along_axis(queries @ memory.T, near, axis=1)
        np.testing.assert_allclose(found, cosines, atol=1e-6)
        with Image.open(tmp_path / "knn" / NEIGHBOURS / f"block{block}.jpg") as sheet:
            lines, places = np.indices(near.shape)
            at = [
                (place * 117 + 117 + 14 + 2, line * 117 + 56)
                for line, place in zip(lines.flat, places.flat, strict=True)
            ]
            framed = np.array([sheet.getpixel(place) for place in at])
        same = (sets["train"].labels[near] == sets["val"].labels[:, None]).ravel()
        assert ((framed[:, 1] > framed[:, 0]) == same).all()  # green, else vermilion
        votes = [
            np.bincount(sets["train"].labels[line], np.exp(c / 0.07), 2) for line, c in zip(near, found, strict=True)
        ]
        right = np.mean(np.argmax(votes, axis=1) == sets["val"].labels)
        (row,) = (row for row in rows if row.block == str(block))
        assert row.value == pytest.approx(100 * right)
