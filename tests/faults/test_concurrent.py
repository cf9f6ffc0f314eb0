"""Two processes at the same place at the same time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from dinoskip.io.files import read_json, verify_manifest, write_json
from dinoskip.settings.specs import list_checkpoints
from tests.helpers.launch import Child, children, run
from tests.helpers.lockfiles import lock_of
from tests.helpers.tiny import count_rows, tiny_job

LONG = tiny_job(epochs=500)


def test_concurrent_same_dir_one_of_two_proceeds(images: Path, tmp_path: Path) -> None:
    pair = [Child(LONG, images, tmp_path / "run", env={"SLURM_JOB_ID": f"7{n}"}) for n in range(2)]
    with children(*pair):
        pair[0].wait_for(lambda: count_rows(tmp_path / "run") > 0 and not all(c.process.is_alive() for c in pair))
        loser, winner = sorted(pair, key=lambda child: child.process.is_alive())
        job = f"7{pair.index(winner)}"
        loser.ends(5, f"in use by process {winner.process.pid} on {socket.gethostname()}, job {job}")
        assert winner.process.is_alive()
        winner.signal(signal.SIGTERM)
        winner.ends(75)


def test_concurrent_same_dir_a_dead_run_s_lock_is_taken_over(images: Path, tmp_path: Path) -> None:
    first = Child(LONG, images, tmp_path / "run")
    with children(first):
        first.wait_for(lambda: bool(list_checkpoints(tmp_path / "run")))
        first.signal(signal.SIGKILL)
        first.ends(-signal.SIGKILL)
    assert read_json(tmp_path / "run" / ".lock")["pid"] == first.process.pid
    code, log = run(tiny_job(epochs=500, warmup_epochs=2), images, tmp_path / "run")
    assert code == 2, "the lock is taken over, the run's configuration still counts"
    assert "pretrain.warmup_epochs: 1.0 → 2.0" in log
    assert not (tmp_path / "run" / ".lock").exists()


@pytest.mark.parametrize("age", [0.0, 3600.0])
def test_concurrent_same_dir_another_host_is_believed_while_it_beats(age: float, images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    write_json(run_dir / ".lock", {"host": "elsewhere", "pid": 1, "started": "1", "job": "77"})
    os.utime(run_dir / ".lock", (time.time() - age,) * 2)
    code, log = run(tiny_job(epochs=1, warmup_epochs=0), images, run_dir)
    assert code == (0 if age else 5), log
    assert ("in use by process 1 on elsewhere, job 77" in log) == (not age)


def export_features(images: str, out: str, gate: Any, slow: bool, results: Any) -> None:
    """Export and report the key; a slow one waits before it publishes, until the other has met its lock."""
    import logging

    from dinoskip.data import ImageFolder
    from dinoskip.features import Transform, export, writer
    from dinoskip.models import load_backbone

    if slow:
        publish = writer.StoreWriter.publish
        writer.StoreWriter.publish = lambda *args: (gate.wait(60), publish(*args))[1]  # type: ignore[method-assign]
    else:
        seen = logging.Handler()
        seen.emit = lambda record: gate.set() if "waiting for the same export" in record.getMessage() else None  # type: ignore[method-assign]
        logging.getLogger("dinoskip").addHandler(seen)
        logging.getLogger("dinoskip").setLevel(logging.INFO)
    backbone = load_backbone("timm:vit_tiny_patch16_224,pretrained=false,depth=2")
    store = export(backbone, ImageFolder.open(images), out, [1, 2], transform=Transform(size=32))
    results.put((slow, gate.is_set(), store.key, store.verify()))


def test_concurrent_same_dir_two_exports_make_one_store(images: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    gate, results, out = context.Event(), context.Queue(), tmp_path / "store"
    work = tmp_path / ".partial-store"
    work.mkdir()
    (work / ".lock").write_text(lock_of(socket.gethostname()))  # of a dead process
    made = []
    for slow in (True, False):
        made.append(context.Process(target=export_features, args=(str(images), str(out), gate, slow, results)))
        made[-1].start()
        deadline = time.monotonic() + 60
        while slow and not (work / "state.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    try:
        found = [results.get(timeout=100) for _ in made]
    finally:
        for process in made:
            process.kill() if process.is_alive() and process.exitcode is None and not gate.is_set() else None
            process.join(30)
    assert [process.exitcode for process in made] == [0, 0]
    assert all(waited and problems == [] for _, waited, _, problems in found)
    assert found[0][2] == found[1][2]
    assert verify_manifest(out) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
