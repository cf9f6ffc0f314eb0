"""Weights of epochs whose checkpoints a training has published while it goes on, so that they are evaluated meanwhile.

The stage that copies them runs here, in the leader, into a folder aside. Its output's hash is what the published one
will have, so all that reads it has its final key; when the training has ended the stage itself runs, too, and must give
that hash.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dinoskip.errors import DinoskipError
from dinoskip.io.files import write_manifest
from dinoskip.io.output import remove
from dinoskip.pipeline.artifacts import LEFT_OUT, VOLATILE
from dinoskip.pipeline.graph import Node, Planner
from dinoskip.pipeline.stage import Stage, Task
from dinoskip.runtime.console import log

EVERY = 5.0  # seconds between looks for new checkpoints, which come minutes apart
NAME = f"ahead-{os.getpid()}"  # in place of a key, which is not known before the training ends


@dataclass
class Ahead:
    """Outputs made of trainings that go on: ``made`` are their folders, ``hashes`` what other nodes' keys have of them.

    ``chosen`` are the nodes that the run is to make.
    """

    planner: Planner
    stages: Mapping[str, Stage]
    chosen: Collection[str]
    made: dict[str, Path] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    _looked: float = 0.0

    def look(self, trainings: Iterable[Node]) -> bool:
        """Make what the running ``trainings`` have published by now; whether there is any that is new."""
        if time.monotonic() - self._looked < EVERY:
            return False
        self._looked = time.monotonic()
        running = {node.id for node in trainings if self.stages[node.stage].trains}
        before = len(self.made)
        for node in self.planner.nodes if running else ():
            if node.id in self.made or node.id not in self.chosen or node.id in self.planner.outputs:
                continue
            copies = self.stages[node.stage].of_unfinished
            sources = list(node.inputs.items())
            if copies is None or len(sources) != 1 or sources[0][1] not in running:
                continue
            role, training = sources[0]
            partial = self.planner.artifacts.partial(training, self.planner.keys[training])
            if copies(node.settings, partial):
                self._make(node, role, partial)
        return len(self.made) > before

    def _make(self, node: Node, role: str, partial: Path) -> None:
        artifacts, stage = self.planner.artifacts, self.stages[node.stage]
        out = artifacts.fresh_partial(node.id, NAME, keep=False)
        try:
            stage.run(Task(node.settings, node.runtime, {role: partial}, out, "cpu", 0))
        except (DinoskipError, OSError) as error:  # it was removed or replaced just now: the next look will tell
            log.debug("%s: %s", node.id, error)
            remove(out)
            return
        self.hashes[node.id] = write_manifest(out, {"node": node.id}, VOLATILE, LEFT_OUT)
        self.planner.outputs[node.id], self.made[node.id] = self.hashes[node.id], out
        log.info("%s: its checkpoint is there; it is evaluated while the training goes on", node.id)

    def keep(self, node: Node) -> None:
        """Let readers of a node's output go on while its stage runs once more, after the training's end."""
        if node.id in self.hashes:
            self.planner.outputs.setdefault(node.id, self.hashes[node.id])

    def check(self, node: Node) -> None:
        """:class:`DinoskipError` where the output of a node is another than what was read ahead of it."""
        if node.id in self.hashes and self.planner.outputs.get(node.id) not in {None, self.hashes[node.id]}:
            raise DinoskipError(
                f"{node.id}: is not what was evaluated while its training went on", "run the same command again"
            )

    def close(self) -> None:
        """Remove all folders aside."""
        for path in self.made.values():
            if path.is_dir():
                remove(path)
        self.made.clear()
