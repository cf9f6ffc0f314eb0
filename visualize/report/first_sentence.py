"""The report's first sentences: why a metric does not show which network is better, and features without labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from visualize.figures.curves import Curves
from visualize.report.answer import MOST, Answer, AnswerLine, Measured, beats
from visualize.rows import Benchmark

COSINE, RANK = "mean cosine of an image's patches", "effective rank of an image's patches"
"""Quantities of features without labels: titles of their panels, and what the sentence names."""
ALIKE = 0.95  # mean cosine of patches that differ by an angle of 18 degrees or less


def inconclusive_said(compared: Sequence[Answer], inconclusive: Collection[Benchmark]) -> str:
    """``mIoU, voc val: ours 20.0, skip 12.1; neither beats the best baseline (random patch, 20.6), so this run ...``.

    A line for each of the first :data:`MOST` benchmarks in ``inconclusive``; without values of more than two networks,
    which the table has. Nothing for a single network.
    """
    lines: dict[Benchmark, list[AnswerLine]] = {}
    for answer in compared:
        for line in answer.lines if answer.second else ():
            if line.benchmark in inconclusive:
                lines.setdefault(line.benchmark, []).append(line)
    said = [_of_benchmark(key, lines[key]) for key in list(lines)[:MOST]]
    more = len(lines) - MOST
    return "\n".join([*said, *([f"{more} more metrics are inconclusive."] if more > 0 else [])])


def features_said(features: Mapping[str, Curves]) -> str:
    """Values of features that need no labels, at each network's last block, in a sentence; "" without curves.

    ``At the last block the patches of an image have a mean cosine of 0.51 (skip), 0.46 (ours) and an effective rank of
    33 (skip), 25 (ours).`` The first :data:`MOST` networks.
    """
    said = [
        f"{words} of {', '.join(f'{_last(points)} ({name})' for name, points in list(curves.items())[:MOST])}"
        for title, words in ((COSINE, "a mean cosine"), (RANK, "an effective rank"))
        if (curves := features.get(title))
    ]
    alike = [name for name, points in features.get(COSINE, {}).items() if max(points.values()) > ALIKE]
    which = f"{', '.join(alike)}: patches are alike at some block" if alike else "No network's patches are all alike"
    return f"At the last block the patches of an image have {' and '.join(said)}. {which}." if said else ""


def _last(points: Mapping[int, float]) -> str:
    value = points[max(points)]
    return f"{value:.2f}" if abs(value) < 1 else f"{value:.2g}"


def _of_benchmark(benchmark: Benchmark, lines: Sequence[AnswerLine]) -> str:
    sides: dict[str, Measured] = {}
    for line in lines:
        sides |= {side.name: side for side in (line.first, line.second) if side is not None}
    if not sides:
        return ""
    lowest = next(iter(sides.values())).lowest
    ordered = sorted(sides.values(), key=lambda side: side.value, reverse=not lowest)
    rule = lines[0].trivial
    if len(ordered) > 2:
        values, none = "", f"none of the {len(ordered)} networks"
    else:
        values, none = f"{', '.join(f'“{side.name}” {side.value:.1f}' for side in ordered)}; ", "neither"
    if rule is not None and not beats(ordered[0].value, rule.value, lowest):
        outcome = f"{none} beats the best baseline ({rule.rule}, {rule.value:.1f})"
    else:
        begun = any(side.before for side in ordered)
        beaten = [f"the best baseline ({rule.rule}, {rule.value:.1f})"] if rule is not None else []
        outcome = f"{none} is clearly above {' and '.join(beaten + ['the networks before training'] * begun)}"
    return f"{benchmark.label}: {values}{outcome}, so this run does not show which is better."
