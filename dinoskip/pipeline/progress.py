"""Progress messages of a run: the stage and the number of stages, its result, its time and the time of the rest.

The time of the rest is estimated from stages of the same kind on this machine, and is left out where there were none.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dinoskip.errors import DataError, DinoskipError
from dinoskip.io.files import read_json
from dinoskip.pipeline.graph import Node
from dinoskip.results.rows import EvalResult, best_by_heldout, read_rows
from dinoskip.runtime.console import duration, log, read_metrics

NO_TIME = "not known: no stage of this study has run on this machine"
Work = tuple[str, float]
"""Of what kind a node is, and how much of it there is to do: nodes of a kind take as long as they have work."""


class StudyProgress:
    """Counts the stages of a run and says a line for each that ends."""

    def __init__(
        self,
        missing: Sequence[Node],
        cached: int,
        past: Mapping[str, float],
        works: Callable[[], Mapping[str, Work]] = dict,
    ) -> None:
        """``missing`` are the nodes to run, ``past`` seconds that finished nodes took on this machine.

        ``works`` gives the work of nodes; it is asked once a time is known. Without, a kind is a stage.
        """
        self._ask = works
        self._works: Mapping[str, Work] | None = None
        self._left = {node.id: node.stage for node in missing}
        self._total, self._done = len(missing), 0
        self._seconds = dict(past)
        self._began = time.monotonic()
        self.failures: dict[str, DinoskipError] = {}
        if missing:
            rest = self._rest()
            log.info("%d stages to run, %d cached%s", self._total, cached, rest)

    def starts(self, node: Node, reason: str) -> None:
        """Log at debug level that a node begins, and why it runs."""
        log.debug("%s %s running (%s)", self._count(node, ended=False), node.id, reason)

    def finished(self, node: Node, seconds: float, out: Path) -> None:
        """A node has been published in ``out``."""
        self._end(node)
        self._seconds[node.id] = seconds
        spent = duration(time.monotonic() - self._began)
        log.info(
            "%s %-44s %s", self._count(node), node.id,
            "; ".join(filter(None, (result_of(out), duration(seconds), f"{spent} so far{self._rest()}"))),
        )  # fmt: skip

    def failed(self, node: Node, error: DinoskipError) -> None:
        """A node has failed; what does not need it goes on."""
        self._end(node)
        self.failures[node.id] = error
        log.error("%s %-44s failed: %s", self._count(node), node.id, error)

    def skipped(self, node: Node, source: str) -> None:
        """A node cannot run since ``source`` has failed."""
        self._end(node)
        log.info("%s %-44s left out: %s has failed", self._count(node), node.id, source)

    def end(self) -> None:
        """Say that all is done; with failures raise the first, a :class:`DinoskipError`, after naming all."""
        if not self.failures:
            if self._total:
                log.info("%d stages done in %s", self._done, duration(time.monotonic() - self._began))
            return
        first = next(iter(self.failures.values()))
        if len(self.failures) > 1:
            for name, error in self.failures.items():
                log.error("failed: %s: %s", name, error)
        raise first

    def _end(self, node: Node) -> None:
        self._left.pop(node.id, None)
        self._done += 1

    def _count(self, node: Node, *, ended: bool = True) -> str:
        total = max(self._total, self._done + (not ended))
        return f"[{self._done + (not ended):>{len(str(total))}}/{total}]"

    def _rest(self) -> str:
        """``, about 3m left (2 stages not timed yet)`` by times of the same kinds; nothing if all have none."""
        if not self._seconds or not self._left:
            return ""
        if self._works is None:
            self._works = self._ask()
        measured = rates(self._seconds, self._works)
        left = [work_of(self._works, name) for name in self._left]
        known = [measured[kind] * work for kind, work in left if kind in measured]
        unknown = len(left) - len(known)
        if not unknown:
            return f", about {duration(sum(known))} left"
        if sum(known) < 1:  # seconds
            return ""
        return f", about {duration(sum(known))} left ({unknown} stage{'s' * (unknown > 1)} not timed yet)"


def work_of(works: Mapping[str, Work], name: str) -> Work:
    """The work of a node; where it is not known its stage is its kind, and nodes of a stage have as much."""
    return works.get(name, (name.partition("/")[0], 1.0))


def rates(seconds: Mapping[str, float], works: Mapping[str, Work]) -> dict[str, float]:
    """Seconds a unit of work, by kind, from ``seconds`` that nodes took."""
    taken, done = defaultdict[str, float](float), defaultdict[str, float](float)
    for name, spent in seconds.items():
        kind, work = work_of(works, name)
        taken[kind] += spent
        done[kind] += work
    return {kind: taken[kind] / work for kind, work in done.items() if work}


def result_of(out: Path) -> str:
    """Return a node's result in a few words: its best number, or its first and last loss; empty for others."""
    if (out / "rows.json").is_file():
        rows = [row for row in read_rows(out / "rows.json") if not (row.is_baseline or row.note or "+" in row.block)]
        return _best(rows)
    losses = [row["loss"] for row in read_metrics(out / "metrics.jsonl") if isinstance(row.get("loss"), float)]
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f}" if losses else ""


def _best(rows: Sequence[EvalResult]) -> str:
    of_metric = [row for row in rows if row.metric == rows[0].metric]
    if not of_metric:
        return ""
    best = best_by_heldout(of_metric) or max(of_metric, key=lambda row: row.ranking_value)
    return f"{best.metric} {best.shown}" + (f" at block {best.block}" if best.block else "")


def past_seconds(outputs: Mapping[str, Path], machine: str | None = None) -> dict[str, float]:
    """Seconds that published outputs took, by node; ``outputs`` are directories by node.

    With a ``machine`` those that were made in one go on it; outputs of version 0.2 do not say where they were made.
    """
    past: dict[str, float] = {}
    for name, path in outputs.items():
        try:
            timing = read_json(path / "timing.json")
            if machine is None or (timing.get("machine", machine) == machine and not timing.get("resumed")):
                past[name] = float(timing["seconds"])
        except (DataError, OSError, KeyError, TypeError, AttributeError):
            continue
    return past
