"""The report's first sentences: why a metric does not show which network is better, and features without labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from visualize.figures.curves import Curves
from visualize.report.answer import MOST, Answer, AnswerLine, Measured, beats
from visualize.rows import Benchmark

COSINE, RANK = "mean cosine of an image's patches", "effective rank of an image's patches"
"""Quantities of features without labels: titles of their panels. The sentence names the first."""
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
    said = [text for key in list(lines)[:MOST] if (text := _of_benchmark(key, lines[key]))]
    more = len(lines) - MOST
    rest = f"{more} more metric{' is' if more == 1 else 's are'} inconclusive."
    return "\n".join([*said, *([rest] if more > 0 else [])])


def features_said(features: Mapping[str, Curves]) -> str:
    """Describe curves of features that need no labels in a sentence or two; "" without curves.

    ``Patches of an image differ more in “ours” than in “skip” at 12 of 12 blocks (mean cosine 0.23 to 0.40 against 0.25
    to 0.58). No network has collapsed: ...``; of one network or more than two only the second sentence.
    """
    curves = {name: points for name, points in features.get(COSINE, {}).items() if points}
    if not curves:
        return ""
    said = [_compared(*curves.items())] if len(curves) == 2 else []
    alike = [f"“{name}”" for name, points in curves.items() if max(points.values()) > ALIKE]
    if alike:
        said.append(f"{', '.join(alike)}: patches are nearly alike at some block (mean cosine above {ALIKE}).")
    else:
        said.append(f"No network has collapsed: the mean cosine is at most {ALIKE} at every block.")
    return " ".join(filter(None, said))


def _compared(first: tuple[str, Mapping[int, float]], second: tuple[str, Mapping[int, float]]) -> str:
    """At how many of the blocks of both networks the patches of one differ more; "" without such blocks."""
    (one, points), (other, others) = first, second
    both = points.keys() & others.keys()
    lower, higher = (sum(sign * points[block] < sign * others[block] for block in both) for sign in (1, -1))
    if lower < higher:
        (one, points), (other, others), lower = second, first, higher
    if not lower:
        return ""
    ranges = f"mean cosine {_range(points)} against {_range(others)}"
    return f"Patches of an image differ more in “{one}” than in “{other}” at {lower} of {len(both)} blocks ({ranges})."


def _range(points: Mapping[int, float]) -> str:
    return f"{min(points.values()):.2f} to {max(points.values()):.2f}"


def _of_benchmark(benchmark: Benchmark, lines: Sequence[AnswerLine]) -> str:
    sides: dict[str, Measured] = {}
    for line in lines:
        sides |= {side.name: side for side in (line.first, line.second) if side is not None}
    if len(sides) < 2:
        return ""
    lowest = next(iter(sides.values())).lowest
    ordered = sorted(sides.values(), key=lambda side: side.value, reverse=not lowest)
    rule = lines[0].trivial
    if len(ordered) > 2:
        values, none = "", "none of the networks compared"
    else:
        values = f"{', '.join(f'“{side.name}” {side.value:.1f}' for side in ordered)}; "
        none = "neither"
    if rule is not None and not beats(ordered[0].value, rule.value, lowest):
        outcome = f"{none} beats the best baseline ({rule.rule}, {rule.value:.1f})"
    else:
        begun = any(side.before for side in ordered)
        beaten = [f"the best baseline ({rule.rule}, {rule.value:.1f})"] if rule is not None else []
        outcome = f"{none} is clearly above {' and '.join(beaten + ['the networks before training'] * begun)}"
    return f"{benchmark.label}: {values}{outcome}, so this run does not show which is better."
