"""Missing parts of this machine for a study are reported at once, before anything is computed or written."""

from __future__ import annotations

import pickle
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.errors import DiskFull
from dinoskip.pipeline import preflight
from dinoskip.pipeline.estimate.costs import Cost
from dinoskip.pipeline.sections import StorageRules
from tests.helpers.study import TINY
from tests.helpers.tiny import make_images

NETWORK = "timm:vit_tiny_patch16_224,pretrained=false,depth=1"
Usage = namedtuple("Usage", "total used free")


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    assert main([*words, "--device", "cpu"]) == code
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


def test_files_and_packages_of_networks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(tmp_path / "photos", 3)
    common = ["--data", str(tmp_path / "photos"), "--out", str(tmp_path / "out")]
    line = refused(capsys, 3, "gallery", NETWORK, f"weights:{tmp_path}/none.safetensors", *common)
    assert f"{tmp_path}/none.safetensors: no such file" in line
    found = preflight.find_spec
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name == "timm" else found(name))
    assert "pip install timm" in refused(capsys, 2, "gallery", NETWORK, *common)
    assert not (tmp_path / "out").exists(), "nothing was computed"


def test_networks_are_opened_before_the_first_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_images(tmp_path / "photos", 3)
    (tmp_path / "page.pth").write_bytes(pickle.dumps(Path("x"), protocol=2))
    common = ["--data", str(tmp_path / "photos"), "--out", str(tmp_path / "out")]
    line = refused(capsys, 2, "gallery", "timm:vit_tinyy_patch16_224,depth=1", *common)
    assert "vit_tiny_patch16_224" in line, "the nearest name"
    line = refused(capsys, 3, "gallery", NETWORK, f"{tmp_path}/page.pth", *common)
    assert f"{tmp_path}/page.pth" in line
    assert not list((tmp_path / "out").glob("stages/*")), "no stage was begun"


def test_a_batch_of_more_images_than_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_images(tmp_path / "photos", 3)
    (tmp_path / "s.yaml").write_text(TINY)
    more = [f"output={tmp_path}", f"data.photos={{kind: images, root: {tmp_path}/photos}}"]
    line = refused(
        capsys, 2, "run", str(tmp_path / "s.yaml"), *more, "pretrain.dataset=photos", "pretrain.batch_size=4"
    )
    assert "pretrain.batch_size: 4 are more than the 3 images of photos" in line


def test_room_on_the_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(10, 9, 1))
    (tmp_path / "s.yaml").write_text(TINY)
    line = refused(capsys, 6, "run", str(tmp_path / "s.yaml"), f"output={tmp_path}")
    assert "--accept disk" in line
    costs = [Cost("features", "a", disk=6.0, node="features/a"), Cost("knn", "a", disk=1.0, node="knn/a")]
    given = (costs, {"features/a", "knn/a"}, {"features/a": ["knn/a"]}, StorageRules())
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(10, 3, 7))
    preflight.refuse_without_room(tmp_path, *given, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(10, 4, 6))
    preflight.refuse_without_room(tmp_path, *given, 1)
    with pytest.raises(DiskFull):
        preflight.refuse_without_room(tmp_path, *given, 0)
    preflight.refuse_without_room(tmp_path, costs, {"knn/a"}, {"features/a": ["knn/a"]}, StorageRules(), 0)


def test_the_nearest_folder(tmp_path: Path) -> None:
    assert preflight.nearest(tmp_path / "a" / "b") == tmp_path
    assert preflight.nearest(tmp_path) == tmp_path
