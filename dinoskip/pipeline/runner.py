"""Run a plan: stage by stage, each output built aside and published whole; killed anywhere, it continues."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dinoskip.errors import ConfigError, DataError, NonFiniteError, OutputInUse, WeightsError
from dinoskip.io.files import differing_files, hash_of, write_json
from dinoskip.io.locks import directory_lock
from dinoskip.io.output import refuse_link
from dinoskip.pipeline.artifacts import ACCEPTED, AS, CHANGED_DATA, Artifacts, is_volatile, write_marks
from dinoskip.pipeline.cleaning import RUNNING, at_work, remove_empty
from dinoskip.pipeline.graph import Node, PlannedNode, Planner, record_of, refuse_damaged
from dinoskip.pipeline.progress import StudyProgress, Work, past_seconds
from dinoskip.pipeline.sections import StorageRules
from dinoskip.pipeline.stage import Stage, Task
from dinoskip.pipeline.storage import Stores, readers_of
from dinoskip.runtime.console import log
from dinoskip.runtime.environment import machine

WAITING_SECONDS = 60.0  # between lines that say for whom a run waits


class Runner:
    """Runs the nodes of one study."""

    def __init__(
        self,
        study: Path,
        nodes: Sequence[Node],
        stages: Mapping[str, Stage],
        *,
        device: str = "auto",
        workers: int = 0,
        storage: StorageRules | None = None,
        works: Callable[[], Mapping[str, Work]] = dict,
        memory: Callable[[], Mapping[str, float]] = dict,
        results: Path | None = None,
        accepted: Sequence[str] = (),
        retrain: bool = False,
        look: Callable[[], None] = lambda: None,
        room: Callable[[Runner, Collection[str]], None] | None = None,
    ) -> None:
        """``works`` gives the work of every node, by which times of finished ones are scaled.

        ``memory`` gives the peak bytes of what nodes bound, of those that bound anything, for plans to say.

        ``results`` is where pages and rows go, by default the folder ``study`` of the stages. ``accepted`` is what was
        doubtful of the data and accepted by name: manifests of what is made have it. Only with ``retrain`` is a
        finished training that is damaged trained again, in its place. ``look`` raises if results cannot be written,
        ``room`` if the nodes that are to run do not fit on the disk.
        """
        self.study, self.works, self.memory, self.results = study, works, memory, results or study
        self.artifacts = Artifacts(study)
        trainings = {name for name, stage in stages.items() if stage.trains}
        self.planner = Planner(nodes, self.artifacts, readers_of(nodes, stages), trainings=trainings, retrain=retrain)
        self.stages, self.look, self.room = stages, look, room
        self.stores = Stores(study, self.planner, stages, storage or StorageRules())
        self.device, self.workers, self.accepted = device, workers, list(accepted)
        self._intact: dict[Path, list[Any]] = {}  # outputs that were found whole: the marks of their files then

    def plan(self) -> list[PlannedNode]:
        """What every node would do now: cached, run or blocked, and why."""
        return self.planner.plan()

    def progress(self, chosen: set[str]) -> StudyProgress:
        """What is said of a run: at once how many of the chosen stages it runs, and about how long that takes."""
        steps = [step for step in self.planner.plan() if step.node.id in chosen]
        missing = [step.node for step in steps if step.state != "cached"]
        return StudyProgress(missing, len(steps) - len(missing), self.seconds(), self.works)

    def seconds(self) -> dict[str, float]:
        """Seconds that finished nodes took on this machine, known after :meth:`plan`."""
        return past_seconds(self.published(), machine(self.device))

    def run(self, chosen: set[str]) -> dict[str, str]:
        """Bring the chosen nodes up to date; return what happened to each (``cached`` or ``done``).

        Ranks other than the first do what it tells them and return nothing. Several runs may work at one study, each
        at variants of its own; for what the variants share, one makes it and the others wait.
        Raises :class:`ConfigError` when an input of a chosen node is not there and not chosen itself,
        :class:`OutputInUse` when another run is at a node of the same variant, and whatever a stage raises.
        """
        from dinoskip.runtime.distributed import group_without_timeout, world  # torch

        same = {node.id: hash_of(node.plain)[:12] for node in self.planner.nodes} | {"stages": sorted(chosen)}
        with world(self.device, same, self.study) as here:
            self.ranks = group_without_timeout(here)
            if here.is_main:
                return self._lead(chosen)
            for stage, task in self.ranks.received():
                self.stages[stage].run(task)
            return {}

    def _lead(self, chosen: set[str]) -> dict[str, str]:
        """:meth:`run` on rank 0, which lets the others go at the end, unless they have left with it."""
        self.together = False
        try:
            for name in ("stages", "records", RUNNING):
                refuse_link(self.study / name)
            self.look()
            with at_work(self.study):
                return self._all(chosen)
        finally:
            if not self.together:
                self.ranks.send(None)

    def _all(self, chosen: set[str]) -> dict[str, str]:
        happened: dict[str, str] = {}
        for node in self.planner.nodes:
            self.planner.external(node)
        refuse_damaged(self.planner.plan(), chosen)
        progress = self.progress(chosen)  # plans: what is cached further on decides which stores are used up
        self.stores.tidy()
        missing = {
            node.id for node in self.planner.nodes if node.id in chosen and self.planner.step(node).state != "cached"
        }
        if self.room is not None and missing:
            self.room(self, missing)
        for node in self.planner.nodes:
            step = self.planner.step(node)
            if node.id not in chosen:
                continue
            if broken := next((source for source in node.needs.values() if happened.get(source) == "failed"), None):
                progress.skipped(node, broken)
                happened[node.id] = "failed"
                continue
            if step.state == "blocked":
                raise ConfigError(
                    f"{node.id}: cannot run before {step.reason.removeprefix('after ')}",
                    "make it by `dinoskip run` without --only, --from and --variant",
                )
            if step.state == "run":
                with self._alone(node):
                    step = self.planner.step(node)  # another run may have made it while this one waited
                    if step.state == "run":
                        self._bring(node, chosen)
                        step = self.planner.step(node)
                    if step.state == "run":
                        happened[node.id] = self._run_or_fail(node, step.reason, progress)
                self.stores.tidy()
            happened.setdefault(node.id, "cached" if step.state == "cached" else "done")
        progress.end()
        return happened

    def _bring(self, node: Node, chosen: set[str]) -> None:
        """Make again what ``node`` reads and what was removed after use."""
        by_id = {node.id: node for node in self.planner.nodes}
        for source in self.stores.reads(node):
            if self.stores.present(source) is not None:
                continue
            if source not in chosen:
                raise ConfigError(
                    f"{node.id}: cannot run before {source}, whose files were removed after use",
                    "make it by `dinoskip run` without --only, --from and --variant",
                )
            with self._alone(by_id[source]):
                if self.stores.present(source) is None:
                    log.info("%s: made again for %s, it was removed after use", source, node.id)
                    self._run(by_id[source])

    def _run_or_fail(self, node: Node, reason: str, progress: StudyProgress) -> str:
        """Run a node; ``failed`` for data, weights or numbers that cannot be used: others may not need them."""
        progress.starts(node, reason)
        try:
            seconds = self._run(node)
        except (DataError, WeightsError, NonFiniteError) as error:
            if self.together and self.ranks.size > 1:  # the other ranks have left with it
                raise
            self.together = False
            progress.failed(node, error)
            return "failed"
        progress.finished(node, seconds, self._output(node.id))
        return "done"

    @contextmanager
    def _alone(self, node: Node) -> Iterator[None]:
        """Hold the node: one run makes it. Another run's is waited for if all variants share it, else refused."""
        place, told = self.study / RUNNING / node.id, float("-inf")
        with ExitStack() as held:
            held.callback(remove_empty, place)  # after the lock is released
            held.callback(self.stores.held.discard, node.id)
            while True:
                try:
                    held.enter_context(directory_lock(place))
                    break
                except OutputInUse as busy:
                    if node.variant:
                        raise
                    if time.monotonic() - told > WAITING_SECONDS:
                        log.info("%-44s waiting: %s", node.id, busy.message)
                        told = time.monotonic()
                time.sleep(0.2)
            self.stores.held.add(node.id)
            yield

    def _run(self, node: Node) -> float:
        """Run a node and publish its output; return how many seconds it took."""
        stage = self.stages[node.stage]
        record = record_of(node, self.planner.outputs, self.planner.external(node))
        key = self.planner.keys[node.id]
        inputs = {role: self._input(stage, source) for role, source in node.needs.items()}
        resumed = stage.resumes and self.artifacts.partial(node.id, key).exists()
        out = self.artifacts.fresh_partial(node.id, key, keep=stage.resumes)
        began = time.monotonic()
        task = Task(node.settings, node.runtime, inputs, out, self.device, self.workers)
        if stage.together:
            self.ranks.send((node.stage, task))
        self.together = stage.together  # an error from here on is one of all ranks
        with _same_directory(out):
            stage.run(replace(task, reserve=partial(self.stores.make_room, node)))
            self.together = False
        for source in node.needs.values():
            self._input(stage, source)  # what was damaged meanwhile may have been read
        _check_outside(node, stage, out)
        seconds = time.monotonic() - began
        timing = {"seconds": round(seconds, 2), "machine": machine(self.device)}
        write_json(out / "timing.json", {**timing, "resumed": True} if resumed else timing)
        info: dict[str, Any] = {"stage": node.stage, **({ACCEPTED: self.accepted} if self.accepted else {})}
        if stage.tells is not None and (same := self.artifacts.telling(node.id, stage.tells, stage.tells(out))):
            info[AS] = same
        may_replace = not stage.trains or self.planner.retrain
        self.planner.outputs[node.id] = self.artifacts.publish(node.id, key, record, info, replace=may_replace)
        self.planner.made.add(node.id)
        return seconds

    def _input(self, stage: Stage, source: str) -> Path:
        """Where ``stage`` reads the output of a node: whole, unless it reads no stores and this one was removed."""
        path = self._output(source)
        left = not stage.reads_stores and self.artifacts.released(source, self.planner.keys[source]) is not None
        return path if left else self._verified(source, path)

    def _verified(self, source: str, path: Path) -> Path:
        """``path``, the output of a node that is about to be read, or was; :class:`DataError` if it is damaged.

        Its bytes are compared once, and again where a file of it has been written to since. Of volatile files that
        have changed it warns.
        """
        marks, known = write_marks(path), self._intact.get(path)
        if marks != known:
            found = differing_files(path, inner=known is not None)
            problems = [text for name, text in found.items() if not is_volatile(name)]
            if problems:
                hint = f"remove {path}: the same command makes it again"
                if any(node.id == source and self.stages[node.stage].trains for node in self.planner.nodes):
                    hint = "put the file back, or give --retrain to train again in its place"
                raise DataError(f"damaged output: {problems[0]}", hint)
            self.planner.tell_changed(found.values())
            self._intact[path] = marks
        return path

    def _output(self, node_id: str) -> Path:
        return self.artifacts.path(node_id, self.planner.keys[node_id])

    def output(self, node_id: str) -> Path | None:
        """Directory of a node's published output, None while there is none."""
        if node_id not in self.planner.outputs:
            return None
        return self._output(node_id)

    def continued(self) -> set[Path]:
        """Partial directories that the current plan would go on with: of nodes that have no output yet."""
        known, done = self.planner.keys, self.planner.outputs
        return {self.artifacts.partial(node, key) for node, key in known.items() if node not in done}

    def published(self) -> dict[str, Path]:
        """Directories that the current plan uses, by node (known after :meth:`plan`)."""
        return {node.id: path for node in self.planner.nodes if (path := self.output(node.id)) is not None}


def _check_outside(node: Node, stage: Stage, out: Path) -> None:
    """:class:`DataError` if files outside the study changed since the plan hashed them; hours of training are kept."""
    changed = list(node.changed()) if node.changed is not None else []
    if not changed:
        return
    text = f"{node.id}: files were changed while this command ran: {', '.join(changed)}"
    if not stage.trains:
        raise DataError(text, "run it again: it will read them as they are now")
    log.warning("%s; the training is kept, and %s says so", text, CHANGED_DATA)
    write_json(out / CHANGED_DATA, changed)


@contextmanager
def _same_directory(path: Path) -> Iterator[None]:
    """:class:`OutputInUse` if, at the end or where a file is missed, ``path`` is another directory now, or none."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)  # held open: its inode number is given to no other
    try:
        try:
            yield
        except FileNotFoundError:
            if _is(path, handle):
                raise
        if _is(path, handle):
            return
    finally:
        os.close(handle)
    raise OutputInUse(
        f"{path}: not the directory that this run began: it was removed or replaced while it was written to",
        "what was written there is lost; run the same command again",
    )


def _is(path: Path, handle: int) -> bool:
    """Whether ``path`` is the directory that ``handle`` was opened on."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False
