"""Weighted k-NN against a plain loop."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import eval.knn.classify as classify
from dinoskip.errors import ConfigError, DataError
from eval.knn import knn_predictions
from eval.knn.classify import knn_of_parts
from tests.helpers.knn import knn_classify


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


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 1])
def test_features_that_are_not_finite_are_refused(value: float, where: int) -> None:
    features = [np.eye(3), np.eye(3)]
    features[where][2, 1] = value
    with pytest.raises(DataError, match="features are not finite"):
        knn_classify(features[0], [0, 1, 2], features[1], 1)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="labels"):
        knn_classify(np.eye(3), [0, 1], np.eye(3), 1)
    with pytest.raises(ValueError, match="do not fit"):
        knn_classify(np.eye(3), [0, 1, 2], np.eye(4), 1)
    with pytest.raises(ValueError, match="negative"):
        knn_classify(np.eye(3), [0, -1, 2], np.eye(3), 1)


@given(cuts=st.lists(st.integers(1, 39), max_size=6, unique=True), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_parts_vote_as_the_whole(cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    train, test = (torch.from_numpy(rng.standard_normal((2, n, 5), dtype=np.float32)) for n in (40, 7))
    labels = rng.integers(0, 3, 40)
    edges = [0, *sorted(cuts), 40]
    parts = [(train[:, a:b], labels[a:b]) for a, b in pairwise(edges)]
    whole = knn_predictions(train, labels, test, (1, 4, 40))
    for k, predicted in knn_of_parts(parts, 3, test, (1, 4, 40)).items():
        np.testing.assert_array_equal(predicted, whole[k])
