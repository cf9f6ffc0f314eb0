"""Pretraining on a disk that is full, not ours to write, or under another umask."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dinoskip.console import read_metrics
from dinoskip.files import read_json, verify_manifest
from dinoskip.models.export import list_checkpoints
from tests.helpers.launch import run
from tests.helpers.tiny import make_images, tiny_job


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("data") / "images")


def test_a_disk_that_fills_up_leaves_the_earlier_checkpoint_and_says_so(images: Path, tmp_path: Path) -> None:
    job, run_dir = tiny_job(checkpoint_every_steps=2), tmp_path / "run"
    code, log = run(job, images, run_dir, failpoint="checkpoint.before_manifest:full@3")
    assert code == 6, log
    assert "step-00000006: no space left" in log
    assert [path.name for path in list_checkpoints(run_dir).values()] == ["step-00000004", "step-00000002"]
    assert all(verify_manifest(path) == [] for path in list_checkpoints(run_dir).values())
    assert not list(run_dir.rglob(".tmp-*"))
    assert [row["step"] for row in read_metrics(run_dir / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert read_json(run_dir / "status.json")["state"] == "failed"
    assert run(job, images, run_dir)[0] == 0


def test_a_quota_hit_in_the_middle_of_a_tensor_file(images: Path, tmp_path: Path) -> None:
    code, log = run(tiny_job(), images, tmp_path / "run", limit=1_000_000)
    assert code == 6, log
    assert "no space left" in log
    assert list_checkpoints(tmp_path / "run") == {}
    assert not list((tmp_path / "run").rglob(".tmp-*"))
    assert read_json(tmp_path / "run" / "status.json")["state"] == "failed"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_fails_before_the_first_step(images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o555)
    code, log = run(tiny_job(), images, run_dir)
    assert code == 2
    assert "cannot write here" in log
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o002])
def test_files_have_the_mode_that_the_umask_gives(mask: int, images: Path, tmp_path: Path) -> None:
    job = tiny_job(epochs=1, warmup_epochs=0, checkpoint_every_steps=None)
    assert run(job, images, tmp_path / "run", mask=mask)[0] == 0
    for path in [tmp_path / "run", *(tmp_path / "run").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~mask, path
