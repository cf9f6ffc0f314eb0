"""Slot 1's choices from its rows: each arm's rate, the epochs of all, and the substitute for B where it is dead."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from dinoskip.errors import DataError
from dinoskip.results.records import RecordedRow
from studies.slots_arms import (
    ARMS,
    CHOICE_BLOCKS,
    DEAD,
    LABELS,
    LATE,
    PRINTED,
    PRINTED_RATES,
    RATES,
    SECOND_OPTIMIZER,
    Plan,
    optimizer,
    seed_of,
)
from studies.slots_rule import shares

MIDDLE = RATES[len(RATES) // 2]
PROBED = ("voc_mini", "scenes")


def network(arm: str, rate: float) -> str:
    """Name of slot 1's network of an arm, or of B0, at a rate."""
    return f"{LABELS[arm]}-{optimizer('adamw', rate)['label']}-s{seed_of(1)}"


def merit(entries: Sequence[RecordedRow]) -> float:
    """Mean of k-NN and of held-out probes, in percent, over blocks 3 to 12; nan where either was not measured."""
    blocks = {str(block) for block in CHOICE_BLOCKS}
    rows = [entry.row for entry in entries if entry.row.block in blocks]
    neighbours = [row.value for row in rows if row.task == "knn"]
    probes = [
        statistics.mean(found)
        for dataset in PROBED
        if (found := [r.heldout for r in rows if r.task == "probe" and r.dataset == dataset and r.heldout is not None])
    ]
    if not neighbours or len(probes) < len(PROBED):
        return math.nan
    return (statistics.mean(neighbours) + statistics.mean(probes)) / 2


def tried(recorded: Sequence[RecordedRow], epochs: int) -> dict[str, dict[str, float]]:
    """The merit of every arm, and of B0, at every rate that was measured."""
    found: dict[str, dict[str, float]] = {}
    for arm in LABELS:
        for rate in RATES:
            own = [e for e in recorded if e.row.model == network(arm, rate) and e.row.epoch == epochs]
            if math.isfinite(value := merit(own)):
                found.setdefault(arm, {})[f"{rate:g}"] = value
    return found


def dead(recorded: Sequence[RecordedRow], arm: str, epochs: int, rates: Sequence[float] = RATES) -> bool:
    """Whether most graphs of the late blocks are complete at every one of the rates that was measured."""
    late = []
    for rate in rates:
        own = [e for e in recorded if e.row.model == network(arm, rate) and e.row.epoch == epochs]
        if found := [value for block, value in shares(own, "complete").items() if block in LATE]:
            late.append(statistics.mean(found))
    return bool(late) and min(late) > 100 * DEAD


def chosen(
    recorded: Sequence[RecordedRow], merits: Mapping[str, Mapping[str, float]], epochs: int, length: int
) -> Plan:
    """Return the plan of slots 2 to 6, ``length`` epochs each; ``epochs`` are those of slot 1.

    Raises :class:`DataError` for an arm that has not been measured at every rate.
    """
    rates, unresolved, optimizers = {}, [], dict.fromkeys(ARMS, "adamw")
    for arm in ARMS:
        by_rate = {rate: merits.get(arm, {}).get(f"{rate:g}") for rate in RATES}
        if missing := [f"{rate:g}" for rate, value in by_rate.items() if value is None]:
            raise DataError(
                f"arm {arm} was not measured at {', '.join(missing)}: no rate can be chosen",
                "python -m studies.slots run 1 goes on with what is missing",
            )
        rates[arm] = max(RATES, key=lambda rate: merits[arm][f"{rate:g}"])
        if rates[arm] in (RATES[0], RATES[-1]):
            unresolved.append(arm)
    labels = dict(ARMS)
    if dead(recorded, "B", epochs):
        unresolved = [arm for arm in unresolved if arm != "B"]
        if (rate := printed_rate(recorded, merits, epochs)) is not None:
            labels["B"], rates["B"] = LABELS[PRINTED], rate
        else:
            optimizers["B"], rates["B"] = SECOND_OPTIMIZER, MIDDLE
    return Plan(length, rates, optimizers, unresolved, labels)


def printed_rate(
    recorded: Sequence[RecordedRow], merits: Mapping[str, Mapping[str, float]], epochs: int
) -> float | None:
    """Return the better of B0's rates if its late blocks are not dead at it; None also where B0 was not measured."""
    measured = [rate for rate in PRINTED_RATES if f"{rate:g}" in merits.get(PRINTED, {})]
    if not measured:
        return None
    best = max(measured, key=lambda rate: merits[PRINTED][f"{rate:g}"])
    return None if dead(recorded, PRINTED, epochs, [best]) else best
