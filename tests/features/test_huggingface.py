"""A feature store as a data set folder of Hugging Face."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from dinoskip.cli import main
from dinoskip.features import FeatureStore
from tests.helpers.tiny import make_images

SPEC = "timm:vit_tiny_patch16_224,pretrained=false,depth=2"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("features")
    make_images(place / "photos", 3)
    command = ["features", "export", "--backbone", SPEC, "--data", str(place / "photos"), "--out", str(place / "store")]
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


def test_datasets_opens_the_folder(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    datasets = pytest.importorskip("datasets")
    assert main(["features", "convert", str(store), str(tmp_path / "rows"), "-q"]) == 0
    rows = datasets.load_dataset(str(tmp_path / "rows"), split="train", cache_dir=str(tmp_path / "cache"))
    assert (len(rows), np.array(rows.with_format("numpy")[0]["block1_tokens"]).shape) == (3, (4, 192))


def test_without_the_package(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["features", "convert", str(store), str(tmp_path / "rows"), "-q"]) == 2
    assert "needs the package pyarrow" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()


def test_a_folder_that_is_something_else_stays(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "mine.txt").write_text("mine")
    assert main(["features", "convert", str(store), str(tmp_path / "rows"), "-q"]) == 2
    assert (tmp_path / "rows" / "mine.txt").read_text() == "mine"
