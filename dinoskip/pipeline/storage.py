"""Outputs that may go when all that reads them is done, so that a study fits on its disk: feature stores.

What is removed leaves its hash behind (:meth:`dinoskip.pipeline.artifacts.Artifacts.release`): all that was made of it
stays cached, and it is made again only for a stage that has to run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dinoskip.errors import DiskFull
from dinoskip.io.locks import held_by
from dinoskip.pipeline.cleaning import RUNNING
from dinoskip.pipeline.graph import Node, Planner
from dinoskip.pipeline.sections import StorageRules
from dinoskip.pipeline.stage import Stage
from dinoskip.runtime.console import human_bytes, log


def readers_of(nodes: Sequence[Node], stages: Mapping[str, Stage]) -> dict[str, list[str]]:
    """Return, for every node with a disposable output, the nodes that read it, in their order."""
    readers: dict[str, list[str]] = {node.id: [] for node in nodes if stages[node.stage].disposable}
    for node in nodes if readers else ():
        for source in node.needs.values() if stages[node.stage].reads_stores else ():
            if source in readers:
                readers[source].append(node.id)
    return {node: of for node, of in readers.items() if of}


@dataclass
class Stores:
    """The disposable outputs of one study; ``held`` are the nodes that this run is at.

    ``granted`` are the bytes that nodes which other processes are writing may take.
    """

    study: Path
    planner: Planner
    stages: Mapping[str, Stage]
    rules: StorageRules
    held: set[str] = field(default_factory=set)
    granted: dict[str, int] = field(default_factory=dict)

    def reads(self, node: Node) -> list[str]:
        """Nodes with disposable outputs that ``node`` reads."""
        return [source for source in node.needs.values() if node.id in self.planner.readers.get(source, ())]

    def present(self, node_id: str) -> Path | None:
        """Return the path of the output of a node; None if it has none or its files were removed."""
        key = self.planner.keys.get(node_id)
        if key is None or self.planner.artifacts.find(node_id, key) is None:
            return None
        return self.planner.artifacts.path(node_id, key)

    def used_up(self) -> list[tuple[Node, Path]]:
        """Outputs that are there and that no stage of the plan will read again, the oldest first."""
        readers, done = self.planner.readers, self.planner.outputs
        there = [
            (node, path)
            for node in self.planner.nodes
            if node.id in readers
            and all(reader in done for reader in readers[node.id])
            and (path := self.present(node.id)) is not None
            and not self._read_elsewhere(node)
        ]
        return sorted(there, key=lambda entry: entry[1].stat().st_mtime)

    def _read_elsewhere(self, node: Node) -> bool:
        """Whether another run, perhaps of other settings, is at a stage of the same variant."""
        running = self.study / RUNNING
        for lock in running.rglob(".lock"):
            place = lock.parent.relative_to(running).as_posix()
            if node.variant in place.split("/") and place not in self.held and held_by(lock.parent) is not None:
                return True
        return False

    def tidy(self) -> None:
        """Remove all that is used up, where that is the rule."""
        for node, path in self.used_up() if self.rules.at_once else ():
            self._release(node, path)

    def make_room(self, node: Node, needed: int) -> None:
        """Remove what is used up until ``needed`` bytes more for ``node`` are within the limit.

        Raises :class:`DiskFull` if they cannot be.
        """
        if self.rules.limit is None:
            return
        taken = self._bytes(without=node)
        for used, path in self.used_up():
            if taken + needed <= self.rules.limit:
                break
            taken -= size_below(path)
            self._release(used, path)
        if taken + needed > self.rules.limit:
            raise DiskFull(
                f"{node.id}: its features need {human_bytes(needed)}; storage.limit is {human_bytes(self.rules.limit)}"
                f" and other stores, still needed or of other settings, have {human_bytes(taken)}",
                "raise storage.limit, evaluate fewer blocks, set evaluate.features=window, or look at `dinoskip gc`",
            )

    def _bytes(self, without: Node) -> int:
        """Bytes of all stores of the study, those being written included but for that of a node.

        Of a store that another process writes, what it may take counts.
        """
        others = {node: size for node, size in self.granted.items() if node != without.id}
        keys, artifacts = self.planner.keys, self.planner.artifacts
        leave = [artifacts.partial(node, keys[node]) for node in (without.id, *others)]
        names = [name for name, stage in self.stages.items() if stage.disposable]
        return sum(others.values()) + sum(size_below(artifacts.root / name, leave=leave) for name in names)

    def _release(self, node: Node, path: Path) -> None:
        size = size_below(path)
        self.planner.artifacts.release(node.id, self.planner.keys[node.id])
        log.info("%-44s used up: %s removed", node.id, human_bytes(size))


def size_below(folder: Path, leave: Collection[Path] = ()) -> int:
    """Bytes of all files below a folder but for those below some others."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # published or removed by a worker meanwhile
            if path.is_file() and not any(path.is_relative_to(other) for other in leave):
                total += path.stat().st_size
    return total
