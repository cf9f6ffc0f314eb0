"""Pretraining on a disk that is full, not ours to write, or under another umask."""

from __future__ import annotations

import os
import re
import shutil
import stat
from multiprocessing.util import Finalize
from pathlib import Path

import pytest

from dinoskip.io.files import read_json, verify_manifest
from dinoskip.runtime.console import read_metrics
from dinoskip.settings.specs import list_checkpoints
from tests.helpers.launch import Child, children, run
from tests.helpers.system import can_mount, obey_modes, small_disk
from tests.helpers.tiny import count_rows, tiny_job

FULL = r"step-\d{8}: no space left: a checkpoint takes (\d+) bytes, \d+ are free"


def test_ckpt_disk_full_leaves_the_earlier_checkpoint_and_says_so(images: Path, tmp_path: Path) -> None:
    job, run_dir = tiny_job(checkpoint_every_steps=2), tmp_path / "run"
    code, log = run(job, images, run_dir, failpoint="checkpoint.before_manifest:full@3")
    assert code == 6, log
    assert re.search(FULL, log), log
    assert [path.name for path in list_checkpoints(run_dir).values()] == ["step-00000004", "step-00000002"]
    assert all(verify_manifest(path) == [] for path in list_checkpoints(run_dir).values())
    assert not list(run_dir.rglob(".tmp-*"))
    assert [row["step"] for row in read_metrics(run_dir / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert read_json(run_dir / "status.json")["state"] == "failed"
    assert run(job, images, run_dir)[0] == 0


def test_ckpt_disk_full_by_quota_in_the_middle_of_a_file(images: Path, tmp_path: Path) -> None:
    code, log = run(tiny_job(), images, tmp_path / "run", limit=1_000_000)
    assert code == 6, log
    assert re.search(FULL, log), log
    assert list_checkpoints(tmp_path / "run") == {}
    assert not list((tmp_path / "run").rglob(".tmp-*"))
    assert read_json(tmp_path / "run" / "status.json")["state"] == "failed"


_DISK = "/mnt"  # where a child of root sees its own small disk; nobody else does
_REPORT = "DISK_REPORT"


def on_a_small_disk() -> None:
    """16 MB: one checkpoint of the tiny run fits, the second does not. What is left is copied out at the end."""
    small_disk(_DISK, 16 << 20)
    os.mkdir(f"{_DISK}/run")
    Finalize(None, shutil.copytree, (f"{_DISK}/run", os.environ[_REPORT]), exitpriority=1)


@pytest.mark.skipif(os.geteuid() != 0 or not can_mount(), reason="only root may mount, and not everywhere")
def test_ckpt_disk_full_on_a_small_disk(images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    child = Child(
        tiny_job(checkpoint_every_steps=2), images, run_dir, prepare=on_a_small_disk, writes=f"{_DISK}/run",
        env={_REPORT: str(run_dir / "left")},
    )  # fmt: skip
    with children(child):
        log = child.ends(6, "MiB free, two checkpoints need")
    found = re.search(FULL, log)
    assert found, log
    left = run_dir / "left"
    sizes = [sum(f.stat().st_size for f in path.iterdir()) for path in list_checkpoints(left).values()]
    assert sizes == [pytest.approx(int(found[1]), rel=0.05)]
    assert verify_manifest(left / "checkpoints" / "step-00000002") == []
    assert not list(left.rglob(".tmp-*"))
    assert [row["step"] for row in read_metrics(left / "metrics.jsonl")] == [1, 2, 3, 4]


def test_ckpt_unwritable_dir_fails_before_the_first_step(images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o555)
    code, log = run(tiny_job(), images, run_dir, prepare=obey_modes)
    assert code == 2
    assert "cannot write here" in log
    assert list(run_dir.iterdir()) == []


def test_ckpt_unwritable_dir_in_the_middle_of_a_run(images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    child = Child(tiny_job(epochs=500, checkpoint_every_steps=10), images, run_dir, prepare=obey_modes)
    with children(child):
        child.wait_for(lambda: count_rows(run_dir) >= 1 and bool(list_checkpoints(run_dir)))
        (run_dir / "checkpoints").chmod(0o555)
        child.ends(2, "checkpoints/step-", "cannot write here")
    (run_dir / "checkpoints").chmod(0o755)
    assert read_json(run_dir / "status.json")["state"] == "failed"
    assert list_checkpoints(run_dir)
    assert all(verify_manifest(path) == [] for path in list_checkpoints(run_dir).values())


@pytest.mark.parametrize(("mask", "group"), [(0o022, False), (0o027, False), (0o002, True)])
def test_ckpt_umask_gives_the_modes_and_setgid_is_inherited(
    mask: int, group: bool, images: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    run_dir.chmod((0o2777 if group else 0o777) & ~mask)
    job = tiny_job(epochs=1, warmup_epochs=0, checkpoint_every_steps=None)
    assert run(job, images, run_dir, mask=mask)[0] == 0
    for path in [run_dir, *run_dir.rglob("*")]:
        expected = ((0o2777 if group else 0o777) if path.is_dir() else 0o666) & ~mask
        assert stat.S_IMODE(path.stat().st_mode) == expected, path
