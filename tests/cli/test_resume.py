"""A run goes on by its folder alone: its own command, in the folder where that was given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.cli.resume import noted
from dinoskip.io.files import read_json, write_json, write_text
from tests.helpers.tiny import make_images

TRAINING = """
seed: 1
model: {name: vit_tiny_patch16, depth: 1, img_size: 32}
pretrain: {epochs: 1, warmup_epochs: 0, batch_size: 4, out_dim: 32, hidden_dim: 16, bottleneck_dim: 8,
           warmup_teacher_temp_epochs: 0, crops: {global_size: 32, local_size: 16, num_local: 1}}
"""


def test_a_training_goes_on_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path / "photos", 8)
    write_text(tmp_path / "one.yaml", TRAINING)
    words = ["pretrain", "one.yaml", "--data", "photos", "--out", "runs/one", "--device", "cpu"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert noted(tmp_path / "runs/one") == (tmp_path, words)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["resume", str(tmp_path / "runs/one")]) == 0
    assert capsys.readouterr().out == said, "it was done"
    assert read_json(tmp_path / "runs/one/env.json")["command"] == words


def test_a_study_goes_on_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its weights are not there: it says so in the same words."""
    monkeypatch.chdir(tmp_path)
    scenes = {"kind": "scenes", "images": 4, "size": 64}
    text = {"name": "tiny", "data": {"scenes": scenes}, "gallery": {"dataset": "scenes", "first": 1}}
    write_text(
        tmp_path / "study.yaml",
        json.dumps(
            text | {"variants": {"model": [{"backbone": "timm:vit_tiny_patch16_224,depth=1,pretrained=false"}]}}
        ),
    )
    assert main(["run", "study.yaml", "--only", "data"]) == 0
    capsys.readouterr()
    monkeypatch.chdir(tmp_path.parent)
    assert main(["resume", str(tmp_path / "runs/tiny")]) == 0


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (None, 2), ({"command": ["gc", "x"], "folder": "/"}, 3), ({"command": "run", "folder": "/"}, 3),
        ({"command": ["run", "x"], "folder": "/no such folder"}, 2), ([], 3),
    ],
)  # fmt: skip
def test_a_folder_that_names_no_command_of_a_run_is_refused(tmp_path: Path, given: object, code: int) -> None:
    if given is not None:
        write_json(tmp_path / "command.json", given)
    assert main(["resume", str(tmp_path)]) == code
    assert main(["resume", str(tmp_path / "none")]) == 2
