"""Small line charts of a benchmark against block, as numbers for an inline SVG in a page's template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dinoskip.results.rows import EvalResult
from visualize.rows import benchmark_values, one_k_per_dataset, single_blocks

WIDTH, HEIGHT, MARGIN = 240.0, 64.0, 6.0


@dataclass(frozen=True)
class ChartLine:
    """One variant's curve: its key, SVG polyline points, and its values by block as shown text."""

    key: str
    points: str
    values: dict[str, str]


@dataclass(frozen=True)
class Chart:
    """One benchmark: label, the value range of its axis as text, and a line per variant that has it."""

    label: str
    low: str
    high: str
    lines: list[ChartLine]


def block_x(block: int, blocks: Sequence[int]) -> float:
    """Horizontal place of a block in a chart; gallery.js computes the same."""
    return MARGIN + (WIDTH - 2 * MARGIN) * blocks.index(block) / max(1, len(blocks) - 1)


def block_charts(variants: Mapping[str, Sequence[EvalResult]], blocks: Sequence[int]) -> list[Chart]:
    """A chart for each headline benchmark that any variant has at one of ``blocks`` (sorted numbers)."""
    charts = []
    for benchmark, by_variant in one_k_per_dataset(benchmark_values(variants)).items():
        curves = {
            key: {block: value for block, value in single_blocks(values).items() if block in blocks}
            for key, values in by_variant.items()
        }
        numbers = [value for curve in curves.values() for value in curve.values()]
        if not numbers:
            continue
        low, high = min(numbers), max(numbers)
        span = max(high - low, 1e-9)  # a flat curve has no span
        lines = [
            ChartLine(
                key,
                " ".join(
                    f"{block_x(block, blocks):.1f},{HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (value - low) / span:.1f}"
                    for block, value in curve.items()
                ),
                {str(block): f"{value:.1f}" for block, value in curve.items()},
            )
            for key, curve in curves.items()
        ]
        charts.append(Chart(benchmark.label, f"{low:.1f}", f"{high:.1f}", lines))
    return charts
