"""The same features as npy, safetensors and HDF5: read by the libraries of those formats, and by ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from dinoskip.cli import main
from dinoskip.errors import ConfigError, DataError, OutputInUse
from dinoskip.features import FeatureStore, Transform, as_float, export, forward, writer
from dinoskip.files import list_files, sha256_file
from dinoskip.models import Backbone

NATIVE = Transform(mode="native")
SIZES = [(24, 16), (16, 24), (24, 16), (9, 8)]


def arrays_of(store: FeatureStore) -> dict[str, np.ndarray]:
    """As a user without dinoskip reads them: float32."""
    found: dict[str, np.ndarray] = {}
    if store.file_format == "npy":
        return {path.stem: as_float(np.load(path)) for path in store.path.glob("*.npy")}
    if store.file_format == "safetensors":
        for path in store.path.glob("*.safetensors"):
            with safe_open(path, "pt") as opened:
                assert json.loads(opened.metadata()["manifest"]) == store.manifest
                for name in opened.keys():  # noqa: SIM118 - not a dictionary
                    tensor = opened.get_tensor(name)
                    expected = torch.int64 if name == "offsets" else getattr(torch, store.dtype)
                    assert tensor.dtype == expected
                    found[name] = tensor.numpy() if name == "offsets" else tensor.float().numpy()
        return found
    h5py = pytest.importorskip("h5py")
    with h5py.File(store.path / "features.h5") as opened:
        found = {name: opened[name][()] for name in opened if name.startswith(("tokens", "cls"))}
        if store.dtype == "bfloat16":
            assert opened.attrs["dtype"] == "bfloat16"
        found = {name: as_float(values) for name, values in found.items()}
        found |= {"offsets": opened["offsets"][()]} if "offsets" in opened else {}
        assert [text.decode() for text in opened["ids"]] == list(store.ids)
        np.testing.assert_array_equal(opened["grids"], store.manifest["grids"])
        np.testing.assert_array_equal(opened["image_sizes"], store.manifest["image_sizes"])
        assert (opened.attrs["facet"], opened.attrs["key"]) == (store.facet, store.key)
        assert opened.attrs["blocks"].tolist() == list(store.blocks)
        assert json.loads(opened.attrs["transform"]) == store.manifest["transform"]
    return found


@pytest.mark.parametrize("file_format", ["safetensors", "hdf5"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("transform", [NATIVE, Transform(size=16)], ids=["native", "square"])
def test_every_format_holds_the_same(
    tmp_path: Path, backbone: Backbone, images: Callable, file_format: Any, dtype: Any, transform: Transform
) -> None:
    dataset = images(SIZES)
    settings = {"facet": "key", "norm": "none", "dtype": dtype, "transform": transform, "batch_size": 2}
    plain = export(backbone, dataset, tmp_path / "npy", "all", **settings)
    other = export(backbone, dataset, tmp_path / "other", "all", **settings, file_format=file_format)
    expected, found = arrays_of(plain), arrays_of(other)
    if plain.offsets is not None:
        np.testing.assert_array_equal(found.pop("offsets"), plain.offsets)
    assert found.keys() == expected.keys() == {"tokens_block1", "tokens_block2", "cls_block1", "cls_block2"}
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    assert other.file_format == file_format
    assert other.manifest == plain.manifest
    assert other.verify() == []
    for i in range(len(SIZES)):  # and our own reader maps it as it does npy
        np.testing.assert_array_equal(other.tokens(2, i), plain.tokens(2, i))
    np.testing.assert_array_equal(other.cls(1), plain.cls(1))
    assert isinstance(other.tokens(1), np.memmap)


@pytest.mark.parametrize("file_format", ["safetensors", "hdf5"])
def test_stopped_and_continued_to_the_same_bytes(
    tmp_path: Path, backbone: Backbone, images: Callable, monkeypatch: pytest.MonkeyPatch, file_format: Any
) -> None:
    monkeypatch.setattr(writer, "FLUSH_SECONDS", 0.0)
    dataset, settings = images(SIZES), {"transform": NATIVE, "batch_size": 1, "file_format": file_format}
    straight = export(backbone, dataset, tmp_path / "straight", "all", **settings)
    seen: list[int] = []
    computed = forward.ForwardPasses._computed

    def stopped(self: Any, number: int, pixels: Any) -> Any:
        seen.append(number)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return computed(self, number, pixels)

    with monkeypatch.context() as patch:
        patch.setattr(forward.ForwardPasses, "_computed", stopped)
        with pytest.raises(KeyboardInterrupt):
            export(backbone, dataset, tmp_path / "store", "all", **settings)
        store = export(backbone, dataset, tmp_path / "store", "all", **settings)
    assert sorted(seen) == [0, 1, 2, 2, 3]
    files = [*list_files(store.path), "MANIFEST.json"]
    assert [sha256_file(store.path / name) for name in files] == [sha256_file(straight.path / name) for name in files]


def test_a_finished_store_is_of_one_format(tmp_path: Path, backbone: Backbone, images: Callable) -> None:
    dataset = images([(16, 16)])
    export(backbone, dataset, tmp_path / "store", [1], transform=NATIVE, file_format="safetensors")
    export(backbone, dataset, tmp_path / "store", [1], transform=NATIVE, file_format="safetensors")
    with pytest.raises(OutputInUse, match="something other"):
        export(backbone, dataset, tmp_path / "store", [1], transform=NATIVE)


@pytest.mark.parametrize("file_format", ["safetensors", "hdf5"])
@pytest.mark.parametrize("damage", [lambda b: b[:100], lambda b: b[:-5], lambda b: b"\xff" * 8 + b[8:], lambda b: b""])
def test_damaged_files_are_one_line(
    tmp_path: Path, backbone: Backbone, images: Callable, file_format: Any, damage: Callable
) -> None:
    if file_format == "hdf5":
        pytest.importorskip("h5py")
    store = export(backbone, images([(16, 16)]), tmp_path / "s", [1], transform=NATIVE, file_format=file_format)
    (path,) = (path for path in store.path.iterdir() if path.suffix in {".safetensors", ".h5"})
    path.write_bytes(damage(path.read_bytes()))
    assert store.verify() != []
    with pytest.raises(DataError, match=path.name) as caught:
        FeatureStore.open(store.path).tokens(1)
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(DataError, match="missing"):
        FeatureStore.open(store.path)


@pytest.mark.parametrize(
    "entry",
    [
        {"data_offsets": [-64, 0]}, {"data_offsets": [1 << 62, 1 << 63]}, {"data_offsets": []}, {"data_offsets": [0.5]},
        {"dtype": "F64"}, {"shape": [1, 2]},
    ],
)  # fmt: skip
def test_headers_that_lie(tmp_path: Path, backbone: Backbone, images: Callable, entry: dict) -> None:
    store = export(
        backbone, images([(16, 16)]), tmp_path / "s", [1], transform=NATIVE, file_format="safetensors", cls=False
    )
    path = store.path / "block1.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["tokens_block1"] |= entry
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(DataError, match=r"block1\.safetensors"):
        FeatureStore.open(store.path)


@pytest.mark.parametrize("kind", ["Fortran order", "long header", "open bracket"])
def test_npy_files_of_others(tmp_path: Path, backbone: Backbone, images: Callable, kind: str) -> None:
    store = export(backbone, images([(16, 32)]), tmp_path / "s", [1], transform=NATIVE, dtype="float32", cls=False)
    path = store.path / "tokens_block1.npy"
    rows = np.asfortranarray(store.tokens(1))
    np.save(path, rows)  # of the shape and dtype that the manifest says
    if kind != "Fortran order":
        length = 199 if kind == "open bracket" else 40_000
        path.write_bytes(b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + b"(" * length + rows.tobytes())
    with pytest.raises(DataError, match=r"tokens_block1\.npy: not a readable array: ") as caught:
        FeatureStore.open(store.path)
    assert "\n" not in str(caught.value)


def test_without_h5py(tmp_path: Path, backbone: Backbone, images: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"hdf5 needs the package h5py \(pip install 'dinoskip\[hdf5\]'\)"):
        export(backbone, images([(16, 16)]), tmp_path / "store", [1], transform=NATIVE, file_format="hdf5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images"]


def test_a_disk_that_is_too_small_is_refused_before_the_start(
    tmp_path: Path, images: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000))
    spec = "timm:vit_tiny_patch16_224,pretrained=false,depth=1"
    command = ["features", "export", "--backbone", spec, "--data", str(images([(32, 32)]).root)]
    assert main([*command, "--out", str(tmp_path / "store"), "--size", "32", "--dtype", "float32"]) == 0  # 3,840 bytes
    capsys.readouterr()
    assert main([*command, "--out", str(tmp_path / "larger"), "--size", "64", "--dtype", "float32"]) == 6
    said = capsys.readouterr().err.splitlines()
    assert "13 kB (10 kB free)" in said[0]
    assert "(10 kB free)" in said[0]
    assert "the features need 13 kB, 10 kB are free on this disk" in said[1]
    assert len(said) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "store"]
