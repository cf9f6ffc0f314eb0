"""The run directory: whose it is (lock), what made it (config.json, env.json) and how it fares (status.json)."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dinoskip.errors import (
    ConfigError,
    DataError,
    DinoskipError,
    ForeignOutput,
    Interrupted,
    Preempted,
    RankLost,
    did_you_mean,
)
from dinoskip.io.files import TEMPORARY, hash_of, read_json, write_json
from dinoskip.io.locks import DirectoryLock, directory_lock
from dinoskip.io.output import refuse_links_in
from dinoskip.runtime.console import MetricsLog, log, read_metrics, visible
from dinoskip.runtime.distributed import World, on_main
from dinoskip.runtime.environment import describe, this_command
from dinoskip.runtime.provenance import made
from dinoskip.settings.config import flatten
from dinoskip.settings.keys import with_defaults
from dinoskip.settings.specs import list_checkpoints
from dinoskip.training.checkpoint import sweep
from dinoskip.training.guard import INTERRUPT, PREEMPT
from dinoskip.training.recipe import FREE_KEYS

SECTIONS = ("pretrain", "supervise")  # of a job, with the settings of its objective
STATES: dict[type[BaseException], str] = {
    Preempted: "preempted",
    RankLost: "preempted",
    Interrupted: "interrupted",
}  # of status.json, by what the run ended with; all else is "failed"
STATUS_SECONDS = 5.0  # between rewrites of status.json while nothing but the step changes
ABSENT = "absent"  # stands for the value of a setting that one of two sessions lacks
NAMED = 3  # changes that a refusal names


@dataclass(frozen=True)
class Change:
    """A setting that differs between a run's sessions; see :data:`ABSENT`."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.old} → {self.new}"


def compare_configs(
    old: Mapping[str, Any], new: Mapping[str, Any], allow: Collection[str] = ()
) -> tuple[list[Change], list[Change]]:
    """Return the refused and the allowed changes; ``allow`` names more allowed keys, or sections of keys.

    Raises :class:`ConfigError` if ``allow`` names what neither configuration has, or allows another optimizer: the
    moments of one mean something else to another (SOAP's are in its bases), and nothing would say so.
    """
    before, after = flatten(old), flatten(new)
    keys = sorted(before.keys() | after.keys())
    sections = {key[:at] for key in keys for at, letter in enumerate(key) if letter == "."}
    for name in allow:
        if name not in sections and name not in keys:
            near = did_you_mean(name, [*keys, *sections])
            raise ConfigError(f"allow-change {name}: there is no such setting", near)
    free = {f"{section}.{key}" for section in SECTIONS for key in FREE_KEYS}
    refused: list[Change] = []
    allowed: list[Change] = []
    for key in keys:
        change = Change(key, before.get(key, ABSENT), after.get(key, ABSENT))
        if change.old != change.new:
            may = key in free or any(key == name or key.startswith(f"{name}.") for name in allow)
            if may and key == "optimizer.name":
                raise ConfigError(f"{change}: an optimizer cannot go on from another's state", "begin a new run")
            (allowed if may else refused).append(change)
    return refused, allowed


def _with_new_names(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A run's config.json with a section's name of earlier versions replaced by today's."""
    return {{"supervised": "supervise"}.get(key, key): value for key, value in recorded.items()}


def identity(path: Path) -> str:
    """The hash of the settings, seed and all, that the run in directory ``path`` began with.

    It is that of config.json with the allowed changes taken back, so that it is the same in every session, and in every
    checkpoint, of a run.
    """
    began = flatten(_with_new_names(read_json(path / "config.json")))
    for change in reversed(read_metrics(path / "changes.jsonl")):
        if change["old"] == ABSENT:
            began.pop(change["key"], None)
        else:
            began[change["key"]] = change["old"]
    return hash_of(began)


class RunDirectory:
    """An open run directory. Only rank 0 writes, and has the ``lock``, which ``held`` gives back.

    On other ranks :meth:`report` does nothing.
    """

    def __init__(
        self,
        path: Path,
        is_main: bool,
        config: Mapping[str, Any],
        changes: Sequence[Change],
        held: ExitStack,
        lock: DirectoryLock | None,
    ) -> None:
        self.path, self.is_main, self._config, self._changes = path, is_main, config, changes
        self._held, self._lock = held, lock
        self._status: dict[str, Any] = {"state": "running", "host": socket.gethostname(), "pid": os.getpid()}
        self._written = float("-inf")

    def report(self, *, now: bool = False, **fields: Any) -> None:
        """Update status.json: at once if ``now``, else when the last writing is a few seconds old."""
        self._status |= fields
        if self.is_main and (now or time.monotonic() - self._written > STATUS_SECONDS):
            write_json(self.path / "status.json", self._status | {"updated": time.time()})
            self._written = time.monotonic()

    def note_start(self, checkpoint: Path | None, damaged: Mapping[str, str]) -> None:
        """Say in status.json which checkpoint this session goes on from, and which newer ones are damaged."""
        taken = None if checkpoint is None else checkpoint.name
        self.report(resumed_from=taken, damaged_checkpoints=dict(damaged))

    def leave(self, state: str, error: str, code: int) -> None:
        """End this process from another thread than the main one, which cannot: say why, and give the lock back."""
        os.write(2, f"error: {visible(error)}\n".encode(errors="backslashreplace"))
        with suppress(DinoskipError, OSError):
            self.report(now=True, state=state, error=error)
        self._held.close()
        os._exit(code)

    def lost(self, line: str) -> None:
        """:meth:`leave`, since another rank is lost: exit code 75 if there is a checkpoint to go on from, else 1."""
        failure = rank_lost(self.path, line)
        self.leave(STATES.get(type(failure), "failed"), str(failure), failure.exit_code)

    def stopped_at_once(self, request: int) -> None:
        """:meth:`leave` at the second request to stop."""
        failure = stopped_at_once(self.path, request)
        self.leave(STATES[type(failure)], str(failure), failure.exit_code)

    def check(self) -> None:
        """:class:`OutputInUse` if the directory is not the one that was locked: what was written there is lost."""
        if self._lock is not None:
            self._lock.check()

    def note_environment(self, **facts: Any) -> None:
        """Add entries to the run's env.json."""
        if self.is_main:
            write_json(self.path / "env.json", read_json(self.path / "env.json") | facts)

    def accept(self, step: int) -> None:
        """Record the allowed changes as made after ``step`` in changes.jsonl, and from here on as the run's own."""
        if not self.is_main or not self._changes:
            return
        with closing(MetricsLog(self.path / "changes.jsonl")) as rows:
            for change in self._changes:
                log.info("%s: changed after step %d: %s", self.path, step, change)
                rows.write(step=step, **asdict(change))
        write_json(self.path / "config.json", self._config)

    def warn_if_tight(self, checkpoint_bytes: int) -> None:
        """Warn when less than two checkpoints fit on the disk."""
        if not self.is_main:
            return
        free = shutil.disk_usage(self.path).free
        if free < 2 * checkpoint_bytes:
            need = 2 * checkpoint_bytes / 2**20
            log.warning("%s: %.0f MiB free, two checkpoints need %.0f MiB", self.path, free / 2**20, need)


def _refuse_shorter(path: Path, newest: Path, config: Mapping[str, Any]) -> None:
    """:class:`ConfigError` where by the new number of epochs the run would have ended before its newest checkpoint.

    Its learning rate was another by then: no checkpoint of it is what the shorter run would end with.
    """
    try:
        state = read_json(newest / "state.json")
        step, per_epoch = int(state["step"]), int(state["steps_per_epoch"])
    except (DinoskipError, OSError, KeyError, TypeError, ValueError):
        return  # damaged: an older one is taken
    epochs = [config[section]["epochs"] for section in SECTIONS if section in config]
    if epochs and epochs[0] * per_epoch < step:
        raise ConfigError(
            f"{path}: the run is at step {step}, and {epochs[0]} epochs end at step {epochs[0] * per_epoch}",
            "give it as many epochs as it has had, or begin a new run in another directory",
        )


def _claim(
    path: Path, config: Mapping[str, Any], world: World, allow: Collection[str], changed: Mapping[str, Any]
) -> list[Change]:
    """Check that the locked directory is new or this run's; record environment and, if new, the configuration.

    A run without a checkpoint has nothing that another configuration could contradict, so it is new.
    Returns the changes that are allowed. Writing is also the proof, before the first step, that it can be done.
    """
    refuse_links_in(path)
    recorded = path / "config.json"
    allowed: list[Change] = []
    steps = list_checkpoints(path)
    if recorded.exists() and steps:
        began = with_defaults(_with_new_names(read_json(recorded)), config, changed)
        refused, allowed = compare_configs(began, config, allow)
        if refused:
            refused.sort(key=lambda change: change.key.count("."))  # what a section is, before its details
            more = (f"{recorded}: and {len(refused) - NAMED} more",) if len(refused) > NAMED else ()
            problems = (*(f"{recorded}: {change}" for change in refused[:NAMED]), *more)
            hint = (
                "this run was started with other settings (above): repeat them, choose another output directory, or "
                f"allow the change with --allow-change {refused[0].key}"
            )
            raise ConfigError("\n".join(problems), hint, problems=(*problems, f"{path}: {hint}"))
        if any(change.key in {f"{section}.epochs" for section in SECTIONS} for change in allowed):
            _refuse_shorter(path, steps[max(steps)], config)
    else:
        compare_configs(config, config, allow)
        foreign = sorted(p.name for p in path.iterdir() if not p.name.startswith((".lock", TEMPORARY)))
        if foreign and not _is_run(recorded):
            raise ForeignOutput(
                f"{path}: not a training run: it holds {foreign[0]}", "choose an empty output directory"
            )
        write_json(recorded, config)
    here = {"world_size": world.size, "device": str(world.device), "slurm_job": os.environ.get("SLURM_JOB_ID")}
    # checkpoints have the day alone, so that equal runs of one day have equal bytes
    write_json(path / "env.json", describe() | here | made() | this_command())
    sweep(path)
    return allowed


def _is_run(recorded: Path) -> bool:
    """Whether a config.json is a training's: others have files of this name, too."""
    if not recorded.is_file():
        return False
    try:
        config = read_json(recorded)
    except DataError:  # of a run that a full disk ended, before its first checkpoint
        return recorded.stat().st_size == 0
    return isinstance(config, dict) and any(section in _with_new_names(config) for section in SECTIONS)


def stopped_at_once(path: Path, request: int) -> Preempted | Interrupted:
    """Return the error that ends a run at the second request to stop, PREEMPT or INTERRUPT."""
    kind = Preempted if request == PREEMPT else Interrupted
    return kind(f"{path}: stopped at once; the last checkpoint stands")


def rank_lost(path: Path, line: str) -> DinoskipError:
    """Return the error that ends a run when another rank is lost; the run can be continued if it has a checkpoint."""
    steps = list_checkpoints(path)
    if not steps:
        return DinoskipError(f"{line}; there is no checkpoint yet: the same command begins again")
    return RankLost(f"{line}; the same command goes on from step {max(steps)}")


@contextmanager
def open_run(
    path: Path,
    config: Mapping[str, Any],
    world: World,
    allow: Collection[str] = (),
    changed: Mapping[str, Any] | None = None,
) -> Iterator[RunDirectory]:
    """Lock and claim the directory, and see that status.json says how the block ended.

    ``changed`` are the settings of ``config`` that are not at their default: an earlier version's run lacks others.
    Raises :class:`OutputInUse` if a living run is there, :class:`ConfigError` if it holds something else than a run, if
    it belongs to another configuration or cannot be written.
    """
    with ExitStack() as held:
        locks: list[DirectoryLock] = []

        def claim() -> list[Change]:
            if path.exists() and not path.is_dir():
                raise ConfigError(f"{path}: not a directory", "choose another output directory")
            locks.append(held.enter_context(directory_lock(path)))
            return _claim(path, config, world, allow, config if changed is None else changed)

        run = RunDirectory(path, world.is_main, config, on_main(claim), held, next(iter(locks), None))
        try:
            run.report(now=True, error=None)
            yield run
            on_main(run.check)
            run.report(now=True, state="done")
        except BaseException as error:
            failure = error
            if isinstance(error, KeyboardInterrupt):
                failure = stopped_at_once(path, getattr(error, "request", INTERRUPT))
            elif isinstance(error, RankLost):
                failure = rank_lost(path, str(error))
            shown = str(failure) if isinstance(failure, DinoskipError) else f"{type(failure).__name__}: {failure}"
            with suppress(DinoskipError, OSError):  # a full disk must not hide what happened
                run.report(now=True, state=STATES.get(type(failure), "failed"), error=shown)
            if failure is not error:
                raise failure from None
            raise
