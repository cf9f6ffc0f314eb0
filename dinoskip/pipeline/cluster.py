"""The engine of a cluster: each node of a study, or group of small ones, is one job of a SLURM array, by submitit.

The leader on a login node only hands out and waits. It notes which job has which node, so that one that died and is
started again waits for the jobs that are queued or at work instead of submitting them once more. Trainings are jobs of
all GPUs that the cluster's file names, one rank a GPU as `srun` starts them; all other nodes have one GPU.
"""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dinoskip.errors import ConfigError, DataError, DinoskipError, Preempted, first_line
from dinoskip.io.files import find_below, read_json, write_json
from dinoskip.io.output import own_folder
from dinoskip.pipeline.artifacts import Artifacts
from dinoskip.pipeline.executor import GROUP_SECONDS, Outcome, for_others, make_group, settle
from dinoskip.pipeline.making import Assignment, Made
from dinoskip.pipeline.scheduling import Order
from dinoskip.runtime.console import log
from dinoskip.training.launch import ClusterConfig, JobProgress, folder_of, progress_of

POLL = 1.0  # seconds between looks at jobs: at their files, and as often as submitit chooses at sacct
UNSEEN = 600.0  # seconds in which a job that was submitted may be unknown to sacct, which hears of jobs late
ALIVE = {"READY", "PENDING", "RUNNING", "REQUEUED", "COMPLETING", "PREEMPTED", "CONFIGURING", "SUSPENDED"}
JOBS = "jobs.json"  # in the folder of jobs: which job has which node
Kind = Literal["slurm", "local"]


@dataclass(eq=False)
class _Job:
    """A job that is queued or at work: what submitit knows of it, and a future for each of its nodes, by place."""

    handle: Any
    orders: Mapping[int, Order]
    futures: Mapping[int, Future[Made]]
    before: JobProgress = field(default_factory=JobProgress)
    again: int = 0


class ClusterWorkers:
    """Jobs of a cluster, at most ``jobs`` of them at once. ``kind`` local: processes of this machine, for trials."""

    memory: int | None = None  # each job has its own
    group_seconds = GROUP_SECONDS

    def __init__(
        self, study: Path, cluster: ClusterConfig, name: str, verbosity: int = 0, kind: Kind = "slurm"
    ) -> None:
        """``name`` is what the jobs are called; their scripts and logs go beside the study."""
        self.name, self.capacity = f"jobs of {kind}", cluster.jobs
        self.cores: int | None = cluster.cpus_per_task
        self._cluster, self._verbosity, self._kind = cluster, verbosity, kind
        self._folder = own_folder(folder_of(study.absolute()) / "jobs")
        submitit = _submitit()
        make, self._handle = (
            (submitit.SlurmExecutor, submitit.SlurmJob)
            if kind == "slurm"
            else (submitit.LocalExecutor, submitit.LocalJob)
        )
        self._executors = {}
        for trains in (False, True):
            try:
                self._executors[trains] = make(self._folder, python=f"{shlex.quote(sys.executable)} -P")
            except RuntimeError as error:
                raise ConfigError(f"--spread: {first_line(error)}", "run this where SLURM is") from None
            asked = slurm_parameters(cluster, name, trains=trains) if kind == "slurm" else local_parameters(cluster)
            self._executors[trains].update_parameters(**asked)
        self._queue: list[_Job] = []  # to be submitted
        self._jobs: list[_Job] = []  # queued or at work
        self._guard, self._ended = threading.Lock(), threading.Event()
        self._stopping = False
        threading.Thread(target=self._attend, name="jobs", daemon=True).start()

    # --- of the leader --------------------------------------------------------------------------------

    def submit(self, orders: Sequence[Order]) -> list[Future[Made]]:
        """Submit the nodes as one job, but for those that a job of an earlier leader has."""
        futures: list[Future[Made]] = [Future() for _ in orders]
        new = {}
        for place, (work, stage) in enumerate(orders):
            if work.helps or (found := self._earlier(work)) is None:
                new[place] = (work, stage)
                continue
            handle, at = found
            log.info("%s: job %s has it already", work.node.id, handle.job_id)
            with self._guard:
                self._jobs.append(_Job(handle, {at: (work, stage)}, {at: futures[place]}))
        if new:
            given = dict(enumerate(new.values()))
            job = _Job(None, given, {at: futures[place] for at, place in enumerate(new)})
            with self._guard:
                self._queue.append(job)
        return futures

    def stop(self) -> None:
        """Cancel what is queued, and tell what is at work to stop at its next safe point."""
        with self._guard:
            self._stopping = True
            for job in self._queue:
                _end_all(job, BrokenExecutor("stopped before it was submitted"))
            self._queue.clear()
            jobs = list(self._jobs)
        self._tell(jobs)

    def _tell(self, jobs: Sequence[_Job]) -> None:
        """Cancel jobs that are queued, and signal those that are at work."""
        if self._kind == "local":
            for job in jobs:
                if job.handle._process is not None:  # of this leader
                    job.handle._process.terminate()
        elif jobs:
            identifiers = [job.handle.job_id for job in jobs]
            subprocess.run(["scancel", "--state=PENDING", *identifiers], check=False)
            subprocess.run(["scancel", "--signal=USR2", *identifiers], check=False)

    def close(self) -> None:
        """Look at no job any more; jobs go on."""
        self._ended.set()

    # --- which jobs there are -------------------------------------------------------------------------

    def _earlier(self, work: Assignment) -> tuple[Any, int] | None:
        """The job of an earlier leader that still has the node, and the node's place in it."""
        with suppress(DataError, KeyError, TypeError, ValueError):
            noted = read_json(self._folder / JOBS)[work.node.id] if (self._folder / JOBS).is_file() else None
            if noted is None or noted["key"] != work.key or self._kind != noted["kind"]:
                return None
            handle = self._handle(self._folder, str(noted["job"]), tuple(range(int(noted["tasks"]))))
            handle.done(force_check=True)
            state, unseen = str(handle.state).upper().split(" ")[0], time.time() - float(noted["submitted"]) < UNSEEN
            return (handle, int(noted["at"])) if state in ALIVE or (state == "UNKNOWN" and unseen) else None
        return None

    def _note(self, jobs: Sequence[_Job]) -> None:
        """Write down which job has which node."""
        noted = {
            work.node.id: {
                "key": work.key, "job": job.handle.job_id, "at": at, "tasks": max(1, job.handle.num_tasks),
                "kind": self._kind, "submitted": time.time(),
            }
            for job in jobs
            for at, (work, _) in job.orders.items()
            if not work.helps
        }  # fmt: skip
        old: dict[str, Any] = {}
        with suppress(DataError, FileNotFoundError):  # without it jobs are submitted once more, and wait for the others
            old = read_json(self._folder / JOBS)
        write_json(self._folder / JOBS, {**old, **noted})

    # --- of the thread that attends to jobs -----------------------------------------------------------

    def _attend(self) -> None:
        while not self._ended.wait(POLL):
            try:
                self._look()
            except Exception as error:  # the leader waits for futures: it must hear of whatever it is
                log.debug("jobs", exc_info=error)
                with self._guard:
                    for job in (*self._jobs, *self._queue):
                        _end_all(job, DinoskipError(f"{self.name}: {type(error).__name__}: {first_line(error)}"))
                    self._jobs, self._queue = [], []

    def _look(self) -> None:
        """Submit what is to be submitted, and take what has ended."""
        with self._guard:
            queue = list(self._queue)
        self._send(queue)
        for job in list(self._jobs):
            if job.handle.done():
                self._take(job)
                with self._guard:
                    self._jobs.remove(job)

    def _send(self, queue: Sequence[_Job]) -> None:
        """Submit jobs: those of one kind as an array."""
        for trains, executor in self._executors.items():
            jobs = [job for job in queue if any(stage.trains for _, stage in job.orders.values()) is trains]
            if not jobs:
                continue
            try:
                with self._guard:
                    self._queue = [job for job in self._queue if job not in jobs]
                with executor.batch():
                    for job in jobs:
                        job.before = _progress(job)
                        job.handle = executor.submit(make_group, for_others(list(job.orders.values())), self._verbosity)
                self._note(jobs)
            except Exception as error:  # what submitit or sbatch says
                log.debug("submit", exc_info=error)
                refused = ConfigError(f"{self.name}: not submitted: {first_line(error)}", "see the cluster's file")
                for job in jobs:
                    _end_all(job, refused)
                continue
            with self._guard:
                self._jobs += jobs
            if self._stopping:
                self._tell(jobs)

    def _take(self, job: _Job) -> None:
        """Give every node of a job that ended its outcome; one that was preempted and got on is submitted again."""
        outcomes = _outcomes(job.handle)
        if outcomes is None:
            state = str(job.handle.state).lower()
            return _end_all(job, BrokenExecutor(f"job {job.handle.job_id} ended without a result ({state})"))
        preempted = any(isinstance(outcomes[at], Preempted) for at in job.futures)
        if preempted and not self._stopping and job.again < self._cluster.max_requeues:
            now = _progress(job)
            if now.beyond(job.before):
                log.info("job %s stopped at its time's end or was preempted: submitted again", job.handle.job_id)
                left = {at: order for at, order in job.orders.items() if isinstance(outcomes[at], Preempted)}
                _give(job, outcomes, [at for at in job.futures if at not in left])
                again = dict(enumerate(left.values()))
                futures = {new: job.futures[at] for new, at in enumerate(left)}
                with self._guard:
                    self._queue.append(_Job(None, again, futures, again=job.again + 1))
                return None
        return _give(job, outcomes, list(job.futures))


def _progress(job: _Job) -> JobProgress:
    """Return the progress of a job's nodes in their unpublished outputs: saved steps, exported batches, parts."""
    total = JobProgress()
    for work, _ in job.orders.values():
        artifacts = Artifacts(work.study)
        one = progress_of(artifacts.partial(work.node.id, work.key))
        parts = len(find_below(artifacts.parts(work.node.id, work.key), "*.npz"))
        total = JobProgress(total.steps + one.steps, total.stages + one.stages, total.batches + one.batches + parts)
    return total


def _outcomes(handle: Any) -> list[Outcome] | None:
    """Return the outcomes from the first rank of a job; None if it was killed, or could not begin."""
    try:
        outcomes: list[Outcome] = handle.task(0).result()
    except Exception as error:
        log.debug("job %s", handle.job_id, exc_info=error)
        return None
    return outcomes


def _give(job: _Job, outcomes: Sequence[Outcome], places: Sequence[int]) -> None:
    for at in places:
        settle(job.futures[at], outcomes[at])


def _end_all(job: _Job, error: Exception) -> None:
    for future in job.futures.values():
        if not future.done():
            future.set_exception(error)


def _submitit() -> Any:
    """The package, which is an extra: only where a study is spread over a cluster."""
    try:
        return importlib.import_module("submitit")
    except ImportError:
        raise ConfigError("--spread: needs the package submitit", "pip install 'dinoskip[slurm]'") from None


# --- what jobs ask for ----------------------------------------------------------------------------------


def slurm_parameters(cluster: ClusterConfig, name: str, *, trains: bool) -> dict[str, Any]:
    """Return a job's request to SLURM under submitit's names.

    A training requests all that the file names, any other node the share of one GPU.
    """
    options = dict(map(_option, cluster.sbatch))
    if not trains:
        options.pop("exclusive", None)  # one GPU of a node
    ranks = cluster.tasks_per_node if trains else 1
    asked: dict[str, Any] = {
        "job_name": name, "partition": cluster.partition, "account": cluster.account, "qos": cluster.qos,
        "constraint": cluster.constraint, "nodes": cluster.nodes if trains else 1, "ntasks_per_node": ranks,
        "gpus_per_node": (cluster.gpus_per_node if trains else 1) if cluster.gpus_per_node else None,
        "cpus_per_task": cluster.cpus_per_task, "mem": cluster.mem if trains else share_of_memory(cluster),
        "time": minutes(cluster.time), "signal_delay_s": cluster.grace, "array_parallelism": cluster.jobs,
        "setup": ["export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}", *cluster.setup],
        "srun_args": [f"--cpus-per-task={cluster.cpus_per_task}", "--kill-on-bad-exit=0", "--wait=60"],
        "additional_parameters": {"requeue": True, **options},
    }  # fmt: skip
    return {key: value for key, value in asked.items() if value is not None}


def local_parameters(cluster: ClusterConfig) -> dict[str, Any]:
    """Return the parameters that jobs on this machine take from the file."""
    asked = {"timeout_min": minutes(cluster.time), "signal_delay_s": cluster.grace, "setup": list(cluster.setup)}
    return {**asked, "gpus_per_node": min(1, cluster.gpus_per_node), "tasks_per_node": 1}


def _option(text: str) -> tuple[str, str | bool]:
    """An option of sbatch as its name and value, True for none."""
    name, has_value, value = text.partition("=")
    if not name.startswith("--") or " " in text.strip():
        raise ConfigError(f"sbatch: {text!r} cannot be spread", "write long options, as --name or --name=value")
    return name.removeprefix("--").strip(), value.strip("'\"") if has_value else True


def minutes(text: str) -> int:
    """Minutes, rounded up, of a time as sbatch takes it: ``minutes``, ``m:ss``, ``h:mm:ss``, ``d-hh[:mm[:ss]]``."""
    days, has_days, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if has_days:
        hours, minute, second = ([*parts, 0, 0])[:3]
    elif len(parts) == 3:
        hours, minute, second = parts
    else:
        hours, (minute, second) = 0, ([*parts, 0])[:2]
    return (int(days or 0) * 24 + hours) * 60 + minute + (second > 0)


_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def memory_of(cluster: ClusterConfig) -> int | None:
    """Bytes of ``mem``, which SLURM counts in megabytes without a unit; None if it is not said, or all of a node."""
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", cluster.mem or "", re.IGNORECASE)
    return None if found is None or int(found[1]) == 0 else int(found[1]) * _UNITS[(found[2] or "M").upper()]


def share_of_memory(cluster: ClusterConfig) -> str | None:
    """The memory of one GPU's job, as sbatch takes it: its share of the node's."""
    whole = memory_of(cluster)
    return None if whole is None else f"{max(1, whole // cluster.tasks_per_node // 10**6)}M"
