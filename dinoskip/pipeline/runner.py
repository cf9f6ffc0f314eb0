"""Run a plan: stage by stage, each output built aside and published whole; killed anywhere, it continues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dinoskip.errors import first_line
from dinoskip.io.files import hash_of
from dinoskip.io.output import refuse_link
from dinoskip.pipeline.artifacts import Artifacts
from dinoskip.pipeline.cleaning import RUNNING, at_work
from dinoskip.pipeline.executor import InProcess
from dinoskip.pipeline.graph import Node, PlannedNode, Planner, record_of, refuse_damaged
from dinoskip.pipeline.making import Assignment, Maker, NodeInput, Reserve, lead_or_follow
from dinoskip.pipeline.progress import StudyProgress, Work, past_seconds
from dinoskip.pipeline.scheduling import NodeEngine, Schedule, expected_seconds
from dinoskip.pipeline.sections import StorageRules
from dinoskip.pipeline.stage import Stage
from dinoskip.pipeline.storage import Stores, readers_of
from dinoskip.runtime.cores import cores_counted_as
from dinoskip.runtime.environment import machine


@dataclass(frozen=True)
class Spread:
    """That nodes are handed to workers: the ``engine`` of them, how often a lost node is begun again, who is told.

    ``waits``: workers wait for another run at their node, such as those of a leader that has died.
    """

    engine: NodeEngine
    retries: int = 2
    waits: bool = False


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
        finished training that is damaged trained again, in its place. ``look`` raises if results cannot be written or
        a network cannot be opened, ``room`` if the nodes that are to run do not fit on the disk.
        """
        self.study, self.works, self.memory, self.results = study, works, memory, results or study
        self.artifacts = Artifacts(study)
        trainings = {name for name, stage in stages.items() if stage.trains}
        self.planner = Planner(nodes, self.artifacts, readers_of(nodes, stages), trainings=trainings, retrain=retrain)
        self.stages, self.look, self.room = stages, look, room
        self._stage_of = {node.id: node.stage for node in nodes}
        self.stores = Stores(study, self.planner, stages, storage or StorageRules())
        self.device, self.workers, self.accepted = device, workers, list(accepted)
        self.failed: dict[str, str] = {}  # what a run's workers could not make, and why

    def plan(self) -> list[PlannedNode]:
        """Return the present state of every node (cached, run or waiting) and the reason for it."""
        return self.planner.plan()

    def progress(self, chosen: set[str]) -> StudyProgress:
        """Return the progress of a run, which logs at once how many chosen stages it runs, and about how long."""
        steps = [step for step in self.planner.plan() if step.node.id in chosen]
        missing = [step.node for step in steps if step.state != "cached"]
        return StudyProgress(missing, len(steps) - len(missing), self.seconds(), self.works)

    def seconds(self) -> dict[str, float]:
        """Seconds that finished nodes took on this machine, known after :meth:`plan`."""
        return past_seconds(self.published(), machine(self.device))

    def run(self, chosen: set[str], spread: Callable[[], Spread] | None = None) -> dict[str, str]:
        """Bring the chosen nodes up to date; return what happened to each (``cached`` or ``done``).

        ``spread`` gives workers to hand them to; without, this process makes them, and ranks other than the first do
        what it tells them and return nothing. Several runs may work at one study, each at variants of its own; for
        what the variants share, one makes it and the others wait.
        Raises :class:`ConfigError` when an input of a chosen node is not there and not chosen itself,
        :class:`OutputInUse` when another run is at a node of the same variant, and whatever a stage raises.
        """
        if spread is not None:
            return self._guarded(lambda: self._spread(chosen, spread()))
        same = {node.id: hash_of(node.plain)[:12] for node in self.planner.nodes} | {"stages": sorted(chosen)}

        def lead(maker: Maker) -> dict[str, str]:
            return self._guarded(lambda: self._all(chosen, Spread(InProcess(maker, self._reserve))))

        return lead_or_follow(
            self.device, same, self.study, self.stages.__getitem__, lead, self.planner.tell_changed
        ) or {}  # fmt: skip

    def _guarded(self, action: Callable[[], dict[str, str]]) -> dict[str, str]:
        """``action`` while this run says that it is at work, in a study that may be written to."""
        for name in ("stages", "records", RUNNING):
            refuse_link(self.study / name)
        self.look()
        with at_work(self.study):
            return action()

    def _spread(self, chosen: set[str], spread: Spread) -> dict[str, str]:
        try:
            return self._all(chosen, spread)
        finally:
            spread.engine.close()

    def _all(self, chosen: set[str], spread: Spread) -> dict[str, str]:
        for node in self.planner.nodes:
            self.planner.external(node)
        steps = self.planner.plan()  # what is cached further on decides which stores are used up
        refuse_damaged(steps, chosen)
        progress = self.progress(chosen)
        self.stores.tidy()
        missing = {step.node.id for step in steps if step.node.id in chosen and step.state != "cached"}
        if self.room is not None and missing:
            self.room(self, missing)
        engine, seconds, memory = spread.engine, dict[str, float](), dict[str, float]()
        if engine.capacity > 1:
            past = self.seconds() or past_seconds(self.published())  # of other machines, rather than none
            seconds = expected_seconds(self.planner.nodes, self.works(), past)
            if engine.memory is not None:
                with cores_counted_as(engine.cores):
                    memory = dict(self.memory())
        happened = Schedule(
            self.planner, self.stores, self.stages, engine, partial(self._assignment, spread), progress, chosen,
            seconds, memory, spread.retries,
        ).run(steps)  # fmt: skip
        self.failed = {name: first_line(error) for name, error in progress.failures.items()}
        progress.end()
        return happened

    def _reserve(self, work: Assignment) -> Reserve:
        return partial(self.stores.make_room, work.node)

    def _assignment(self, spread: Spread, node: Node, remade: bool, ahead: Mapping[str, Path]) -> Assignment:
        """Return the assignment of a node that is ready; ``ahead`` are outputs made of trainings that go on."""
        stage, elsewhere = self.stages[node.stage], not isinstance(spread.engine, InProcess)
        return Assignment(
            self.study.absolute() if elsewhere else self.study,
            replace(node, external=None),
            self.planner.keys[node.id],
            record_of(node, self.planner.outputs, self.planner.external(node)),
            {role: self._input(stage, source, ahead) for role, source in node.needs.items()},
            self.device,
            self.workers,
            tuple(self.accepted),
            may_replace=not stage.trains or self.planner.retrain,
            waits=spread.waits,
            limited=elsewhere and self.stores.rules.limit is not None and stage.disposable,
            remade=remade,
        )

    def _input(self, stage: Stage, source: str, ahead: Mapping[str, Path]) -> NodeInput:
        """Return the input of ``stage`` from a node; a store that was removed is not opened if the stage reads none."""
        key = self.planner.keys.get(source)
        if source in ahead and (key is None or self.artifacts.find(source, key) is None):
            return NodeInput(ahead[source].absolute())
        gone = not stage.reads_stores and self.artifacts.released(source, self.planner.keys[source]) is not None
        return NodeInput(self._output(source), self.stages[self._stage_of[source]].trains, not gone)

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
        places = (self.artifacts.partial, self.artifacts.parts)
        return {place(node, key) for node, key in known.items() if node not in done for place in places}

    def published(self) -> dict[str, Path]:
        """Directories that the current plan uses, by node (known after :meth:`plan`)."""
        return {node.id: path for node in self.planner.nodes if (path := self.output(node.id)) is not None}
