"""Schedule of a run: its leader hands every node whose inputs are there to an engine.

An engine (:mod:`dinoskip.pipeline.executor`) has room for a number of nodes at once; the leader keeps it full, the node
with the longest path behind it first, so that no worker waits at the end for one long chain. With one worker the order
is that of the plan. What a node's process published is read from the disk: no result travels back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from dinoskip.errors import ConfigError, DinoskipError, DiskFull, Preempted, first_line, memory_refused
from dinoskip.io.parts import parts_left
from dinoskip.pipeline.ahead import Ahead
from dinoskip.pipeline.graph import Node, PlannedNode, Planner
from dinoskip.pipeline.making import Assignment, Made
from dinoskip.pipeline.progress import StudyProgress, Work, rates, work_of
from dinoskip.pipeline.room import answer, wanted_room
from dinoskip.pipeline.stage import Stage
from dinoskip.pipeline.storage import Stores
from dinoskip.runtime.console import log

TICK = 0.5  # seconds between looks at who waits for room on the disk, while nothing ends
STOPPING = 900.0  # seconds that workers have, once told, to reach a safe point: as rank_patience of a training
GUESSED_RATE = 1e11  # operations a second of a kind that was not measured here, which trains or exports features
GUESSED_READING = 1e7  # numbers read a second by any other: slower than most, so that no long one is taken for small
COUNTED = {"pretrain", "supervise", "sweep", "features"}  # kinds whose work is operations
ADVICE = "make it by `dinoskip run` without --only, --from and --variant"


Order = tuple[Assignment, Stage]
"""A node to be made, and the stage that makes it."""


class NodeEngine(Protocol):
    """Engine that runs jobs of one node or several, at most ``capacity`` at once; ``name`` describes it.

    ``memory`` is the number of bytes that the graphs and windows of all its workers may take together, and ``cores``
    the number of cores of a worker. ``memory`` is None where each worker has a machine of its own. A job costs time of
    its own where ``group_seconds`` are not 0: nodes then share one until they are expected to take so long.
    """

    name: str
    capacity: int
    memory: int | None
    cores: int | None
    group_seconds: float

    def submit(self, orders: Sequence[Order]) -> list[Future[Made]]:
        """Begin a job: a future for each node, whose error is the node's, or that its worker is gone."""

    def stop(self) -> None:
        """Tell all that is running to stop at its next safe point."""

    def close(self) -> None:
        """Let the workers go."""


@dataclass
class Flight:
    """A node that a worker is at."""

    node: Node
    job: int
    future: Future[Made] = field(default_factory=Future)
    remade: bool = False
    room: bool = False  # it has what it wanted on the disk, or wants nothing


@dataclass
class Schedule:
    """One run of the chosen nodes of a plan.

    ``assign`` makes the assignment of a node that is ready, ``retries`` is how often a node is begun again whose worker
    was lost. ``seconds`` that each node is expected to take decide their order, ``memory`` in bytes how many of them
    fit beside one another.
    """

    planner: Planner
    stores: Stores
    stages: Mapping[str, Stage]
    engine: NodeEngine
    assign: Callable[[Node, bool, Mapping[str, Path]], Assignment]
    progress: StudyProgress
    chosen: Collection[str]
    seconds: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    retries: int = 2
    happened: dict[str, str] = field(default_factory=dict)
    flights: dict[str, Flight] = field(default_factory=dict)
    helpers: list[Flight] = field(default_factory=list)  # at parts of nodes that others are at
    ready: dict[str, str] = field(default_factory=dict)  # and why they run
    tries: dict[str, int] = field(default_factory=dict)
    failed_help: dict[str, int] = field(default_factory=dict)  # times that helpers failed, by node
    jobs: int = 0  # that were begun

    def __post_init__(self) -> None:
        self._paths = longest_paths(self.planner.nodes, self.seconds)
        self.ahead = Ahead(self.planner, self.stages, self.chosen)
        self._left = [node.id for node in self.planner.nodes]
        self._by_id = {node.id: node for node in self.planner.nodes}
        self._places = {node.id: place for place, node in enumerate(self.planner.nodes)}

    def run(self, steps: Sequence[PlannedNode]) -> dict[str, str]:
        """Make all that is chosen and not cached in the plan ``steps``; return what happened to each chosen node.

        Raises :class:`ConfigError` where an input is not there and not chosen. Whatever stops it, all that is running
        is told to stop, and waited for.
        """
        self._refuse_unmet(steps)
        try:
            while True:
                self._settle()
                self._hand_out()
                self._lend()
                if not self.flights:
                    self._dismiss()
                    return self.happened
                self._collect()
        except BaseException:
            self._stop()
            raise
        finally:
            self.ahead.close()

    def _refuse_unmet(self, steps: Sequence[PlannedNode]) -> None:
        unfinished = {step.node.id for step in steps if step.state != "cached"}
        for step in steps:
            if step.node.id not in self.chosen or step.node.id not in unfinished:
                continue
            unmet = [source for source in step.node.needs.values() if source in unfinished - set(self.chosen)]
            if unmet:
                raise ConfigError(f"{step.node.id}: cannot run before {', '.join(sorted(set(unmet)))}", ADVICE)

    # --- what can begin -------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Find what is ready, and what is cached after all, by the outputs that are known now."""
        changed = True
        while changed:
            changed = False
            for name in list(self._left):
                if name in self.flights or name in self.ready:
                    continue
                node = self._by_id[name]
                broken = next((source for source in node.needs.values() if self.happened.get(source) == "failed"), None)
                if broken is not None and name in self.chosen:
                    self.progress.skipped(node, broken)
                    self._end(name, "failed")
                    changed = True
                elif all(source in self.planner.outputs for source in node.inputs.values()):
                    changed = self._step(node) or changed

    def _step(self, node: Node) -> bool:
        """Take one node's state; whether it is decided now."""
        step = self.planner.step(node)
        self.ahead.keep(node)
        if step.state == "waiting":  # by what has no effect on its output, or an input that fails below
            return False
        if step.state == "run" and node.id in self.chosen:
            self.ready[node.id] = step.reason
            return False
        self._end(node.id, "cached")
        return True

    def _end(self, name: str, how: str) -> None:
        self._left.remove(name)
        if name in self.chosen:
            self.happened.setdefault(name, how)

    # --- handing out ----------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Fill the engine; small nodes share a job."""
        small: list[Node] = []
        for name in self._in_order():
            if self._free() <= 0:
                return
            node = self._by_id[name]
            if self._waits_for_room(node) or self._waits_for_memory(node, small) or not self._stores_there(node):
                continue
            if self._is_small(node):
                small.append(node)
                if sum(self._expected(of) for of in small) >= self.engine.group_seconds:
                    self._fly(small)
                    small = []
            elif self._free() > bool(small):  # the last place is that of the small ones, which are more urgent
                self._fly([node])
                if self.engine.capacity == 1:  # what has become ready may come before the others in the plan
                    return
        if small and self._free() > 0:
            self._fly(small)

    def _free(self) -> int:
        return self.engine.capacity - len({flight.job for flight in (*self.flights.values(), *self.helpers)})

    def _expected(self, node: Node) -> float:
        return self.seconds.get(node.id, 1.0)

    def _is_small(self, node: Node) -> bool:
        """Whether a node may share a job: quick, of one rank, and lost in no job before, so that none is lost by it."""
        grouped = self._expected(node) < self.engine.group_seconds and self.retries > 0 and node.id not in self.tries
        waits = self.stores.rules.limit is not None and self.stages[node.stage].disposable
        return grouped and not waits and not self.stages[node.stage].together

    def _waits_for_memory(self, node: Node, beside: Sequence[Node]) -> bool:
        """Whether the node does not fit beside what runs; one that would not fit alone runs alone.

        Those of the job that it would share run before or after it.
        """
        needed = self.memory.get(node.id, 0.0)
        if self.engine.memory is None or not needed:
            return False
        names = [*self.flights, *(flight.node.id for flight in self.helpers), *(of.id for of in beside)]
        taken = sum(self.memory.get(name, 0.0) for name in names)
        return taken > 0 and taken + needed > self.engine.memory

    def _in_order(self) -> list[str]:
        """The nodes that are ready, the most urgent first."""
        if self.engine.capacity == 1:
            return sorted(self.ready, key=self._places.__getitem__)
        scarce = self.stores.rules.limit is not None or self.stores.rules.at_once

        def urgency(name: str) -> tuple[bool, float, int]:
            makes_store = scarce and name in self.planner.readers  # readers first: they let a store go
            return makes_store, -self._paths.get(name, 0.0), self._places[name]

        return sorted(self.ready, key=urgency)

    def _waits_for_room(self, node: Node) -> bool:
        """Of nodes that write stores under a limit one at a time asks for room: a worker stays for the readers."""
        if self.stores.rules.limit is None or not self.stages[node.stage].disposable or self.engine.capacity == 1:
            return False
        return any(self.stages[of.node.stage].disposable and not of.room for of in self.flights.values())

    def _stores_there(self, node: Node) -> bool:
        """Whether the stores that ``node`` reads have their files; those that were removed after use are made again."""
        there = True
        for source in self.stores.reads(node):
            if self.stores.present(source) is not None and source not in self.flights:
                continue
            there = False
            if source not in self.chosen:
                raise ConfigError(f"{node.id}: cannot run before {source}, whose files were removed after use", ADVICE)
            if source not in self.flights and self._free() > 0:
                log.info("%s: made again for %s, it was removed after use", source, node.id)
                self._fly([self._by_id[source]], remade=True)
        return there

    def _fly(self, nodes: Sequence[Node], *, remade: bool = False) -> None:
        """Begin a job of some nodes."""
        self.jobs += 1
        orders = []
        for node in nodes:
            if not remade:
                self.progress.starts(node, self.ready.pop(node.id))
            self.tries[node.id] = self.tries.get(node.id, 0) + 1
            self.stores.held.add(node.id)
            self.flights[node.id] = Flight(node, self.jobs, remade=remade)
            orders.append((self.assign(node, remade, self.ahead.made), self.stages[node.stage]))
        try:
            for node, future in zip(nodes, self.engine.submit(orders), strict=True):
                self.flights[node.id].future = future
        except BaseException:  # nobody is at them: there is nothing to wait for
            for node in nodes:
                del self.flights[node.id]
                self.stores.held.discard(node.id)
            raise

    # --- help with big nodes --------------------------------------------------------------------------

    def _lend(self) -> None:
        """Let workers for whom there is no node make parts of nodes that others are at, the longest path first."""
        if self.engine.capacity == 1:
            return
        for name in sorted(self.flights, key=lambda name: (-self._paths.get(name, 0.0), self._places[name])):
            node = self._by_id[name]
            left = parts_left(self.planner.artifacts.parts(name, self.planner.keys[name]))
            left -= sum(flight.node.id == name for flight in self.helpers)  # who may just have begun none
            while left > 0 and self._free() > 0 and self._may_help(node):
                self.jobs += 1
                work = replace(self.assign(node, False, self.ahead.made), helps=True)
                (future,) = self.engine.submit([(work, self.stages[node.stage])])
                self.helpers.append(Flight(node, self.jobs, future))
                log.debug("%s: one more worker makes parts of it", name)
                left -= 1

    def _may_help(self, node: Node) -> bool:
        return self.failed_help.get(node.id, 0) <= self.retries and not self._waits_for_memory(node, ())

    def _help_ended(self, flight: Flight) -> None:
        """A helper has come back. Its failure is none of the node's, whose own worker makes what is left."""
        self.helpers.remove(flight)
        try:
            flight.future.result()
        except (Exception, CancelledError) as error:
            name = flight.node.id
            self.failed_help[name] = self.failed_help.get(name, 0) + 1
            log.debug("%s: a helper failed: %s", name, first_line(error))

    def _dismiss(self) -> None:
        """Let go of helpers that are queued, and wait for the others, who find that nothing is left."""
        if self.helpers:
            self.engine.stop()
            wait([flight.future for flight in self.helpers], STOPPING)
            self.helpers.clear()

    # --- what came of it ------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Wait until something ends, and take what ended."""
        every = [flight.future for flight in (*self.flights.values(), *self.helpers)]
        done, _ = wait(every, TICK, FIRST_COMPLETED)
        for flight in [flight for flight in self.helpers if flight.future in done]:
            self._help_ended(flight)
        for flight in [flight for flight in self.flights.values() if flight.future in done]:
            del self.flights[flight.node.id]
            self.stores.held.discard(flight.node.id)
            self.stores.granted.pop(flight.node.id, None)
            self._landed(flight)
            self.stores.tidy()
        self.ahead.look(flight.node for flight in self.flights.values())
        self._give_room()

    def _landed(self, flight: Flight) -> None:
        node = flight.node
        try:
            made = flight.future.result()
        except (BrokenExecutor, CancelledError, Preempted) as error:
            return self._lost(flight, first_line(error))
        except DiskFull:  # of all nodes' disk
            raise
        except DinoskipError as error:
            return self._failed(node, error)
        except Exception as error:
            if (refused := memory_refused(error)) is not None:
                return self._lost(flight, first_line(refused))
            log.debug("%s", node.id, exc_info=error)
            return self._failed(node, DinoskipError(f"{node.id}: {type(error).__name__}: {first_line(error)}"))
        if flight.remade:
            return None
        if not made.by_another:
            self.planner.made.add(node.id)
        step = self.planner.step(node)
        if step.state != "cached":
            return self._lost(flight, "what it published is not there")
        self.ahead.check(node)
        self._end(node.id, "cached" if made.by_another else "done")
        if not made.by_another:
            self.progress.finished(node, made.seconds, self.planner.artifacts.path(node.id, str(step.key)))
        return None

    def _lost(self, flight: Flight, why: str) -> None:
        """Its worker was killed, preempted or out of memory: the node goes back, or has failed."""
        node = flight.node
        if self.tries[node.id] <= self.retries:
            log.warning("%s: %s: begun again, %d of %d", node.id, why, self.tries[node.id], self.retries)
            if not flight.remade:
                self.ready[node.id] = "its worker was lost"
            return
        self._failed(
            node,
            DinoskipError(
                f"{node.id}: lost {self.tries[node.id]} times: {why}", "see its file in the study's folder logs"
            ),
        )

    def _failed(self, node: Node, error: DinoskipError) -> None:
        self.progress.failed(node, error)
        self.ready.pop(node.id, None)
        if node.id in self._left:
            self._end(node.id, "failed")
        self.happened[node.id] = "failed"

    def _give_room(self) -> None:
        """Answer the workers that want room on the disk; one is refused only where nobody can make any."""
        for flight in self.flights.values():
            if flight.room or (asked := wanted_room(self.stores.study, flight.node.id)) is None:
                continue
            others = [other for other in self.flights.values() if other is not flight]
            try:
                self.stores.make_room(flight.node, asked)
            except DiskFull as full:
                if not others and not any(self._in_order()):
                    answer(self.stores.study, flight.node.id, full)
                continue
            self.stores.granted[flight.node.id] = asked
            flight.room = True
            answer(self.stores.study, flight.node.id, None)

    def _stop(self) -> None:
        """Tell all that is running to stop, and wait until it has."""
        if self.flights or self.helpers:
            self.engine.stop()
            wait([flight.future for flight in (*self.flights.values(), *self.helpers)], STOPPING)
            self.flights.clear()
            self.helpers.clear()


def expected_seconds(nodes: Sequence[Node], works: Mapping[str, Work], past: Mapping[str, float]) -> dict[str, float]:
    """Seconds that each node is expected to take.

    By the ``past`` seconds of finished nodes and the ``works`` of all; of kinds without a time by the operations that
    are counted, at :data:`GUESSED_RATE`, or the numbers that they read, at :data:`GUESSED_READING`.
    """
    measured = rates(past, works)
    own: dict[str, float] = {}
    for node in nodes:
        kind, work = work_of(works, node.id)
        guessed = GUESSED_RATE if kind.partition(" ")[0] in COUNTED else GUESSED_READING
        own[node.id] = measured[kind] * work if kind in measured else max(1.0, work / guessed)
    return own


def longest_paths(nodes: Sequence[Node], seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the longest path that begins with each of the ``nodes``, which are in order of execution."""
    paths = {node.id: seconds.get(node.id, 0.0) for node in nodes}
    for node in reversed(nodes):  # readers come after what they read
        for source in node.needs.values():
            if source in paths:
                paths[source] = max(paths[source], seconds.get(source, 0.0) + paths[node.id])
    return paths
