"""SLURM: the batch script that ``dinoskip submit`` writes, and the decision whether a stopped job is put back.

Before its time ends (``--signal``) or when it is preempted, every rank of a job gets a signal, saves and leaves with
exit code 75. The script then asks :func:`finish`: a job that got further since it started is requeued, up to a
limit; one that did not would stop at the same place for ever, and one that failed would fail again.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, StringConstraints

from dinoskip.errors import ConfigError, Preempted
from dinoskip.io.files import MANIFEST, MAX_JSON, find_below, read_json, read_regular, write_json, write_text
from dinoskip.io.output import own_folder
from dinoskip.settings.config import Config

Word = Annotated[str, StringConstraints(pattern=r"^[\w.,:/@%+=|&*()\[\]-]+$")]
Line = Annotated[str, StringConstraints(pattern=r"^[^\n\r]+$")]
Named = Annotated[Word, BeforeValidator(lambda given: str(given) if type(given) is int else given)]
"""A word that may be a number, which YAML reads as one: ``card: 4090``, ``mem: 4000``."""
Time = Annotated[str, StringConstraints(pattern=r"^(\d+-)?\d+(:\d\d){0,2}$")]
Run = Callable[[Sequence[str]], str]


class ClusterConfig(Config):
    """Settings of a job on a cluster; one file of ``configs/cluster``. One process a GPU, or a node without GPUs."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Word | None = None
    nodes: int = Field(1, ge=1)
    gpus_per_node: int = Field(1, ge=0)
    cpus_per_task: int = Field(8, ge=1, description="cores of each process, for reading images")
    mem: Named | None = Field(None, description="memory of a node, such as 200G")
    time: Time = Field("24:00:00", description="as sbatch takes it: minutes, h:mm:ss or d-hh:mm:ss")
    grace: int = Field(180, ge=10, le=3600, description="seconds before the end at which the job is told to save")
    jobs: int = Field(8, ge=1, description="most jobs at once of a study that is spread (submit --spread)")
    card: Named | None = Field(None, description="the GPUs, for `plan --cluster`: a100, h100, h200, l40s or 4090")
    max_requeues: int = Field(20, ge=0, description="times that a job which gets on is put back into the queue")
    setup: tuple[Line, ...] = Field((), description="shell lines before the run: modules, environment variables")
    sbatch: tuple[Line, ...] = Field((), description="more options of sbatch, such as --exclusive")

    @property
    def tasks_per_node(self) -> int:
        """Processes that are started on each node: one a GPU, one without."""
        return max(self.gpus_per_node, 1)

    @property
    def ranks(self) -> int:
        """Processes of the whole job, over all nodes."""
        return self.nodes * self.tasks_per_node


def folder_of(output: Path) -> Path:
    """Return ``OUTPUT.slurm`` beside ``output``: the folder of scripts, logs and requeue records of its jobs."""
    return output.with_name(f"{output.name}.slurm")


def script(cluster: ClusterConfig, name: str, output: Path, command: Sequence[str], where: Path) -> str:
    """The batch script of ``dinoskip COMMAND``, which writes ``output``, run from directory ``where``."""
    log = str(folder_of(output).absolute()).replace("%", "%%") + "/%x-%j.out"
    asked = {
        "job-name": name, "output": log, "open-mode": "append", "partition": cluster.partition,
        "account": cluster.account, "qos": cluster.qos, "constraint": cluster.constraint, "nodes": cluster.nodes,
        "ntasks-per-node": cluster.tasks_per_node, "gpus-per-node": cluster.gpus_per_node or None,
        "cpus-per-task": cluster.cpus_per_task, "mem": cluster.mem, "time": cluster.time,
        "signal": f"USR2@{cluster.grace}",
    }  # fmt: skip
    options = [f"--{key}={shlex.quote(str(value))}" for key, value in asked.items() if value is not None]
    dinoskip = f"{shlex.quote(sys.executable)} -P -m dinoskip"  # -P: imports nothing from the folder it runs in
    requeue = f"{dinoskip} requeue {shlex.quote(str(output.absolute()))}"
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in (*options, "--requeue", *cluster.sbatch)),
        "",
        "trap : TERM USR2  # the ranks are told as well: wait for them, then decide",
        f"cd {shlex.quote(str(where.absolute()))} || exit 2",
        "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}",
        *cluster.setup,
        f"{requeue} --begin || exit",
        # A rank that dies takes the others along a minute later: time for the last words of a rank that saves.
        f"srun --cpus-per-task={cluster.cpus_per_task} --kill-on-bad-exit=0 --wait=60 {dinoskip} {shlex.join(command)}",
        "code=$?",
        f'{requeue} --code "$code" --max {cluster.max_requeues}',
    ]
    return "\n".join(lines) + "\n"


def run_tool(command: Sequence[str]) -> str:
    """Run one of SLURM's tools and return its stdout; :class:`ConfigError` in one line if it is missing or fails."""
    if shutil.which(command[0]) is None:
        raise ConfigError(f"{command[0]}: not found", "run this where SLURM is, or see the script with --dry-run")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ConfigError(f"{command[0]} refused: {said}")
    return done.stdout


def submit(text: str, name: str, output: Path, options: Sequence[str] = (), *, run: Run = run_tool) -> str:
    """Write job ``name``'s script beside ``output``, give it to sbatch with more ``options``; return its number."""
    path = own_folder(folder_of(output)) / f"{name}.sh"
    write_text(path, text)
    return run(["sbatch", "--parsable", *options, str(path)]).strip().partition(";")[0]


# --- requeue ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobProgress:
    """Progress in a run or study directory; each number only grows."""

    steps: int = 0  # saved steps of all trainings
    stages: int = 0  # finished stages
    batches: int = 0  # exported batches of features

    def beyond(self, other: JobProgress) -> bool:
        """Whether anything is further than in ``other``."""
        return any(getattr(self, field.name) > getattr(other, field.name) for field in fields(self))


def _exported(journal: bytes) -> int:
    """Entries of an export's journal, four bytes each, that are not zero."""
    return sum(entry != 0 for entry in memoryview(journal[: len(journal) // 4 * 4]).cast("I"))


def progress_of(output: Path) -> JobProgress:
    """Read the progress of a run or study directory; all zero if it is not there yet."""
    done = [path for path in find_below(output, MANIFEST) if "checkpoints" not in path.relative_to(output).parts]
    saved: dict[Path, int] = {}  # by run; status.json may be ahead, of a session that died before it saved
    for path in find_below(output, "step-*"):
        if path.parent.name == "checkpoints" and path.name[5:].isdecimal():
            saved[path.parent] = max(saved.get(path.parent, 0), int(path.name[5:]))
    return JobProgress(
        steps=sum(saved.values()),
        stages=len(done),
        batches=sum(_exported(read_regular(path, MAX_JSON)) for path in find_below(output, "journal-*")),
    )


def decide(code: int, before: JobProgress, now: JobProgress, requeues: int, limit: int) -> tuple[bool, str]:
    """Whether a job whose ranks left with exit ``code`` goes back into the queue, and why (one line)."""
    if code == 0:
        return False, "finished"
    if code != Preempted.exit_code:
        return False, f"failed with exit code {code}: not requeued, it would fail again"
    if not now.beyond(before):
        return False, f"stopped at step {now.steps} without progress since its start: not requeued; give it more time"
    if requeues >= limit:
        return False, f"stopped at step {now.steps} after {requeues} requeues, the limit: submit it again to go on"
    return True, f"stopped at step {now.steps}: requeued, {requeues + 1} of {limit} times"


def job_id() -> str:
    """This job as scontrol knows it: ``123``, or ``123_4`` for a member of an array."""
    env = os.environ
    if "SLURM_ARRAY_JOB_ID" in env and "SLURM_ARRAY_TASK_ID" in env:
        return f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    if "SLURM_JOB_ID" not in env:
        raise ConfigError("SLURM_JOB_ID is not set", "`dinoskip requeue` is called by the script of `dinoskip submit`")
    return env["SLURM_JOB_ID"]


def _record(output: Path) -> Path:
    return folder_of(output) / f"requeue-{job_id()}.json"


def begin(output: Path, *, clock: Callable[[], float] = time.time) -> None:
    """Note how far ``output`` is as this job starts, for :func:`finish`."""
    path = _record(output)
    own_folder(path.parent)
    old = read_json(path) if path.exists() else {}
    write_json(
        path,
        {
            "requeues": old.get("requeues", 0),
            "started": clock(),
            "before": asdict(progress_of(output)),
            "ended": old.get("ended", []),
        },
    )


def finish(
    output: Path, code: int, limit: int, *, run: Run = run_tool, clock: Callable[[], float] = time.time
) -> tuple[bool, str]:
    """Requeue this job, whose ranks left with exit ``code``, if it got on and may; return :func:`decide`'s answer.

    Every end is added to the job's record with its time in seconds since the start.
    """
    path = _record(output)
    if not path.exists():
        raise ConfigError(f"{path}: not there", "`dinoskip requeue --begin` comes first")
    record = read_json(path)
    now = progress_of(output)
    again, why = decide(code, JobProgress(**record["before"]), now, record["requeues"], limit)
    record["ended"].append({"code": code, "seconds": round(clock() - record["started"], 1), **asdict(now), "why": why})
    record["requeues"] += again
    write_json(path, record)  # first: requeueing ends this process
    if again:
        run(["scontrol", "requeue", job_id()])
    return again, why
