"""What must be known before the report's numbers are believed."""

from __future__ import annotations

from collections.abc import Sequence

from dinoskip.estimates import gain_of
from visualize.comparison import ROUNDED, aligned
from visualize.report.answer import Answer, AnswerLine, Measured

_UNPAIRED = "no records of both on the same images, so the difference is unpaired"
_ONE_RUN = "Each network was trained once. The intervals cover the choice of images, not the training seed."
_SEEDS = (
    "Each network was trained with several seeds. The intervals and p cover the training seed and, where both networks "
    "were measured on the same images, the choice of images; not the choice of blocks, data set and protocol."
)


def cautions(compared: Sequence[Answer], silent: Sequence[Answer] = ()) -> list[str]:
    """What must be known before a number is believed: cuts that fail, dead networks, baselines, unpaired differences.

    And what was random: images alone, or seeds of training, too. Of ``silent``, whose measures separate nothing, cuts
    that fail alone.
    """
    both = [side for answer in silent for line in answer.lines for side in (line.first, line.second) if side]
    lines: dict[str, None] = {side.failed: None for side in both if side.failed}
    for answer in compared:
        for line in answer.lines:
            for side in filter(None, (line.first, line.second)):
                rate = (
                    f"{side.name}: rate unresolved, so no verdict on it: {side.unresolved}" if side.unresolved else ""
                )
                lines |= dict.fromkeys(filter(None, [rate, side.failed, *_of_network(line, side)]))
            if line.difference and not line.difference.paired and not line.difference.seeds:
                lines[f"{line.benchmark.label}: {_UNPAIRED}"] = None
    shown = [line for answer in compared if answer.second for line in answer.lines]
    several = any(line.judgement and line.judgement.difference.seeds for line in shown)
    return [*lines, *([_SEEDS if several else _ONE_RUN] if shown else [])]


def _of_network(line: AnswerLine, side: Measured) -> list[str]:
    """Baselines and an own start that a network is not clearly above."""
    if side.is_dead:
        return [f"{side.name}, {line.benchmark.label}: network dead: tokens alike, graphs complete, nothing gained"]
    about = f"{side.name}, {line.benchmark.label}, {side.parts['block']}: {side.value:.1f} is"
    low = side.now[0].low if len(side.now) == 1 and side.now[0].low is not None else side.value
    said: list[str] = []
    if line.trivial is not None and low <= line.trivial.value:
        name, value = line.trivial.rule, line.trivial.value
        said.append(f"{about} {_not_above(side.value, value)} the baseline ({name}), {value:.1f}")
    gain = gain_of(*aligned(side.now, side.before))
    if gain is not None and not gain.low > 0:
        start = side.value - 100 * gain.value
        said.append(f"{about} {_not_above(side.value, start)} the same network before training, {start:.1f}")
    return said


def _not_above(value: float, floor: float) -> str:
    return "below" if value <= floor - ROUNDED else "not clearly above"
