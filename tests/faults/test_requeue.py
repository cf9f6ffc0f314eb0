"""FAULTS 18, requeue_bounded: a stopped job goes back into the queue only if it got on, and not for ever."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.io.files import read_json, write_json
from dinoskip.training.launch import (
    ClusterConfig,
    JobProgress,
    begin,
    decide,
    finish,
    folder_of,
    job_id,
    progress_of,
    script,
)
from tests.helpers.slurm import Slurm

COUNTS = st.integers(0, 9)
PROGRESS = st.builds(JobProgress, COUNTS, COUNTS, COUNTS)


class Job:
    """A job over time: a fake clock, a fake scontrol, and ranks that save a step and leave with a code."""

    def __init__(self, output: Path, limit: int) -> None:
        self.output, self.limit, self.now, self.calls = output, limit, 1e9, list[list[str]]()

    def session(self, code: int, step: int | None, seconds: float = 3600.0) -> tuple[bool, str]:
        begin(self.output, clock=lambda: self.now)
        self.now += seconds
        if step is not None:
            (self.output / "checkpoints" / f"step-{step:08d}").mkdir(parents=True, exist_ok=True)
        return finish(self.output, code, self.limit, run=self._scontrol, clock=lambda: self.now)

    def _scontrol(self, command: Sequence[str]) -> str:
        self.calls.append(list(command))
        return ""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    for name in os.environ:
        if name.startswith("SLURM_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "123")
    return Job(tmp_path / "run", limit=3)


def test_a_crash_at_step_7_is_not_requeued(job: Job) -> None:
    again, why = job.session(code=1, step=7)
    assert not again
    assert "failed with exit code 1" in why
    assert job.calls == []


@pytest.mark.parametrize("code", [2, 3, 4, 5, 6, 130, 137, 143])
def test_no_other_failure_is_requeued_either(code: int, job: Job) -> None:
    assert not job.session(code, step=7)[0]
    assert job.calls == []


def test_preemption_without_progress_stops_after_one(job: Job) -> None:
    assert job.session(75, step=40)[0]
    again, why = job.session(75, step=40)
    assert not again
    assert "stopped at step 40 without progress" in why
    assert job.calls == [["scontrol", "requeue", "123"]]


def test_a_job_preempted_before_it_saved_anything_stops(job: Job) -> None:
    assert not job.session(75, step=None)[0]
    assert job.calls == []


def test_progress_is_requeued_up_to_the_limit(job: Job) -> None:
    decisions = [job.session(75, step=10 * (i + 1)) for i in range(5)]
    assert [again for again, _ in decisions] == [True, True, True, False, False]
    assert "after 3 requeues, the limit" in decisions[3][1]
    assert job.calls == [["scontrol", "requeue", "123"]] * 3
    record = read_json(folder_of(job.output) / "requeue-123.json")
    assert [end["seconds"] for end in record["ended"]] == [3600.0] * 5
    assert [end["steps"] for end in record["ended"]] == [10, 20, 30, 40, 50]


def test_a_new_job_counts_anew_from_where_the_old_one_stopped(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.limit = 1
    assert job.session(75, step=10)[0]
    assert not job.session(75, step=20)[0]
    monkeypatch.setenv("SLURM_JOB_ID", "124")
    assert not job.session(75, step=20)[0], "no progress: step 20 was there before"
    assert job.session(75, step=21)[0]


def test_members_of_an_array_are_requeued_by_their_own_number(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "123")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    monkeypatch.setenv("SLURM_JOB_ID", "127")
    assert job_id() == "123_4"
    assert job.session(75, step=1)[0]
    assert job.calls == [["scontrol", "requeue", "123_4"]]
    assert (folder_of(job.output) / "requeue-123_4.json").exists()


@given(st.integers(0, 255), PROGRESS, PROGRESS, st.integers(0, 5), st.integers(0, 5))
def test_only_a_saved_stop_with_progress_within_the_limit_is_requeued(
    code: int, before: JobProgress, now: JobProgress, requeues: int, limit: int
) -> None:
    grown = now.steps > before.steps or now.stages > before.stages or now.batches > before.batches
    again, why = decide(code, before, now, requeues, limit)
    assert again == (code == 75 and grown and requeues < limit)
    assert "\n" not in why


def test_steps_that_a_dead_node_lost_are_not_held_against_the_next_session(job: Job) -> None:
    """SLURM itself puts a job back whose node died; it goes on from the last checkpoint, behind what it once said."""
    job.session(75, 100)
    write_json(job.output / "status.json", {"step": 150})
    assert job.session(75, 140)[0]


def test_progress_counts_steps_stages_and_exported_batches(tmp_path: Path) -> None:
    assert progress_of(tmp_path / "none") == JobProgress()
    stages = tmp_path / "stages"
    for i, step in enumerate((100, 20)):
        for saved in (10, step):
            (stages / "pretrain" / str(i) / "checkpoints" / f"step-{saved:08d}").mkdir(parents=True)
            write_json(stages / "pretrain" / str(i) / "checkpoints" / f"step-{saved:08d}" / "MANIFEST.json", {})
        (stages / "pretrain" / str(i) / "checkpoints" / "step-00000010.pin").touch()
        write_json(stages / "pretrain" / str(i) / "status.json", {"step": step + 5})  # what is not saved is lost
    write_json(stages / "pretrain" / "0" / "MANIFEST.json", {})
    (stages / "features" / ".partial-x").mkdir(parents=True)
    (stages / "features" / ".partial-x" / "journal-0").write_bytes(struct.pack("4I", 9, 1, 0, 2**32 - 1) + b"\1")
    assert progress_of(tmp_path) == JobProgress(steps=120, stages=1, batches=3)


def test_outside_a_job_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Job) -> None:
    with pytest.raises(ConfigError, match="requeue --begin"):
        finish(tmp_path / "run", 75, 3)
    monkeypatch.delenv("SLURM_JOB_ID")
    assert main(["requeue", str(tmp_path / "run"), "--begin"]) == 2


@pytest.mark.slow  # it starts Python twice a session
def test_the_script_itself_in_bash(tmp_path: Path) -> None:
    slurm, output = Slurm(tmp_path / "slurm"), tmp_path / "my 'run'"
    slurm.play(output, (75, 10), (75, 10), (1, 30))
    text = script(ClusterConfig(max_requeues=5), "job", output, ["run", "a study.yaml"], tmp_path)
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    env |= {"PATH": slurm.path, "SLURM_JOB_ID": "9", "PYTHONPATH": str(Path(__file__).parents[2])}
    codes, said = [], []
    for _ in range(3):
        done = subprocess.run(["bash"], input=text, env=env, text=True, capture_output=True, timeout=120, check=False)
        codes.append(done.returncode)
        said.append(done.stderr)
    assert codes == [0, 75, 1], said
    assert "job 9: stopped at step 10: requeued, 1 of 5 times" in said[0]
    assert "without progress" in said[1]
    assert slurm.calls("scontrol") == [["requeue", "9"]]
    (first, *_) = slurm.calls("srun")
    assert first[-3:] == ["dinoskip", "run", "a study.yaml"]
