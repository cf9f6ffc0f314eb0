"""What slot 1 chooses from its rows: each arm's rate, the epochs of all, and whether the paper's arm is dead."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from dinoskip.errors import DataError
from dinoskip.records import RecordedRow
from studies.slots_arms import ARMS, CHOICE_BLOCKS, DEAD, LATE, RATES, SECOND_OPTIMIZER, Plan, optimizer, seed_of
from studies.slots_rule import shares

MIDDLE = RATES[len(RATES) // 2]
PROBED = ("voc_mini", "scenes")


def network(arm: str, rate: float) -> str:
    """Name of slot 1's network of an arm at a rate."""
    return f"{ARMS[arm]}-{optimizer('adamw', rate)['label']}-s{seed_of(1)}"


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
    """The merit of every arm at every rate that was measured."""
    found: dict[str, dict[str, float]] = {}
    for arm in ARMS:
        for rate in RATES:
            own = [e for e in recorded if e.row.model == network(arm, rate) and e.row.epoch == epochs]
            if math.isfinite(value := merit(own)):
                found.setdefault(arm, {})[f"{rate:g}"] = value
    return found


def dead(recorded: Sequence[RecordedRow], arm: str, epochs: int) -> bool:
    """Whether most graphs of the late blocks are complete at every rate that was measured."""
    late = []
    for rate in RATES:
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
    if dead(recorded, "B", epochs):
        optimizers["B"], rates["B"] = SECOND_OPTIMIZER, MIDDLE
        unresolved = [arm for arm in unresolved if arm != "B"]
    return Plan(length, rates, optimizers, unresolved)
