"""A store that was not finished, or is not what its manifest says, is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.errors import DataError
from dinoskip.features import FeatureStore, Transform, as_float, export
from dinoskip.models import Backbone


@pytest.fixture
def store(tmp_path: Path, backbone: Backbone, images: Callable) -> FeatureStore:
    return export(backbone, images([(32, 32)] * 2), tmp_path / "store", [1, 2], transform=Transform(size=32))


def test_flipped_byte_is_found(store: FeatureStore) -> None:
    assert store.verify() == []
    path = store.path / "tokens_block2.npy"
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    problems = FeatureStore.open(store.path).verify()
    assert len(problems) == 1
    assert "tokens_block2.npy" in problems[0]


def test_unfinished_or_foreign_directories(store: FeatureStore, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a finished feature store"):
        FeatureStore.open(tmp_path / "nowhere")
    (store.path / "MANIFEST.json").unlink()
    with pytest.raises(DataError, match="not a finished feature store"):
        FeatureStore.open(store.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"kind": "run"}, "not a feature store"), ({"dim": 7}, "the manifest says"), ({"ids": None}, "damaged"),
     ({"transform": {"mode": "round"}}, "damaged"), ({"blocks": [1, 2, 3]}, "tokens_block3.npy: missing")],
)  # fmt: skip
def test_manifest_that_does_not_fit(store: FeatureStore, change: dict, message: str) -> None:
    path = store.path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        FeatureStore.open(store.path)


def test_pickled_arrays_are_never_loaded(store: FeatureStore) -> None:
    np.save(store.path / "cls_block1.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"cls_block1\.npy: not a readable array"):
        FeatureStore.open(store.path)


def test_image_numbers_are_checked(store: FeatureStore) -> None:
    np.testing.assert_array_equal(store.tokens(1, -1), store.tokens(1, 1))
    with pytest.raises(IndexError):
        store.tokens(1, 2)
    assert len(store) == 2


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_bfloat16_decodes_as_torch_does(values: list[float]) -> None:
    exact = torch.tensor(values).to(torch.bfloat16)
    stored = exact.view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(as_float(stored), exact.float().numpy())
