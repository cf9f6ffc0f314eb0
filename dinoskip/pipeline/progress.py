"""What a run says of a study: which stage of how many, what came out, how long it took and how long the rest takes.

The rest is by the times of the same kinds of stages; of kinds that have none yet by an estimate, and then says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from dinoskip.console import duration, log, read_metrics
from dinoskip.errors import DataError, DinoskipError
from dinoskip.files import read_json
from dinoskip.pipeline.graph import Node
from dinoskip.results import EvalResult, best_by_heldout, read_rows


class StudyProgress:
    """Counts the stages of a run and says a line for each that ends."""

    def __init__(
        self,
        missing: Sequence[Node],
        cached: int,
        past: Mapping[str, Sequence[float]],
        expected: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """``missing`` are the nodes to run, ``past`` seconds that finished nodes took, by stage.

        ``expected`` gives estimated seconds by node; it is asked where a kind of stage has no past.
        """
        self._expected = expected() if {node.stage for node in missing} - past.keys() else {}
        self._left = {node.id: node.stage for node in missing}
        self._total, self._done = len(missing), 0
        self._seconds = {stage: list(values) for stage, values in past.items()}
        self._began = time.monotonic()
        self.failures: dict[str, DinoskipError] = {}
        if missing:
            log.info("%d stages to run, %d cached%s", self._total, cached, self._rest())

    def starts(self, node: Node, reason: str) -> None:
        """A node begins."""
        log.debug("%s %s running (%s)", self._count(node, ended=False), node.id, reason)

    def finished(self, node: Node, seconds: float, out: Path) -> None:
        """A node has been published in ``out``."""
        self._end(node)
        self._seconds.setdefault(node.stage, []).append(seconds)
        spent = duration(time.monotonic() - self._began)
        log.info(
            "%s %-44s %s", self._count(node), node.id,
            f"{_and(result_of(out))}{duration(seconds)}; {spent} so far{self._rest()}",
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
        """All is done. With failures, :class:`DinoskipError` of the first one's kind, which names them all."""
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
        """``, about 3m left`` by times of the same stages, ``(estimated)`` where some have none; or nothing."""
        timed = {node: mean(self._seconds[stage]) for node, stage in self._left.items() if self._seconds.get(stage)}
        known = {**{node: self._expected[node] for node in self._left if node in self._expected}, **timed}
        if not known:
            return ""
        about = "about" if len(known) == len(self._left) else "more than"
        estimated = " (estimated)" if known.keys() - timed.keys() else ""
        return f", {about} {duration(sum(known.values()))} left{estimated}"


def _and(text: str) -> str:
    return f"{text}; " if text else ""


def result_of(out: Path) -> str:
    """What a node's output says in a few words: its best number, or the last loss; nothing for others."""
    if (out / "rows.json").is_file():
        rows = [row for row in read_rows(out / "rows.json") if not (row.is_baseline or row.note or "+" in row.block)]
        return _best(rows)
    losses = [row["loss"] for row in read_metrics(out / "metrics.jsonl") if isinstance(row.get("loss"), float)]
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f}" if losses else ""


def _best(rows: Sequence[EvalResult]) -> str:
    own = [row for row in rows if row.metric == rows[0].metric]
    if not own:
        return ""
    best = best_by_heldout(own) or max(own, key=lambda row: row.merit)
    return f"{best.metric} {best.shown}" + (f" at block {best.block}" if best.block else "")


def past_seconds(outputs: Mapping[str, Path]) -> dict[str, list[float]]:
    """Seconds that published outputs took, by stage; ``outputs`` are directories by node id."""
    past: dict[str, list[float]] = {}
    for name, path in outputs.items():
        try:
            seconds = read_json(path / "timing.json")["seconds"]
        except (DataError, OSError, KeyError, TypeError):
            continue
        past.setdefault(name.partition("/")[0], []).append(float(seconds))
    return past
