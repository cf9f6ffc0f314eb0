"""The run directory: whose it is (lock), what made it (config.json, env.json) and how it fares (status.json)."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from dinoskip.config import flatten
from dinoskip.console import log
from dinoskip.distributed import World, on_main
from dinoskip.environment import describe
from dinoskip.errors import ConfigError, DinoskipError, Interrupted, OutputInUse, Preempted
from dinoskip.files import TEMPORARY, read_json, write_json
from dinoskip.locks import directory_lock
from dinoskip.training.checkpoint import sweep
from dinoskip.training.recipe import FREE_KEYS

STATUS_SECONDS = 5.0  # between rewrites of status.json while nothing but the step changes


def compare_configs(
    old: Mapping[str, Any], new: Mapping[str, Any], allow: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the refused and the allowed changes, each as ``key: old → new``; ``allow`` names more allowed keys."""
    before, after = flatten(old), flatten(new)
    free = {f"{section}.{key}" for section in ("pretrain", "supervised") for key in FREE_KEYS} | set(allow)
    refused: list[str] = []
    allowed: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key, "absent"), after.get(key, "absent")
        if was != now:
            (allowed if key in free else refused).append(f"{key}: {was} → {now}")
    return refused, allowed


class RunDirectory:
    """An open run directory. Only rank 0 writes; on other ranks :meth:`report` does nothing."""

    def __init__(self, path: Path, is_main: bool) -> None:
        self.path, self.is_main = path, is_main
        self._status: dict[str, Any] = {"state": "running", "host": socket.gethostname(), "pid": os.getpid()}
        self._written = float("-inf")

    def report(self, *, now: bool = False, **fields: Any) -> None:
        """Update status.json: at once if ``now``, else when the last writing is a few seconds old."""
        self._status |= fields
        if self.is_main and (now or time.monotonic() - self._written > STATUS_SECONDS):
            write_json(self.path / "status.json", self._status | {"updated": time.time()})
            self._written = time.monotonic()

    def warn_if_tight(self, checkpoint_bytes: int) -> None:
        """Warn when less than two checkpoints fit on the disk."""
        free = shutil.disk_usage(self.path).free
        if self.is_main and free < 2 * checkpoint_bytes:
            need = 2 * checkpoint_bytes / 2**20
            log.warning("%s: %.0f MiB free, two checkpoints need %.0f MiB", self.path, free / 2**20, need)


def _claim(path: Path, config: Mapping[str, Any], world: World, allow: Collection[str]) -> None:
    """Check that the locked directory is new or this run's, and record configuration and environment.

    Writing them is also the proof, before the first step, that the directory can be written.
    """
    recorded = path / "config.json"
    if not recorded.exists():
        foreign = sorted(p.name for p in path.iterdir() if not p.name.startswith((".lock", TEMPORARY)))
        if foreign:
            raise OutputInUse(f"{path}: not a training run: it holds {foreign[0]}", "choose an empty output directory")
    else:
        refused, allowed = compare_configs(read_json(recorded), config, allow)
        if refused:
            problems = tuple(f"{recorded}: {line}" for line in refused)
            hint = "this run was started otherwise: choose another output directory, or take the change back"
            raise ConfigError("\n".join(problems), hint, problems=(*problems, f"{path}: {hint}"))
        for line in allowed:
            log.info("%s: changed since the start: %s", path, line)
    write_json(recorded, config)
    here = {"world_size": world.size, "device": str(world.device), "slurm_job": os.environ.get("SLURM_JOB_ID")}
    write_json(path / "env.json", describe() | here)
    sweep(path)


@contextmanager
def open_run(
    path: Path, config: Mapping[str, Any], world: World, allow: Collection[str] = ()
) -> Iterator[RunDirectory]:
    """Lock and claim the directory, and see that status.json says how the block ended.

    Raises :class:`OutputInUse` if a living run or something else than a run is there, :class:`ConfigError` if
    it belongs to another configuration or cannot be written.
    """
    with ExitStack() as held:

        def claim() -> None:
            if path.exists() and not path.is_dir():
                raise ConfigError(f"{path}: not a directory", "choose another output directory")
            held.enter_context(directory_lock(path))
            _claim(path, config, world, allow)

        on_main(claim)
        run = RunDirectory(path, world.is_main)
        try:
            run.report(now=True, error=None)
            yield run
            run.report(now=True, state="done")
        except BaseException as error:
            states: dict[type[BaseException], str] = {Preempted: "preempted", Interrupted: "interrupted"}
            state = "interrupted" if isinstance(error, KeyboardInterrupt) else states.get(type(error), "failed")
            shown = str(error) if isinstance(error, DinoskipError) else f"{type(error).__name__}: {error}"
            with suppress(DinoskipError, OSError):  # a full disk must not hide what happened
                run.report(now=True, state=state, error=shown)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(f"{path}: stopped at once; the last checkpoint stands") from None
            raise
