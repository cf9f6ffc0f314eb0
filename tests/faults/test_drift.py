"""A run that is gone on with under another configuration or other images: refused key by key, or allowed by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dinoskip.cli import main
from dinoskip.data import ImageFolder
from dinoskip.errors import ConfigError, WeightsError
from dinoskip.io.files import read_json
from dinoskip.training import PretrainJob, pretrain
from tests.helpers.tiny import make_images, tiny_job

JOB = tiny_job(epochs=1, warmup_epochs=0, checkpoint_every_steps=2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``images`` and the run ``run`` over them."""
    top = tmp_path_factory.mktemp("finished")
    pretrain(JOB, ImageFolder.open(make_images(top / "images")), top / "run", device="cpu")
    return top


@pytest.fixture
def top(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "top")


def resume(top: Path, change: dict[str, Any], allow: tuple[str, ...] = ()) -> None:
    tree = JOB.model_dump(mode="json")
    for key, value in change.items():
        *sections, last = key.split(".")
        branch = tree
        for section in sections:
            branch = branch[section]
        branch[last] = value
    images = ImageFolder.open(top / "images")
    pretrain(PretrainJob.model_validate(tree), images, top / "run", device="cpu", allow=allow)


def recorded(top: Path) -> list[dict[str, Any]]:
    path = top / "run" / "changes.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"seed": 2}, "seed: 1 → 2"),
        ({"optimizer.lr": 0.5}, "optimizer.lr: 0.02 → 0.5"),
        ({"model.depth": 3}, "model.depth: 2 → 3"),
        ({"model.skip": False}, "model.skip: True → False"),
        ({"pretrain.crops.num_local": 1}, "pretrain.crops.num_local: 2 → 1"),
        ({"pretrain.epochs": 2}, "pretrain.epochs: 1 → 2"),
    ],
)
def test_resume_config_drift_is_refused(change: dict[str, Any], line: str, top: Path) -> None:
    before = (top / "run" / "config.json").read_bytes()
    with pytest.raises(ConfigError) as caught:
        resume(top, change)
    assert caught.value.problems[0] == f"{top / 'run' / 'config.json'}: {line}"
    assert f"--allow-change {next(iter(change))}" in caught.value.problems[1]
    assert (top / "run" / "config.json").read_bytes() == before
    assert recorded(top) == []


@pytest.mark.parametrize("what", ["content", "name", "number"])
def test_resume_config_drift_of_the_images(what: str, top: Path) -> None:
    first = top / "images" / "image 00.png"
    if what == "content":
        first.write_bytes((top / "images" / "image 01.png").read_bytes())
    elif what == "name":
        first.rename(first.with_name("renamed.png"))
    else:
        first.unlink()
    with pytest.raises(ConfigError) as caught:
        resume(top, {})
    found = "\n".join(caught.value.problems)
    assert "data.fingerprint: " in found
    assert ("data.images: 48 → 47" in found) == (what == "number")
    resume(top, {}, allow=("data",))
    assert {row["key"] for row in recorded(top)} - {"data.images"} == {"data.fingerprint"}
    resume(top, {})


def test_resume_config_drift_that_nothing_can_allow(top: Path) -> None:
    """Another optimizer's moments would be taken for this one's."""
    before = (top / "run" / "config.json").read_bytes()
    with pytest.raises(ConfigError, match=r"optimizer.name: adamw → soap: an optimizer cannot go on from another's"):
        resume(top, {"optimizer": {"name": "soap"}}, allow=("optimizer",))
    assert (top / "run" / "config.json").read_bytes() == before


def test_resume_config_drift_that_is_free_is_recorded(top: Path) -> None:
    resume(top, {"pretrain.log_every": 3, "pretrain.accumulate": 2})
    assert recorded(top) == [
        {"step": 6, "key": "pretrain.accumulate", "old": 1, "new": 2},
        {"step": 6, "key": "pretrain.log_every", "old": 1, "new": 3},
    ]
    assert read_json(top / "run" / "config.json")["pretrain"]["log_every"] == 3


def test_resume_config_drift_that_is_allowed_is_recorded(top: Path) -> None:
    resume(top, {"pretrain.epochs": 2, "optimizer.lr": 0.01}, allow=("pretrain.epochs", "optimizer"))
    assert recorded(top) == [
        {"step": 6, "key": "optimizer.lr", "old": 0.02, "new": 0.01},
        {"step": 6, "key": "pretrain.epochs", "old": 1, "new": 2},
    ]
    assert (top / "run" / "checkpoints" / "step-00000012").is_dir()
    with pytest.raises(ConfigError, match=r"optimizer.lr: 0.01 → 0.02"):
        resume(top, {})


def test_a_checkpoint_of_a_run_with_another_seed_is_not_continued(top: Path) -> None:
    """Whole, of the same shapes, and its manifest is right: nothing else tells it from the run's own."""
    job = tiny_job(epochs=1, warmup_epochs=0, checkpoint_every_steps=2, seed=9)
    pretrain(job, ImageFolder.open(top / "images"), top / "other", device="cpu")
    shutil.rmtree(top / "run" / "checkpoints")
    shutil.copytree(top / "other" / "checkpoints", top / "run" / "checkpoints")
    with pytest.raises(WeightsError, match=r"a checkpoint of another run: its settings or its seed \(9\)"):
        resume(top, {})


def test_resume_config_drift_at_the_command_line(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (top / "job.json").write_text(json.dumps(JOB.model_dump(mode="json")))  # JSON is YAML
    run = ["pretrain", str(top / "job.json"), "--data", str(top / "images"), "--out", str(top / "run"), "-q"]
    assert main(run) == 0
    assert main([*run, "seed=3"]) == 2
    assert "seed: 1 → 3" in capsys.readouterr().err
    assert main([*run, "seed=3", "--allow-change", "sed"]) == 2
    assert "error: allow-change sed: there is no such setting (did you mean seed?)" in capsys.readouterr().err
    assert main([*run, "seed=3", "--allow-change", "seed"]) == 0
    assert recorded(top) == [{"step": 6, "key": "seed", "old": 1, "new": 3}]
    assert main([*run, "seed=3"]) == 0
