"""Weighted k-NN against a plain loop."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import eval.knn.classify as classify
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import Transform, export
from dinoskip.models import Backbone, create_model
from dinoskip.results import read_rows
from eval.knn import KnnConfig, evaluate, knn_classify, knn_predictions


def brute(train: np.ndarray, labels: np.ndarray, test: np.ndarray, k: int, temperature: float) -> list[int]:
    found = []
    for query in test.astype(np.float64):
        similar = [float(query @ x / np.linalg.norm(query) / np.linalg.norm(x)) for x in train.astype(np.float64)]
        votes = [0.0] * (max(labels) + 1)
        for i in sorted(range(len(train)), key=lambda i: -similar[i])[:k]:
            votes[labels[i]] += math.exp(similar[i] / temperature)
        found.append(votes.index(max(votes)))
    return found


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([0.07, 0.5]))
def test_equals_brute_force(seed: int, k: int, temperature: float) -> None:
    rng = np.random.default_rng(seed)
    train, test = (rng.standard_normal((n, 5)).astype(np.float32) for n in (12, 7))
    labels = rng.integers(0, 4, 12)
    have = knn_classify(train, labels, test, k, temperature)
    assert have.dtype == np.int64
    assert have.tolist() == brute(train, labels, test, k, temperature)


def test_all_blocks_ks_and_chunks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    train, test = torch.randn(3, 20, 6, generator=rng), torch.randn(3, 11, 6, generator=rng)
    labels = np.arange(20) % 5
    monkeypatch.setattr(classify, "_CHUNK_ELEMENTS", 3 * 20 * 4)  # four test images a time
    found = knn_predictions(train, labels, test, [7, 1, 3])
    assert list(found) == [7, 1, 3]
    for k in found:
        for block in range(3):
            assert found[k][block].tolist() == knn_classify(train[block], labels, test[block], k).tolist()


def test_length_of_features_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    train, test = rng.standard_normal((9, 4)), rng.standard_normal((5, 4))
    labels = rng.integers(0, 3, 9)
    scaled = train * rng.uniform(0.1, 10, (9, 1))
    assert knn_classify(train, labels, test, 5).tolist() == knn_classify(scaled, labels, test * 7, 5).tolist()


def test_faiss_finds_what_torch_and_brute_force_find() -> None:
    rng = np.random.default_rng(1)
    train, test = (torch.from_numpy(rng.standard_normal((2, n, 24), dtype=np.float32)) for n in (300, 40))
    labels = rng.integers(0, 5, 300)
    found = {backend: knn_predictions(train, labels, test, [5, 50], backend=backend) for backend in ("torch", "faiss")}
    for k in (5, 50):
        assert found["faiss"][k].tolist() == found["torch"][k].tolist()
        for block in range(2):
            assert found["faiss"][k][block].tolist() == brute(
                train[block].numpy(), labels, test[block].numpy(), k, 0.07
            )


@pytest.mark.parametrize("k", [0, -1, 4])
def test_k_beyond_the_training_set_is_refused(k: int) -> None:
    with pytest.raises(ConfigError, match=f"k: {k} neighbours were asked of 3 training images"):
        knn_classify(np.eye(3), [0, 1, 2], np.eye(3), k)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="labels"):
        knn_classify(np.eye(3), [0, 1], np.eye(3), 1)
    with pytest.raises(ValueError, match="do not fit"):
        knn_classify(np.eye(3), [0, 1, 2], np.eye(4), 1)
    with pytest.raises(ValueError, match="negative"):
        knn_classify(np.eye(3), [0, -1, 2], np.eye(3), 1)


class Images:
    def __init__(self, root: Path, split: str, count: int) -> None:
        root.mkdir(exist_ok=True)
        self.root, self.ids = root, tuple(f"{split}{i}" for i in range(count))
        self.labels = np.arange(count) % 2
        rng = np.random.default_rng(count)
        for name, label in zip(self.ids, self.labels, strict=True):
            pixels = rng.integers(0, 60, (20, 24, 3)) + 180 * label
            Image.fromarray(pixels.astype(np.uint8)).save(self.path(self.ids.index(name)))

    def path(self, i: int) -> Path:
        return self.root / f"{self.ids[i]}.png"


def test_evaluate_classifies_every_block(tmp_path: Path) -> None:
    torch.manual_seed(0)
    backbone = Backbone.from_model(create_model("vit_tiny_patch8", depth=2, img_size=16))
    transform = Transform(mode="center_crop", size=16)
    sets = {split: Images(tmp_path / "images", split, n) for split, n in (("train", 9), ("val", 6))}
    stores = {s: export(backbone, d, tmp_path / s, "all", tokens=False, transform=transform) for s, d in sets.items()}
    rows = evaluate(
        stores["train"], stores["val"], sets["train"].labels, sets["val"].labels, ["dark", "light"], tmp_path / "knn",
        KnnConfig(k=(1, 3)), {"model": "tiny", "dataset": "shades"}, device="cpu",
    )  # fmt: skip
    assert read_rows(tmp_path / "knn" / "rows.json") == rows
    floor = [row for row in rows if row.is_baseline]
    assert [(r.model, r.metric, r.value) for r in floor] == [
        (f"baseline: {name}", f"accuracy_k{k}", 50.0) for k in (1, 3) for name in ("majority class", "chance")
    ]
    rows = rows[: -len(floor)]
    assert [(r.block, r.metric) for r in rows] == [(b, f"accuracy_k{k}") for b in "12" for k in (1, 3)]
    assert all(r.low is not None and r.high is not None and r.low <= r.value <= r.high for r in rows)
    assert all((r.n, r.classes, r.dataset, r.split, r.model) == (6, 2, "shades", "val", "tiny") for r in rows)
    for row in rows:
        k, block = int(row.metric.removeprefix("accuracy_k")), int(row.block)
        have = brute(stores["train"].cls(block), sets["train"].labels, stores["val"].cls(block), k, 0.07)
        assert row.value == pytest.approx(100 * np.mean(np.array(have) == sets["val"].labels))
    without = export(backbone, sets["val"], tmp_path / "without", "all", cls=False, transform=transform)
    with pytest.raises(DataError, match="no class tokens"):
        evaluate(
            stores["train"], without, sets["train"].labels, sets["val"].labels, ["a", "b"], tmp_path, KnnConfig(), {}
        )
