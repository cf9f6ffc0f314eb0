"""One node made by one process: its inputs compared, its stage run in a folder aside, its output published whole.

An :class:`Assignment` has all that this needs and can be sent to another process: the leader of a run
(:mod:`dinoskip.pipeline.scheduling`) makes it, and whoever gets it holds the node's lock while it works. What is
published does not depend on who made it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dinoskip.errors import DataError, OutputInUse
from dinoskip.io.files import TEMPORARY, differing_files, write_json
from dinoskip.io.locks import directory_lock
from dinoskip.io.output import refuse_links_above, remove, remove_aside
from dinoskip.io.parts import HelpEnded, Parts
from dinoskip.pipeline.artifacts import (
    ACCEPTED,
    AS,
    CHANGED_DATA,
    TIMING,
    Artifacts,
    Record,
    is_volatile,
    write_marks,
)
from dinoskip.pipeline.cleaning import RUNNING, remove_empty
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.stage import Stage, Task
from dinoskip.runtime.console import log
from dinoskip.runtime.environment import machine
from dinoskip.runtime.provenance import made

if TYPE_CHECKING:
    from dinoskip.runtime.distributed import ProcessGroup

T = TypeVar("T")
WAITING_SECONDS = 60.0  # between lines that say for whom a run waits
Reserve = Callable[[int], None]
Warn = Callable[[Iterable[str]], None]


@dataclass(frozen=True)
class NodeInput:
    """Place of the output of a node that another node reads.

    ``trained``: a training made it, which is repeated only if asked for. ``read`` is False for a store that the reader
    lists and does not open, and whose files are gone.
    """

    path: Path
    trained: bool = False
    read: bool = True


@dataclass(frozen=True)
class Assignment:
    """Description of one node of a study for the process that makes it.

    ``record`` is hashed into the ``key``, ``inputs`` are the outputs that the node reads, by role. ``device`` and
    ``workers`` (threads or processes that read images) are as of a command. ``may_replace``: whether a published
    output of the same key may be replaced. ``waits``: another run at this node is waited for; by default only where
    the node is no variant's own. ``limited``: room on the disk is asked of the leader before it is taken. ``remade``:
    the output's hash is known and its files, which were removed after use, are needed again. ``helps``: another process
    makes the node, and this one some of its parts.
    """

    study: Path
    node: Node
    key: str
    record: Record
    inputs: Mapping[str, NodeInput]
    device: str = "auto"
    workers: int = 0
    accepted: tuple[str, ...] = ()
    may_replace: bool = True
    waits: bool = False
    limited: bool = False
    remade: bool = False
    helps: bool = False

    @property
    def place(self) -> Path:
        """The folder whose lock says that somebody is at this node."""
        return self.study / RUNNING / self.node.id


@dataclass(frozen=True)
class Made:
    """Result of an assignment: the seconds that it took, or that another run had made it meanwhile."""

    seconds: float
    by_another: bool = False


def _task(work: Assignment, inputs: Mapping[str, Path], out: Path, parts: Parts) -> Task:
    """Return the task of a node's stage, with its inputs' paths and the folder that it writes into."""
    return Task(
        work.node.settings, work.node.runtime, inputs, out, work.device, work.workers, accepted=work.accepted,
        parts=parts,
    )  # fmt: skip


class Maker:
    """Makes nodes in this process, alone or, of stages that are ``together``, with the other ranks."""

    def __init__(self, study: Path, ranks: ProcessGroup | None = None, tell_changed: Warn | None = None) -> None:
        """``tell_changed`` is told of volatile files that are not as published."""
        self.artifacts, self.ranks = Artifacts(study), ranks
        self.together = False  # an error now is one of all ranks
        self._tell = tell_changed or _warn
        self._intact: dict[Path, list[Any]] = {}  # outputs that were found whole: the marks of their files then

    def make(self, work: Assignment, stage: Stage, reserve: Reserve | None = None) -> Made:
        """Make the node unless it is there by now.

        Raises :class:`OutputInUse` if another run is at it and is not waited for, and whatever the stage raises.
        """
        if work.helps:
            return Made(self._help(work, stage), by_another=True)
        with self.alone(work):
            if self._is_there(work, stage):
                Parts(self.artifacts.parts(work.node.id, work.key)).end()  # of a run that was killed
                return Made(0.0, by_another=True)
            return Made(self._run(work, stage, reserve))

    def _is_there(self, work: Assignment, stage: Stage) -> bool:
        """Whether another run has made it; of a training that may be replaced, all bytes are compared."""
        contents = stage.trains and work.may_replace
        standing = self.artifacts.standing(work.node.id, work.key, contents=contents)
        if standing.output is not None and not standing.damage:
            return True
        return not work.remade and self.artifacts.released(work.node.id, work.key) is not None

    @contextmanager
    def alone(self, work: Assignment) -> Iterator[None]:
        """Hold the node: one run makes it. Another run's is waited for if all variants share it, else refused."""
        told = float("-inf")
        refuse_links_above(work.place / ".lock", work.study / RUNNING)
        with ExitStack() as held:
            held.callback(remove_empty, work.place)  # after the lock is released
            while True:
                try:
                    held.enter_context(directory_lock(work.place))
                    break
                except OutputInUse as busy:
                    if work.node.variant and not work.waits:
                        raise
                    if time.monotonic() - told > WAITING_SECONDS:
                        log.info("%-44s waiting: %s", work.node.id, busy.message)
                        told = time.monotonic()
                time.sleep(0.2)  # shorter: more looks at a disk that may be a network's; longer: begins later
            yield

    def _run(self, work: Assignment, stage: Stage, reserve: Reserve | None) -> float:
        """Run a node and publish its output; return how many seconds it took."""
        node, key = work.node, work.key
        inputs = {role: self._input(given) for role, given in work.inputs.items()}
        resumed = stage.resumes and self.artifacts.partial(node.id, key).exists()
        out = self.artifacts.fresh_partial(node.id, key, keep=stage.resumes)
        began = time.monotonic()
        parts = Parts(self.artifacts.parts(node.id, key).absolute())
        task = _task(work, inputs, out, parts)
        if stage.together and self.ranks is not None:
            self.ranks.send((node.stage, task))
        self.together = stage.together  # an error from here on is one of all ranks
        with _same_directory(out):
            stage.run(replace(task, reserve=reserve))
            self.together = False
        for given in work.inputs.values():
            self._input(given)  # what was damaged meanwhile may have been read
        try:
            _check_outside(node, stage, out)
        except DataError:  # what was made is of other files than the key names
            remove_aside(out, "old")
            remove(self.artifacts.parts(node.id, key))
            raise
        seconds = time.monotonic() - began
        timing = {"seconds": round(seconds, 2), "machine": machine(work.device)}
        write_json(out / TIMING, {**timing, "resumed": True} if resumed else timing)
        info: dict[str, Any] = {
            "stage": node.stage,
            "made": made(),
            **({ACCEPTED: list(work.accepted)} if work.accepted else {}),
        }
        if stage.tells is not None and (same := self.artifacts.telling(node.id, stage.tells, stage.tells(out))):
            info[AS] = same
        every = None if node.every is None else node.every()
        self.artifacts.publish(node.id, key, work.record, info, replace=work.may_replace, every=every)
        parts.end()
        return seconds

    def _help(self, work: Assignment, stage: Stage) -> float:
        """Make parts of a node's work until none is left to begin; return how many seconds that took.

        The process that makes the node verifies its inputs, and what is written beside the parts is thrown away.
        """
        began, folder = time.monotonic(), self.artifacts.parts(work.node.id, work.key).absolute()
        inputs = {role: given.path for role, given in work.inputs.items()}
        try:
            with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder, ignore_cleanup_errors=True) as aside:
                stage.run(_task(work, inputs, Path(aside), Parts(folder, helps=True)))
        except HelpEnded:
            pass
        except FileNotFoundError:
            if folder.is_dir():  # else the node was published just now
                raise
        return time.monotonic() - began

    def _input(self, given: NodeInput) -> Path:
        """Return the path of an input, whose files are verified if it is opened."""
        return self._verified(given) if given.read else given.path

    def _verified(self, given: NodeInput) -> Path:
        """The output of a node that is about to be read, or was; :class:`DataError` if it is damaged.

        Its bytes are compared once, and again where a file of it has been written to since. Of volatile files that
        have changed it warns.
        """
        path = given.path
        marks, known = write_marks(path), self._intact.get(path)
        if marks != known:
            found = differing_files(path, inner=known is not None)
            problems = [text for name, text in found.items() if not is_volatile(name)]
            if problems:
                hint = f"remove {path}: the same command makes it again"
                if given.trained:
                    hint = "put the file back, or give --retrain to train again in its place"
                raise DataError(f"damaged output: {problems[0]}", hint)
            self._tell(found.values())
            self._intact[path] = marks
        return path


def lead_or_follow(
    device: str,
    same: Mapping[str, Any],
    study: Path,
    stage_named: Callable[[str], Stage],
    lead: Callable[[Maker], T],
    tell_changed: Warn | None = None,
) -> T | None:
    """Join the ranks of this job. Rank 0 returns what ``lead`` returns; the others run what its maker sends: None.

    ``same`` must be the same on all ranks. At the end of ``lead``, or at its error, the others are let go, unless they
    have left with it.
    """
    from dinoskip.runtime.distributed import group_without_timeout, world  # torch

    with world(device, same, study) as here:
        ranks = group_without_timeout(here)
        if not here.is_main:
            for stage, task in ranks.received():
                stage_named(stage).run(task)
            return None
        maker = Maker(study, ranks, tell_changed)
        try:
            return lead(maker)
        finally:
            if not maker.together:
                ranks.send(None)


def _warn(lines: Iterable[str]) -> None:
    for line in lines:
        log.warning("%s; a log or note, for which nothing is made again", line)


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
