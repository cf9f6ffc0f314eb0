"""The report's first sentence: every network's value, the best baseline, and why the two do not say which is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from visualize.figures.curves import Curves
from visualize.report.answer import MOST, Answer, AnswerLine, Measured, beats, images_said
from visualize.rows import Benchmark

COSINE, RANK = "mean cosine of an image's patches", "effective rank of an image's patches"
"""Quantities of features without labels: titles of their panels, and what the sentence names."""
ALIKE = 0.95  # mean cosine of patches that differ by an angle of 18 degrees or less


def values_said(compared: Sequence[Answer], inconclusive: Mapping[Benchmark, str]) -> str:
    """``mIoU, voc val: 20.0 (ours, block 9), 12.1 (skip, block 7); best baseline 20.6 (random patch). None ...``.

    The first :data:`MOST` benchmarks, a line each. A benchmark in ``inconclusive`` is followed by the reason why no
    difference on it counts. Nothing for a single network, whose values the verdict has, and without benchmarks.
    """
    lines: dict[Benchmark, list[AnswerLine]] = {}
    for answer in compared:
        for line in answer.lines if answer.second else ():
            lines.setdefault(line.benchmark, []).append(line)
    said = [_of_benchmark(key, lines[key], key in inconclusive) for key in list(lines)[:MOST]]
    more = len(lines) - MOST
    return "\n".join([*said, *([f"{more} more in the table."] if more > 0 else [])])


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


def _of_benchmark(benchmark: Benchmark, lines: Sequence[AnswerLine], inconclusive: bool) -> str:
    sides: dict[str, Measured] = {}
    for line in lines:
        sides |= {side.name: side for side in (line.first, line.second) if side is not None}
    if not sides:
        return ""
    lowest = next(iter(sides.values())).lowest
    ordered = sorted(sides.values(), key=lambda side: side.value, reverse=not lowest)
    text = f"{benchmark.label}{images_said(ordered)}: {', '.join(map(_value, ordered))}"
    rule = lines[0].trivial
    if rule is not None:
        text += f"; best baseline {rule.value:.1f} ({rule.rule})"
    if not inconclusive:
        return f"{text}."
    if rule is not None and not beats(ordered[0].value, rule.value, lowest):
        return f"{text}. {_none(len(ordered))} beats the baseline, so this run does not show which is better."
    begun = any(side.before for side in ordered)
    beaten = " and ".join(["the best baseline"] * (rule is not None) + ["the networks before training"] * begun)
    return f"{text}. {_none(len(ordered))} is clearly above {beaten}, so this run does not show which is better."


def _value(side: Measured) -> str:
    """A value with its block, for curves ring another: the best one on the images shown."""
    block = f", {side.blocks_said.partition(' (')[0]}" if side.blocks else ""
    failed = ", no cut: degenerate affinity graph" if side.failed_there else ""
    return f"{side.value:.1f} ({side.name}{block}{failed})"


def _none(count: int) -> str:
    return "Neither" if count == 2 else "None"
