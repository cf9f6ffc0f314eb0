"""A store that was not finished, or is not what its manifest says, is refused in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureStore, Transform, as_float, export
from dinoskip.io.files import read_manifest, write_manifest
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


def republished(store: FeatureStore) -> Path:
    """The store with a manifest of what its files are now: made to do harm, or by another program."""
    write_manifest(store.path, read_manifest(store.path).info)
    return store.path


@pytest.mark.parametrize(
    ("change", "message"),
    [({"kind": "run"}, "not a feature store"), ({"dim": 7}, "the manifest says"), ({"ids": None}, "damaged: ids"),
     ({"ids": []}, "damaged: ids"), ({"transform": {"mode": "round"}}, r"damaged: transform\.mode"),
     ({"blocks": [1, 2, 3]}, r"blocks \[1, 2, 3\] are not ascending numbers of 1\.\.2"),
     ({"depth": 3, "blocks": [1, 2, 3]}, "tokens_block3.npy: missing"), ({"blocks": []}, "damaged: blocks"),
     ({"blocks": ["x/../../y"]}, "damaged: blocks.0"), ({"blocks": [2, 1]}, "not ascending"),
     ({"grids": []}, "0 grids of 2 images"), ({"grids": [[1, 4]]}, "grid of image 'image00' is 1×4, of 32×32 pixels"),
     ({"ids": ["0.png", "0.png"]}, "image '0.png' is listed twice"), ({"patch_size": 16}, "grid of image"),
     ({"patch_size": 7}, "not a multiple of the patch size 7"), ({"transform": {"mode": "native"}}, "layout fixed"),
     ({"grids": [[2**40, 1]]}, r"damaged: grids\.0\.0"), ({"image_sizes": [[1, 1]]}, "1 image sizes of 2"),
     ({"layout": "ragged"}, "1 grids of 2 images, layout ragged"), ({"dtype": "int8"}, "damaged: dtype")],
)  # fmt: skip
def test_manifest_that_does_not_fit(store: FeatureStore, change: dict, message: str) -> None:
    path = store.path / "features.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=r"features.json: content differs from its recorded sha256"):
        FeatureStore.open(store.path)
    with pytest.raises(DataError, match=message):
        FeatureStore.open(republished(store))


RAGGED: dict[str, tuple[Callable[[dict], object], str]] = {
    "transposed": (lambda m: m.update(grids=[grid[::-1] for grid in m["grids"]]), "grid of image 'image00' is 4×2"),
    "same sum": (lambda m: m.update(grids=[[2, 3], [3, 4]]), "grid of image 'image00' is 2×3, of 16×32 pixels"),
    "ids": (lambda m: m.update(ids=[m["ids"][0]] * 2), "image 'image00' is listed twice"),
    "sizes": (lambda m: m["image_sizes"].reverse(), "grid of image 'image00' is 2×4"),
    "patch": (lambda m: m.update(patch_size=4), "grid of image 'image00' is 2×4, of 16×32 pixels"),
    "layout": (lambda m: m.update(transform={"mode": "square", "size": 32}), "layout ragged"),
}


@pytest.mark.parametrize("change", RAGGED)
def test_grids_follow_from_the_images(tmp_path: Path, backbone: Backbone, images: Callable, change: str) -> None:
    store = export(backbone, images([(16, 32), (24, 32)]), tmp_path / "s", [1], transform=Transform(mode="native"))
    path, (spoil, message) = store.path / "features.json", RAGGED[change]
    described = json.loads(path.read_text())
    assert described["grids"] == [[2, 4], [3, 4]]
    spoil(described)
    path.write_text(json.dumps(described))
    with pytest.raises(DataError, match=message):
        FeatureStore.open(republished(store))


def test_a_store_of_version_0_1_is_read(store: FeatureStore) -> None:
    """Its description was called manifest.json: one name with MANIFEST.json where case does not count."""
    tokens = np.array(store.tokens(1))
    os.rename(store.path / "features.json", store.path / "manifest.json")
    content = json.loads((store.path / "MANIFEST.json").read_text())
    content["files"]["manifest.json"] = content["files"].pop("features.json")
    (store.path / "MANIFEST.json").write_text(json.dumps(content))
    old = FeatureStore.open(store.path)
    np.testing.assert_array_equal(old.tokens(1), tokens)
    assert old.verify() == []


def test_what_is_read_is_verified_at_first_use(store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.path / "tokens_block2.npy"
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    opened = FeatureStore.open(store.path)
    opened.tokens(1)  # a whole file
    with pytest.raises(DataError, match=r"tokens_block2\.npy: content differs from its recorded sha256"):
        opened.tokens(2)
    FeatureStore.open(store.path, verify=False).tokens(2)
    monkeypatch.setenv("DINOSKIP_VERIFY", "0")
    FeatureStore.open(store.path).tokens(2)
    monkeypatch.setenv("DINOSKIP_VERIFY", "off")
    with pytest.raises(ConfigError, match="DINOSKIP_VERIFY='off' is neither 0 nor 1"):
        FeatureStore.open(store.path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_refused(
    tmp_path: Path, backbone: Backbone, images: Callable, dtype: Any, bad: float
) -> None:
    """They are refused even where the manifest does not name them, as in a store of another program."""
    dataset = images([(32, 32), (32, 48), (48, 32)])
    store = export(backbone, dataset, tmp_path / "store", [1], transform=Transform(mode="native"), dtype=dtype)
    row = int(store.offsets[1])
    stored = np.load(store.path / "tokens_block1.npy", mmap_mode="r+")
    bits = torch.tensor(bad).to(getattr(torch, dtype))
    stored[row, 3] = bits.view(torch.int16).numpy().view(np.uint16) if dtype == "bfloat16" else bits.numpy()
    stored.flush()
    with pytest.raises(DataError, match=rf"tokens_block1\.npy: features of image '{store.ids[1]}' are not finite"):
        FeatureStore.open(republished(store)).tokens(1)
    np.testing.assert_array_equal(FeatureStore.open(store.path).cls(1), store.cls(1))


def test_a_file_is_hashed_once_a_process(store: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    FeatureStore.open(store.path).tokens(1)
    monkeypatch.setattr("hashlib.file_digest", None)  # a second time would fail
    FeatureStore.open(store.path).tokens(1)


def test_a_fifo_in_a_store_hangs_nobody(store: FeatureStore) -> None:
    (store.path / "cls_block1.npy").unlink()
    os.mkfifo(store.path / "cls_block1.npy")
    with pytest.raises(DataError, match=r"cls_block1\.npy: is not a regular file"):
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


def test_the_folder_of_a_stage_opens_its_store(store: FeatureStore, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    store.path.rename(stage / "store")
    write_manifest(stage)
    opened = FeatureStore.open(stage)
    assert opened.path == stage / "store"
    assert opened.key == store.key


@pytest.mark.parametrize("kind", ["Fortran order", "long header", "open bracket"])
def test_npy_files_of_others(tmp_path: Path, backbone: Backbone, images: Callable, kind: str) -> None:
    store = export(
        backbone,
        images([(16, 32)]),
        tmp_path / "s",
        [1],
        transform=Transform(mode="native"),
        dtype="float32",
        cls=False,
    )
    path = store.path / "tokens_block1.npy"
    rows = np.asfortranarray(store.tokens(1))
    np.save(path, rows)  # of the shape and dtype that the manifest says
    if kind != "Fortran order":
        length = 199 if kind == "open bracket" else 40_000
        path.write_bytes(b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + b"(" * length + rows.tobytes())
    with pytest.raises(DataError, match=r"tokens_block1\.npy: not a readable array: ") as caught:
        FeatureStore.open(store.path)
    assert "\n" not in str(caught.value)
