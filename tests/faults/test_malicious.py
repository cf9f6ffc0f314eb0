"""Files made to do harm: refused before anything runs, with the place named, nothing written, no traceback."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dinoskip.cli import main

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2"


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.sentinel),)


@pytest.fixture
def sentinel(tmp_path: Path) -> Path:
    return tmp_path / "sentinel"


def refused(capsys: pytest.CaptureFixture[str], code: int, member: str, *arguments: object) -> None:
    capsys.readouterr()
    assert main([*map(str, arguments), "-q"]) == code
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert errors
    assert "Traceback" not in "".join(lines)
    assert member in errors[0]


@pytest.mark.parametrize("spec", ["dino:{}/evil.pth", "weights:{}/evil.pth"])
def test_malicious_inputs_pickled_weights(
    spec: str, sentinel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"teacher": Evil(sentinel)}, tmp_path / "evil.pth")
    refused(capsys, 3, "evil.pth", "models", "show", spec.format(tmp_path))
    assert not sentinel.exists()


def test_malicious_inputs_pickled_metadata_of_a_sharded_checkpoint(
    sentinel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run" / "checkpoints" / "step-00000001"
    folder.mkdir(parents=True)
    (folder / ".metadata").write_bytes(pickle.dumps(Evil(sentinel)))
    refused(capsys, 3, "no checkpoint that verifies", "models", "show", f"run:{tmp_path / 'run'}")
    assert not sentinel.exists()


def test_malicious_inputs_object_array(sentinel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dinoskip.errors import DataError
    from dinoskip.features import FeatureStore

    (tmp_path / "images").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "images" / "a.png")
    store = tmp_path / "store"
    made = ["features", "export", VIT, "--data", tmp_path / "images", "--out", store, "-q"]
    assert main([str(part) for part in made]) == 0
    np.save(store / "tokens_block1.npy", np.array([Evil(sentinel)], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"tokens_block1.npy"):
        FeatureStore.open(store)
    assert not sentinel.exists()


def test_malicious_inputs_manifest_that_leaves_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "out").mkdir()
    files = {"../secret": {"bytes": 1, "sha256": "0" * 64}}
    manifest = {"format": 1, "hash": "0", "files": files, "info": {"node": "a"}}
    (tmp_path / "out" / "MANIFEST.json").write_text(json.dumps(manifest))
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "out"), "-q"]) == 3
    captured = capsys.readouterr()
    assert "refused: entry '../secret' points outside" in captured.err + captured.out


@pytest.mark.parametrize(
    ("text", "member"),
    [
        ("name: !!python/object/apply:os.mkdir [SENTINEL]\n", "study.yaml"),
        ("extends: /etc/passwd\nname: a\n", "passwd"),
        ("k0: &k0 [x]\n" + "".join(f"k{i}: &k{i} [{f'*k{i - 1}, ' * 9}]\n" for i in range(1, 10)), "aliases"),
        ("name: ../../elsewhere\ndata: {scenes: {kind: scenes}}\n", "name"),
    ],
    ids=["tag", "extends", "aliases", "name"],
)
def test_malicious_inputs_configuration(
    text: str, member: str, sentinel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.yaml").write_text(text.replace("SENTINEL", str(sentinel)))
    refused(capsys, 2, member, "plan", tmp_path / "study.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.yaml"]


@pytest.mark.parametrize("option", ["--only", "--from", "--until", "--variant"])
def test_malicious_inputs_selectors_with_path_parts(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = "name: a\ndata: {scenes: {kind: scenes}}\npretrain: {dataset: scenes, batch_size: 4}\n"
    (tmp_path / "study.yaml").write_text(study)
    refused(capsys, 2, "../../x", "run", tmp_path / "study.yaml", f"output={tmp_path}", option, "../../x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.yaml"]
