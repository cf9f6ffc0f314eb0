"""Processes at work at a study now, the rates of stages of each kind here, and the time that the rest takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from dinoskip.io.files import find_below
from dinoskip.io.locks import holder_of
from dinoskip.pipeline.cleaning import RUNNING
from dinoskip.pipeline.progress import Work, rates, work_of


@dataclass(frozen=True)
class AtWork:
    """A process that makes a node now; ``job`` is SLURM's, if it is one."""

    node: str
    host: str | None
    pid: int | None
    job: str | None


@dataclass(frozen=True)
class Outlook:
    """``rates`` are seconds a unit of work by kind, ``seconds`` those of all that is left, one after another.

    ``untimed`` nodes have no time yet and are not in it.
    """

    rates: Mapping[str, float]
    seconds: float
    untimed: int

    def hours_over(self, workers: int) -> float:
        """Hours left if ``workers`` (at least one is counted) share what is left evenly: the fewest it can take."""
        return self.seconds / 3600 / max(1, workers)


def at_work(study: Path) -> list[AtWork]:
    """The nodes that living processes make, by name."""
    running = study / RUNNING
    found = []
    for lock in sorted(find_below(running, ".lock")):
        node = lock.parent.relative_to(running).as_posix()
        holder = None if node.startswith(".") else holder_of(lock.parent)  # else of a run as a whole
        if holder is not None:
            found.append(AtWork(node, holder.get("host"), holder.get("pid"), holder.get("job")))
    return found


def outlook(seconds: Mapping[str, float], works: Mapping[str, Work], left: Collection[str]) -> Outlook:
    """Return the rates and the expected time of the nodes ``left``, by the ``seconds`` that finished ones took here."""
    measured = rates(seconds, works)
    todo = [work_of(works, node) for node in left]
    known = [measured[kind] * work for kind, work in todo if kind in measured]
    return Outlook(measured, sum(known), len(todo) - len(known))
