"""Copies of a feature store for other programs, read by their own libraries."""

from __future__ import annotations

import json
import multiprocessing
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from dinoskip import __version__, features
from dinoskip.cli import main
from dinoskip.data.photographs import photographs_below
from dinoskip.errors import ConfigError
from dinoskip.features import FeatureStore, Transform, as_float, export
from dinoskip.features.convert import SAVE
from dinoskip.init import ModelConfig, build_model
from dinoskip.io.files import sha256_file
from dinoskip.models import Backbone, load_backbone, save_weights
from tests.helpers.tiny import make_images

TINY = ModelConfig(name="vit_tiny_patch16", depth=1, img_size=32)
SPEC = "timm:vit_tiny_patch16_224,pretrained=false,depth=2"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("features")
    make_images(place / "photos", 3)
    command = ["features", "export", SPEC, "--data", str(place / "photos"), "--out", str(place / "store")]
    assert main([*command, "--size", "32", "--device", "cpu", "-q"]) == 0
    return place / "store"


def test_rows_have_the_features_of_the_store(store: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main(["features", "convert", str(store), str(tmp_path / "rows"), "--to", "huggingface", "-q"]) == 0
    [file] = sorted((tmp_path / "rows" / "data").iterdir())
    assert file.name == "train-00000-of-00001.parquet"
    rows, opened = parquet.read_table(file).to_pylist(), FeatureStore.open(store)
    assert [row["image"] for row in rows] == list(opened.ids)
    for index, row in enumerate(rows):
        assert (row["height"], row["width"]) == opened.grid(index)
        for block in opened.blocks:
            np.testing.assert_array_equal(np.array(row[f"block{block}_tokens"]), opened.tokens(block, index))
            np.testing.assert_array_equal(np.array(row[f"block{block}_cls"]), opened.cls(block)[index])
    assert "load_dataset" in (tmp_path / "rows" / "README.md").read_text()
    assert main(["features", "convert", str(store), str(tmp_path / "rows"), "-q"]) == 0, "again, in its place"


def test_faiss_reads_the_indexes(store: Path, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    assert main(["features", "convert", str(store), str(tmp_path / "indexes"), "--to", "faiss", "-q"]) == 0
    opened = features.open(store)
    rows = json.loads((tmp_path / "indexes" / "rows.json").read_text())
    assert rows["ids"] == list(opened.ids)
    assert rows["offsets"] == [0, 4, 8, 12]
    for block in opened.blocks:
        tokens = faiss.read_index(str(tmp_path / "indexes" / f"tokens_block{block}.faiss"))
        expected = as_float(opened.tokens(block)).reshape(-1, opened.dim)
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(tokens.reconstruct_n(0, tokens.ntotal), expected, rtol=1e-6)
        cosines, nearest = tokens.search(expected[5:6], 1)
        assert (int(nearest[0, 0]), float(cosines[0, 0])) == (5, pytest.approx(1, abs=1e-5))
        assert rows["offsets"][1] <= 5 < rows["offsets"][2], "a patch of the second image"
        cls = faiss.read_index(str(tmp_path / "indexes" / f"cls_block{block}.faiss"))
        assert (cls.ntotal, cls.d) == (3, 192)


def test_faiss_indexes_of_several_facets_and_sizes(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    make_images(tmp_path / "photos", 2)
    export(
        load_backbone(SPEC), photographs_below(tmp_path / "photos"), tmp_path / "store", [2], facet=["out", "key"],
        norm="none", transform=NATIVE, dtype="bfloat16",
    )  # fmt: skip
    stores = [features.open(tmp_path / "store", facet=facet) for facet in ("out", "key")]
    SAVE["faiss"](stores, tmp_path / "indexes")
    rows = json.loads((tmp_path / "indexes" / "rows.json").read_text())
    assert rows["facet"] == ["out", "key"]
    for facet in ("out", "key"):
        index = faiss.read_index(str(tmp_path / "indexes" / f"tokens_{facet}_block2.faiss"))
        assert index.ntotal == rows["offsets"][-1]


def test_card_and_copies_say_of_what_they_are(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    said = FeatureStore.open(store).provenance
    assert said["network"]["spec"] == SPEC
    assert said["images"] == {
        "kind": "folder", "root": str(store.parent / "photos"), "number": 3,
        "fingerprint": said["images"]["fingerprint"],
    }  # fmt: skip
    assert len(said["images"]["fingerprint"]) == 64
    assert said["input"]["transform"] == {"mode": "square", "size": 32}
    assert said["input"]["mean"] == FeatureStore.open(store).manifest["mean"]
    assert said["version"] == __version__
    assert "torch" in said["kernels"]
    assert said["date"].endswith("Z")
    for kind in ("huggingface", "safetensors"):
        assert main(["features", "convert", str(store), str(tmp_path / kind), "--to", kind, "-q"]) == 0
    card = (tmp_path / "huggingface" / "README.md").read_text()
    for fact in (SPEC, said["images"]["fingerprint"], said["date"], said["kernels"]):
        assert fact in card
    assert str(store.parent) not in card, "folders of this machine"
    with safe_open(tmp_path / "safetensors" / "block1.safetensors", "np") as file:
        assert json.loads(file.metadata()["manifest"])["provenance"] == said


def test_a_weights_file_is_named_without_its_folders(tmp_path: Path) -> None:
    make_images(tmp_path / "photos", 2)
    weights = tmp_path / "mine.safetensors"
    save_weights(weights, build_model(TINY, 0).state_dict(), TINY, {})
    opened = export(
        load_backbone(f"weights:{weights}"), photographs_below(tmp_path / "photos"), tmp_path / "store", [1],
        transform=Transform(size=32),
    )  # fmt: skip
    network = opened.provenance["network"]
    assert (network["file"], network["file_sha256"]) == ("mine.safetensors", sha256_file(weights))
    pytest.importorskip("pyarrow")
    SAVE["huggingface"]([opened], tmp_path / "rows")
    card = (tmp_path / "rows" / "README.md").read_text()
    assert "`weights:mine.safetensors`" in card
    assert str(tmp_path) not in card


def test_a_store_of_an_earlier_version_says_less(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shutil.copytree(store, tmp_path / "store")
    (tmp_path / "store" / "provenance.json").unlink()
    opened = FeatureStore.open(tmp_path / "store")
    assert (opened.provenance, opened.verify()) == ({}, [])
    SAVE["huggingface"]([opened], tmp_path / "rows")
    assert opened.weights_hash in (tmp_path / "rows" / "README.md").read_text()


def test_datasets_opens_the_folder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    datasets = pytest.importorskip("datasets")
    assert main(["features", "convert", str(store), str(tmp_path / "rows"), "-q"]) == 0
    rows = datasets.load_dataset(str(tmp_path / "rows"), split="train", cache_dir=str(tmp_path / "cache"))
    assert (len(rows), np.array(rows.with_format("numpy")[0]["block1_tokens"]).shape) == (3, (4, 192))


@pytest.mark.parametrize(("kind", "package"), [("huggingface", "pyarrow"), ("hdf5", "h5py")])
def test_without_the_package(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    kind: str, package: str,
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["features", "convert", str(store), str(tmp_path / "rows"), "--to", kind, "-q"]) == 2
    assert f"needs the package {package}" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()


def test_a_folder_that_is_something_else_stays(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "mine.txt").write_text("mine")
    assert main(["features", "convert", str(store), str(tmp_path / "rows"), "-q"]) == 2
    assert (tmp_path / "rows" / "mine.txt").read_text() == "mine"


NATIVE = Transform(mode="native")


def arrays_of(copy: Path, store: FeatureStore) -> dict[str, np.ndarray]:
    """Return the arrays, float32, that a user without dinoskip reads of a copy."""
    found: dict[str, np.ndarray] = {}
    if copy.name == "safetensors":
        for path in copy.glob("*.safetensors"):
            with safe_open(path, "pt") as opened:
                assert json.loads(opened.metadata()["manifest"]) == {**store.manifest, "provenance": store.provenance}
                for name in opened.keys():  # noqa: SIM118 - not a dictionary
                    tensor = opened.get_tensor(name)
                    expected = torch.int64 if name == "offsets" else getattr(torch, store.dtype)
                    assert tensor.dtype == expected
                    found[name] = tensor.numpy() if name == "offsets" else tensor.float().numpy()
        return found
    h5py = pytest.importorskip("h5py")
    with h5py.File(copy / "features.h5") as opened:
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


@pytest.mark.parametrize("kind", ["safetensors", "hdf5"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("transform", [NATIVE, Transform(size=16)], ids=["native", "square"])
def test_a_copy_holds_the_same(
    tmp_path: Path, backbone: Backbone, images: Callable, kind: str, dtype: Any, transform: Transform
) -> None:
    dataset = images([(24, 16), (16, 24), (24, 16), (9, 8)])
    store = export(backbone, dataset, tmp_path / "npy", "all", "key", "none", dtype, transform=transform)
    expected = {path.stem: as_float(np.load(path)) for path in store.path.glob("*.npy")}
    SAVE[kind]([store], tmp_path / kind)
    found = arrays_of(tmp_path / kind, store)
    if store.offsets is not None:
        np.testing.assert_array_equal(found.pop("offsets"), store.offsets)
    assert found.keys() == expected.keys() == {"tokens_block1", "tokens_block2", "cls_block1", "cls_block2"}
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    with pytest.raises(ConfigError, match="is there already"):
        SAVE[kind]([store], tmp_path / kind)


@pytest.mark.parametrize("kind", ["safetensors", "hdf5"])
@pytest.mark.parametrize("facet", [None, "mlp"])
def test_every_facet_is_copied_or_the_one_that_is_named(
    tmp_path: Path, backbone: Backbone, images: Callable, kind: str, facet: str | None
) -> None:
    dataset = images([(24, 16), (16, 24)])
    store = export(backbone, dataset, tmp_path / "npy", "all", ("key", "mlp"), ("none", "none"), transform=NATIVE)
    command = ["features", "convert", str(store.path), str(tmp_path / kind), "--to", kind, "-q"]
    assert main([*command, *(["--facet", facet] if facet else [])]) == 0
    expected = {path.stem: np.load(path) for path in store.path.glob("*.npy")}
    if facet:
        expected = {name.replace(f"_{facet}", ""): array for name, array in expected.items() if facet in name}
    if kind == "hdf5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(tmp_path / kind / "features.h5") as opened:
            found = {name: opened[name][()] for name in opened if name.startswith(("tokens", "cls"))}
            facets = opened.attrs["facet"] if facet else list(opened.attrs["facet"])
    else:
        found = {}
        for path in (tmp_path / kind).glob("*.safetensors"):
            with safe_open(path, "np") as opened:
                found |= {name: opened.get_tensor(name) for name in opened.keys() if name != "offsets"}  # noqa: SIM118
                facets = json.loads(opened.metadata()["manifest"])["facet"]
    assert facets == (facet or ["key", "mlp"])
    assert len(expected) == (4 if facet else 8)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_a_data_set_has_a_column_of_every_facet(tmp_path: Path, backbone: Backbone, images: Callable) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    dataset = images([(24, 16), (16, 24)])
    store = export(backbone, dataset, tmp_path / "npy", [2], ("key", "mlp"), ("none", "none"), transform=NATIVE)
    assert main(["features", "convert", str(store.path), str(tmp_path / "rows"), "-q"]) == 0
    [file] = (tmp_path / "rows" / "data").iterdir()
    rows = parquet.read_table(file).to_pylist()
    for facet in ("key", "mlp"):
        opened = FeatureStore.open(store.path, facet=facet)
        for index, row in enumerate(rows):
            np.testing.assert_array_equal(np.array(row[f"block2_{facet}_tokens"]), opened.tokens(2, index))


def _convert_with_a_limit(store: str, out: str, nbytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    sys.exit(main(["features", "convert", store, out, "--to", "hdf5", "-q"]))


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 16, 1 << 20])
def test_hdf5_on_a_full_disk_is_one_line(store: Path, tmp_path: Path, nbytes: int) -> None:
    """A traceback on a full disk, SIGSEGV under ulimit -f: HDF5 fails once more when it closes the file."""
    pytest.importorskip("h5py")
    process = multiprocessing.get_context("forkserver").Process(
        target=_convert_with_a_limit, args=(str(store), str(tmp_path / "rows"), nbytes)
    )
    process.start()
    process.join(100)
    assert process.exitcode == 6
    assert list(tmp_path.iterdir()) == []
