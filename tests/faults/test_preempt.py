"""FAULTS 15 and 17: a signal to one rank, or to torchrun's agent while a checkpoint takes long, stops all, saved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dinoskip.io.files import read_json, verify_manifest
from dinoskip.runtime.console import read_metrics
from dinoskip.settings.specs import list_checkpoints
from dinoskip.training import checkpoint
from tests.helpers import slow_pretrain
from tests.helpers.launch import DEADLINE, Child, children, rank_environments
from tests.helpers.tiny import count_rows, tiny_job

JOB = tiny_job(skip=False, checkpoint_every_steps=None)


def slow_steps() -> None:
    """Steps of 0.15 s and more, so that the step at which a signal came is known."""
    from dinoskip.training import objective

    set_rates = objective.set_rates

    def slow(*args: object) -> None:
        time.sleep(0.15)
        set_rates(*args)  # type: ignore[arg-type]

    objective.set_rates = slow


@pytest.mark.parametrize(
    ("number", "told"),
    [
        pytest.param(signal.SIGUSR2, [1], marks=pytest.mark.slow),
        (signal.SIGTERM, [1]),
        pytest.param(signal.SIGTERM, [0, 1], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_preempt_one_rank(number: signal.Signals, told: list[int], images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    pair = [Child(JOB, images, run_dir, env=env, prepare=slow_steps) for env in rank_environments(2)]
    with children(*pair):
        pair[0].wait_for(lambda: count_rows(run_dir) >= 3)
        done = count_rows(run_dir)
        for rank in told:
            pair[rank].signal(number)
        logs = [child.ends(75, "stopped after step") for child in pair]
    status = read_json(run_dir / "status.json")
    assert status["state"] == "preempted"
    # Step done + 1 was under way; at its end, or a step later, all ranks know.
    assert done < status["step"] <= done + 2
    assert all(f"stopped after step {status['step']};" in log for log in logs), "at the same step"
    ((step, path),) = list_checkpoints(run_dir).items()
    assert step == status["step"]
    assert verify_manifest(path) == []
    assert [row["step"] for row in read_metrics(run_dir / "metrics.jsonl")] == list(range(1, step + 1))


def slow_second_save() -> None:
    """Every checkpoint but the first takes a minute."""
    write, calls = checkpoint.write_manifest, []
    slow_steps()

    def slow(*args: object) -> None:
        calls.append(1)
        if len(calls) > 1:
            time.sleep(60)
        write(*args)  # type: ignore[arg-type]

    checkpoint.write_manifest = slow  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("number", "size"),
    [
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.slow),
        (signal.SIGUSR2, 1),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 2, marks=pytest.mark.slow),
    ],
)
def test_a_second_signal_in_a_slow_save_stops_within_five_seconds(
    number: signal.Signals, size: int, images: Path, tmp_path: Path
) -> None:
    """Rank 0 is in the save, rank 1 in a wait for it that no exception reaches."""
    run_dir = tmp_path / "run"
    job = tiny_job(skip=False, checkpoint_every_steps=3, epochs=50)
    environments = rank_environments(2) if size == 2 else [{}]
    started = [Child(job, images, run_dir, env=env, prepare=slow_second_save) for env in environments]
    with children(*started):
        started[0].wait_for(lambda: len(list_checkpoints(run_dir)) == 1)
        for child in started:
            child.signal(number)
        started[0].wait_for(lambda: any(run_dir.glob("checkpoints/.tmp-step-*")))
        time.sleep(1.5)  # a launcher and a terminal may both pass one request on
        began = time.monotonic()
        for child in started:
            child.signal(number)
        for child in started:
            child.ends(130 if number == signal.SIGINT else 75, "stopped at once; the last checkpoint stands")
        assert time.monotonic() - began < 5
    assert read_json(run_dir / "status.json")["state"] == ("interrupted" if number == signal.SIGINT else "preempted")
    assert [verify_manifest(path) for path in list_checkpoints(run_dir).values()] == [[]]
    assert not (run_dir / ".lock").exists()


@contextmanager
def torchrun(images: Path, run_dir: Path, save_seconds: float, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Two ranks under a real agent; afterwards nothing of it is left.

    They run a module, not a file: the folder of a file would come first where modules are looked for, and one beside
    it is named as one of Python's.
    """
    config = run_dir.with_name("job.json")
    config.write_text(json.dumps(tiny_job(skip=False, checkpoint_every_steps=None, epochs=200).model_dump(mode="json")))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options,
        "--module", slow_pretrain.__name__, "pretrain", str(config), "--data", str(images), "--out", str(run_dir),
        "--device", "cpu",
    ]  # fmt: skip
    env = os.environ | {
        "SLOW_SAVE": str(save_seconds), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    with run_dir.with_name("log").open("w") as log:
        agent = subprocess.Popen(command, env=env, stdout=log, stderr=log, text=True)
        try:
            end = time.monotonic() + DEADLINE
            while count_rows(run_dir) < 3:
                assert agent.poll() is None, run_dir.with_name("log").read_text()
                assert time.monotonic() < end
                time.sleep(0.05)
            yield agent
        finally:
            agent.terminate()
            try:
                agent.wait(90)
            except subprocess.TimeoutExpired:
                agent.kill()


def alive(run_dir: Path) -> bool:
    """Whether a process with this run directory on its command line is left."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(run_dir).encode() in words:
                return True
    return False


@pytest.mark.slow
def test_preempt_torchrun_grace(images: Path, tmp_path: Path) -> None:
    """A save longer than torchrun's 30 seconds is finished when the agent is told to wait longer (docs/cluster.md)."""
    run_dir = tmp_path / "run"
    with torchrun(images, run_dir, 36.0, "--shutdown-timeout", "100") as agent:
        agent.send_signal(signal.SIGTERM)
        code = agent.wait(110)
    log = (tmp_path / "log").read_text()
    assert code != 0, "the agent reports the signal, not the ranks' 75"
    status = read_json(run_dir / "status.json")
    assert status["state"] == "preempted", log
    ((step, path),) = list_checkpoints(run_dir).items()
    assert step == status["step"]
    assert verify_manifest(path) == []
    assert not alive(run_dir)


@pytest.mark.slow
def test_a_save_that_torchrun_cuts_off_leaves_no_half_checkpoint(images: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with torchrun(images, run_dir, 30.0, "--shutdown-timeout", "3") as agent:
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)
    assert list_checkpoints(run_dir) == {}
    assert read_json(run_dir / "status.json")["state"] == "running", "nobody could write how it ended"
    assert not alive(run_dir)
