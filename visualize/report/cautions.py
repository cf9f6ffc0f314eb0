"""Cautions to read before the report's numbers are believed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from dinoskip.decisions.comparing import FAR, low_power
from dinoskip.decisions.wording import ROUNDED
from dinoskip.results.estimates import least_gap
from visualize.report.answer import Answer, AnswerLine, Measured

_UNPAIRED = "no per-image scores of both on the same images, so the difference is unpaired"
_ONE_RUN = "Each network was trained once. The intervals cover the choice of images, not the training seed."
_SEEDS = (
    "Each network was trained with several seeds. The intervals and p cover the training seed and, where both networks "
    "were measured on the same images, the choice of images; not the choice of blocks, data set and protocol."
)


def cautions(compared: Sequence[Answer], silent: Sequence[Answer] = ()) -> list[str]:
    """Return cautions about the numbers: cuts that fail, collapsed networks, baselines, unpaired differences.

    The last one states what was random: images alone, or seeds of training, too. For ``silent``, whose measures
    separate nothing, only cuts that fail are named.
    """
    both = [side for answer in silent for line in answer.lines for side in (line.first, line.second) if side]
    lines: dict[str, None] = {side.failed: None for side in both if side.failed}
    for answer in compared:
        for line in answer.lines:
            for side in filter(None, (line.first, line.second)):
                rate = (
                    f"{side.name}: learning rate unresolved, no verdict: {side.unresolved}" if side.unresolved else ""
                )
                lines |= dict.fromkeys(filter(None, [rate, side.failed, *_of_network(line, side)]))
            if line.difference and not line.difference.paired and not line.difference.seeds:
                lines[f"{line.benchmark.label}: {_UNPAIRED}"] = None
    shown = [line for answer in compared if answer.second for line in answer.lines]
    lines |= dict.fromkeys(_power(shown))
    several = any(line.difference and line.difference.seeds for line in shown)
    return [*lines, *([_SEEDS if several else _ONE_RUN] if shown else [])]


def _power(lines: Sequence[AnswerLine]) -> Iterator[str]:
    """Yield a sentence for each number of seeds on the differences that comparisons of so few could not have found."""
    found = {}
    for line in lines:
        if line.pair and line.decision and (gap := low_power(line.pair, line.decision)) is not None:
            found[line.pair.seeds, line.decision.comparisons] = gap
    for (seeds, comparisons), gap in sorted(found.items()):
        enough = next(more for more in itertools.count(seeds + 1) if least_gap(more, comparisons) <= FAR)
        yield (
            f"With {seeds} seeds and {comparisons} comparisons on the page, a difference is found with 80 % power only "
            f"if it is at least {gap:.0f} standard deviations over seeds, so undecided is weak evidence. "
            f"With {enough} seeds {least_gap(enough, comparisons):.1f} suffice"
        )


def _of_network(line: AnswerLine, side: Measured) -> list[str]:
    """Baselines and an own start that a network is not clearly above."""
    if side.is_dead:
        return [
            f"{side.name}, {line.benchmark.label}: network collapsed: all patches alike, affinity graph degenerate, "
            "nothing gained in training"
        ]
    about = f"{side.name}, {line.benchmark.label}, {side.parts['block']}: {side.value:.1f} is"
    low = side.now[0].low if len(side.now) == 1 and side.now[0].low is not None else side.value
    said: list[str] = []
    if line.trivial is not None and low <= line.trivial.value:
        name, value = line.trivial.rule, line.trivial.value
        said.append(f"{about} {_not_above(side.value, value)} the baseline ({name}), {value:.1f}")
    gain = side.gain
    if gain is not None and not gain.low > 0:
        start = side.value - 100 * gain.value
        said.append(f"{about} {_not_above(side.value, start)} the same network before training, {start:.1f}")
    return said


def _not_above(value: float, floor: float) -> str:
    return "below" if value <= floor - ROUNDED else "not clearly above"
