"""Figures of result rows: headline measures against block, epoch and depth, and the roughness of PCA pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dinoskip.decisions.failures import failed_cuts
from dinoskip.results.rows import EvalResult
from visualize.figures.curves import Curves, Groups, curves_figure, panel_groups
from visualize.figures.drawing import (
    Figure,
    curve,
    fitted,
    heading,
    legend,
    levels,
    mark,
    panels,
    several,
    write_figure,
)
from visualize.pages import clean
from visualize.palette import variant_colour, variant_places
from visualize.roughness import ByBlock, typical
from visualize.rows import (
    Benchmark,
    Variants,
    arranged,
    best,
    last_epochs,
    one_k_per_dataset,
    single_blocks,
    untrained_rows,
    values_of,
)

ByVariant = Mapping[str, Mapping[str, EvalResult]]
_BLOCKS_READING = "Look for the block at which each curve is highest, and for its distance from the baselines"
_UNTRAINED_READING = " and from the same network before training. Without a distance, nothing was learnt there."
_FEATURES_READING = (
    "A cosine near 1 with a rank near 1: all patches of an image are alike, the features have collapsed. Outlier "
    "patches have a norm above 3 times the median; they are known of large ViTs and can hide an object from TokenCut."
)
_CLASSES_READING = (
    "Each network at its chosen block. Look for classes at 0, which the mIoU averages with the others, and for classes "
    "that only one network has."
)
_NAMES_APART = 0.075
"""Of the height of a panel: a line of 7.5 points in about 105."""
_EPOCHS_READING = (
    "Look for curves that have turned down before the last epoch: dense features can get worse while training goes on."
)
_DEPTH_READING = (
    "Look for the loss with each block removed, and for the number of blocks with which a skipless network reaches the "
    "level of the deepest network with skips."
)
_ROUGHNESS_READING = (
    "Lower is smoother. Tokens that are all equal are smooth, too: if the value is near 0 and the token cosine near 1, "
    "the features have collapsed."
)


def blocks_figure(
    variants: Variants,
    out: Path,
    baselines: Sequence[EvalResult] = (),
    chosen: Mapping[Benchmark, Mapping[str, Sequence[str]]] = MappingProxyType({}),
) -> Figure | None:
    """Each headline benchmark (mIoU, CorLoc, k-NN) against block, a panel each; None if no row has a single block.

    The best block of a variant is ringed, the blocks ``chosen`` for its score, by benchmark and variant, have a large
    dot, 95 % intervals are shaded; a dotted level is a value of several blocks together. Dashed levels are
    ``baselines``; a thin curve of a variant's colour is the variant at epoch 0, before training.
    """
    benchmarks = {
        benchmark: rows
        for benchmark, rows in one_k_per_dataset(last_epochs(variants)).items()
        if benchmark.task != "classify"  # of the last block alone
        and any(single_blocks(values_of(model_rows)) for model_rows in rows.values())
    }
    if not benchmarks:
        return None
    order, untrained, places = list(variants), untrained_rows(variants), variant_places(list(variants))

    def draw() -> Any:
        figure, grid = panels(len(benchmarks))
        for axes, (benchmark, rows) in zip(grid, benchmarks.items(), strict=True):
            floor = {row.rule: row.value for row in baselines if benchmark.is_of(row)}
            levels(axes, floor, _NAMES_APART * _span(rows, untrained.get(benchmark, {}), floor.values()))
            for name, model_rows in untrained.get(benchmark, {}).items():
                points = single_blocks(values_of(model_rows))
                axes.plot(list(points), list(points.values()), color=variant_colour(places[name]), linewidth=0.8)
            for name, model_rows in rows.items():
                _block_curve(axes, model_rows, places[name], name, chosen.get(benchmark, {}).get(name, ()))
            heading(axes, benchmark.label)
            axes.set_xlabel("block")
        grid[0].set_ylabel("%")
        legend(figure, grid, order)
        return figure

    words = [
        f"{benchmark.label}: "
        + ", ".join(
            f"{clean(name, 40)} best {top[1]:.1f} at block {top[0]}"
            for name, top in ((name, best(values_of(model_rows))) for name, model_rows in rows.items())
            if top
        )
        for benchmark, rows in benchmarks.items()
    ]
    caption = "Frozen features, block by block"
    begun = any(untrained.values())
    marks = _marks(benchmarks, any(chosen.get(key) for key in benchmarks), bool(baselines), begun)
    reading = _BLOCKS_READING + (_UNTRAINED_READING if begun else ".")
    return write_figure(out, draw, caption, ". ".join(words) + ".", f"Legend: {'; '.join(marks)}. {reading}")


def _marks(benchmarks: Mapping[Benchmark, ByVariant], dots: bool, levels_drawn: bool, begun: bool) -> list[str]:
    """Return what each mark means that is drawn in some panel."""
    marks = ["large dot: block at which a score was read"] if dots else []
    marks.append("ring: best block on these images, an upper estimate")
    if any(not block.isdigit() for rows in benchmarks.values() for net in rows.values() for block in net):
        marks.append("dotted level: several blocks together")
    if any(row.low is not None for rows in benchmarks.values() for net in rows.values() for row in net.values()):
        marks.append("shade: 95 % interval")
    if any(failed_cuts(row) for rows in benchmarks.values() for net in rows.values() for row in net.values()):
        marks.append("cross: no object found in most images (degenerate affinity graph, or no cut)")
    if levels_drawn:
        marks.append("dashed line: baseline without a network")
    if begun:
        marks.append("thin curve: the same network before training")
    return marks


def _span(rows: ByVariant, begun: ByVariant, floor: Iterable[float]) -> float:
    """Return the difference between the largest and the smallest value of a panel; 0 without values."""
    every = [value for of in (*rows.values(), *begun.values()) for value in values_of(of).values()]
    every += list(floor)
    return max(every) - min(every) if every else 0.0


def features_figure(quantities: Mapping[str, Curves], out: Path, variants: Sequence[str]) -> Figure | None:
    """Draw quantities of features that need no labels, by block: ``{quantity: {variant: {block: value}}}``."""
    caption = "Features of the images shown, block by block, without labels"
    return curves_figure(quantities, out, caption=caption, reading=_FEATURES_READING, variants=variants)


def _block_curve(axes: Any, rows: Mapping[str, EvalResult], number: int, name: str, chosen: Sequence[str]) -> None:
    """One variant in one panel: its curve, large dots, the ring, the shade, and levels of several blocks."""
    points, colour = single_blocks(values_of(rows)), variant_colour(number)
    if points:
        curve(axes, points, number, name)
        top = best(values_of(rows)) or ("1", math.nan)
        axes.plot(int(top[0]), top[1], "o", markersize=9, fillstyle="none", color=colour)
        read = [int(block) for block in chosen if block.isdigit() and int(block) in points]
        axes.plot(read, [points[block] for block in read], "o", markersize=7, color=colour, linestyle="none")
    ends = {block: (rows[str(block)].low, rows[str(block)].high) for block in points}
    gone = [block for block in points if failed_cuts(rows[str(block)])]
    axes.plot(gone, [points[block] for block in gone], "x", color=colour, markersize=9, linestyle="none")
    known = {block: end for block, end in ends.items() if None not in end and block not in gone}
    if known:
        low, high = zip(*known.values(), strict=True)
        axes.fill_between(list(known), low, high, color=colour, alpha=0.13 if number < 6 else 0.07, linewidth=0)
    for block, row in rows.items():
        if not block.isdigit():
            axes.axhline(row.value, color=colour, **several(number))


def epochs_figure(variants: Variants, out: Path, groups: Groups | None = None) -> Figure | None:
    """Each headline benchmark against epoch, as figure 2 of the paper: a line of panels each, a column an optimizer.

    Solid: the best single block of each epoch. Dotted: several blocks together. The panels of a benchmark share their
    scale. None unless some variant was evaluated at three epochs: two points are no curve.
    """
    benchmarks = {
        benchmark: {name: epochs for name, epochs in rows.items() if len(epochs) > 2}
        for benchmark, rows in one_k_per_dataset(arranged(variants)).items()
        if benchmark.task != "classify"
    }
    benchmarks = {benchmark: rows for benchmark, rows in benchmarks.items() if rows}
    if not benchmarks:
        return None
    order, places = list(variants), variant_places(list(variants))
    parts = panel_groups([name for name in order if any(name in rows for rows in benchmarks.values())], groups)

    def draw() -> Any:
        cells = [(benchmark, title) for benchmark in benchmarks for title in parts]
        figure, grid = panels(len(cells), columns=len(parts) if len(parts) > 1 else 3)
        for number, (axes, (benchmark, title)) in enumerate(zip(grid, cells, strict=True)):
            for name in parts[title]:
                place = places[name]
                for blocks, points in _by_epoch(benchmarks[benchmark].get(name, {})).items():
                    if blocks:
                        _together(axes, points, place)
                    else:
                        curve(axes, points, place, name)
            heading(axes, f"{benchmark.label}" + (f", {title}" if title else ""))
            axes.set_xlabel("epoch")
            if len(parts) > 1:
                axes.sharey(grid[number - number % len(parts)])
        grid[0].set_ylabel("%")
        legend(figure, grid, order)
        return figure

    caption = "Frozen features against epoch. Solid: the best single block; dotted: several blocks together"
    return write_figure(out, draw, caption, _epoch_words(benchmarks), _EPOCHS_READING)


_MOST_CLASSES = 40  # bars of more do not fit a page; a data set of 150 classes has them all in tables


def classes_figure(
    sets: Mapping[str, Mapping[str, Sequence[tuple[str, float]]]], out: Path, order: Sequence[str]
) -> Figure | None:
    """IoU in percent of each class as bars, a panel a data set: ``{data set: {variant: [(class, IoU), ...]}}``.

    Classes are in the order of their mean over the variants, the largest first, at most :data:`_MOST_CLASSES`.
    ``order`` gives the order of colours. None where nothing is given.
    """
    means: dict[str, dict[str, float]] = {}
    for dataset, variants in sets.items():
        every: dict[str, list[float]] = {}
        for name, value in (pair for pairs in variants.values() for pair in pairs):
            every.setdefault(name, []).append(value)
        ranked = sorted(every, key=lambda name: -sum(every[name]) / len(every[name]))
        means[dataset] = {name: sum(every[name]) / len(every[name]) for name in ranked}
    if not any(means.values()):
        return None
    places = variant_places(list(order))
    most = max(min(len(classes), _MOST_CLASSES) for classes in means.values())
    bars = max(map(len, sets.values()))

    def draw() -> Any:
        figure, grid = panels(len(means), (4.6, 0.9 + most * (0.13 + 0.07 * bars)))
        for axes, (dataset, classes) in zip(grid, means.items(), strict=True):
            names = list(classes)[:_MOST_CLASSES]
            thick = 0.8 / len(sets[dataset])
            for number, (variant, pairs) in enumerate(sets[dataset].items()):
                values = dict(pairs)
                at = [line - 0.4 + (number + 0.5) * thick for line in range(len(names))]
                colour = variant_colour(places[variant])
                axes.barh(at, [values.get(name, 0.0) for name in names], thick, color=colour, label=variant)
            axes.set_yticks(range(len(names)), [fitted(name, 1.3, 7.5) for name in names], fontsize=7.5)
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.grid(True, axis="x")
            axes.grid(False, axis="y")
            best_of = f"the {_MOST_CLASSES} best of " if len(classes) > _MOST_CLASSES else ""
            heading(axes, f"{dataset}, {best_of}{len(classes)} classes")
            axes.set_xlabel("IoU, %")
        figure.get_layout_engine().set(w_pad=0.12)  # inches: at other resolutions names are a little wider
        legend(figure, grid, order)
        return figure

    words = [
        f"{dataset}: best {clean(next(iter(classes)), 40)} {next(iter(classes.values())):.1f}"
        for dataset, classes in means.items()
        if classes
    ]
    return write_figure(out, draw, "Linear probe, IoU by class", ". ".join(words) + ".", _CLASSES_READING)


def _together(axes: Any, points: Mapping[int, float], number: int) -> None:
    """Values of several blocks together at integer places."""
    colour = variant_colour(number)
    axes.plot(list(points), list(points.values()), color=colour, marker=mark(number), markersize=3.5, **several(number))


def _by_epoch(epochs: Mapping[int, Mapping[str, EvalResult]]) -> dict[str, dict[int, float]]:
    """``{"": {epoch: best single block}, "3+6+9+12": {epoch: value}}``."""
    curves: dict[str, dict[int, float]] = {}
    for epoch in sorted(epochs):
        values = values_of(epochs[epoch])
        top = best(values)
        if top:
            curves.setdefault("", {})[epoch] = top[1]
        for block, value in values.items():
            if not block.isdigit():
                curves.setdefault(block, {})[epoch] = value
    return curves


def _epoch_words(benchmarks: Mapping[Benchmark, Mapping[str, Mapping[int, Mapping[str, EvalResult]]]]) -> str:
    words = []
    for benchmark, rows in benchmarks.items():
        for name, epochs in rows.items():
            points = _by_epoch(epochs).get("", {})
            shown = ", ".join(f"{value:.1f} at epoch {epoch}" for epoch, value in points.items())
            words.append(f"{benchmark.label}: {clean(name, 40)} {shown}")
    return ". ".join(words) + "."


def depth_figure(variants: Variants, families: Mapping[str, tuple[str, int]], out: Path) -> Figure | None:
    """Each headline benchmark against the number of blocks, one line a family of variants that differ in depth.

    ``families`` is ``{variant: (name of its family, depth)}``. Solid: the best single block; dotted: several blocks
    together. None unless a family has two depths.
    """
    depths: dict[str, dict[int, str]] = {}
    for name, (family, depth) in families.items():
        if name in variants:
            depths.setdefault(family, {}).setdefault(depth, name)
    studied = [family for family, of_depths in depths.items() if len(of_depths) > 1]
    benchmarks = one_k_per_dataset(last_epochs(variants)) if studied else {}
    if not benchmarks:
        return None
    curves = {
        benchmark: {family: _by_depth(rows, depths[family]) for family in depths}
        for benchmark, rows in benchmarks.items()
    }

    def draw() -> Any:
        figure, grid = panels(len(curves))
        for axes, (benchmark, lines) in zip(grid, curves.items(), strict=True):
            for number, (family, (single, together)) in enumerate(lines.items()):
                if single:
                    curve(axes, single, number, family)
                _together(axes, together, number)
            heading(axes, benchmark.label)
            axes.set_xlabel("number of blocks")
        grid[0].set_ylabel("%")
        legend(figure, grid, list(depths))
        return figure

    words = [
        f"{benchmark.label}: {clean(family, 40)} " + ", ".join(f"{v:.1f} with {d} blocks" for d, v in single.items())
        for benchmark, lines in curves.items()
        for family, (single, _) in lines.items()
        if single
    ]
    caption = "Depth: what is left with fewer blocks. Solid: the best single block; dotted: several blocks together"
    return write_figure(out, draw, caption, ". ".join(words) + ".", _DEPTH_READING)


def _by_depth(
    rows: Mapping[str, Mapping[str, EvalResult]], names: Mapping[int, str]
) -> tuple[dict[int, float], dict[int, float]]:
    single: dict[int, float] = {}
    together: dict[int, float] = {}
    for depth in sorted(names):
        values = values_of(rows.get(names[depth], {}))
        top, more = best(values), [value for block, value in values.items() if not block.isdigit()]
        single |= {depth: top[1]} if top else {}
        together |= {depth: more[0]} if more else {}
    return single, together


def roughness_figure(values: Mapping[str, ByBlock], out: Path, variants: Sequence[str]) -> Figure | None:
    """The median over images against block, a line a variant; None if there is no number at all."""
    curves: dict[str, dict[int, float]] = {}
    for name, blocks in values.items():
        medians = {int(block): typical(of_images) for block, of_images in blocks.items()}
        curves[name] = {block: value for block, value in sorted(medians.items()) if value is not None}
    caption = "Roughness of PCA maps by block: Geary's C of neighbouring tokens, median over the gallery's images"
    caption += " (1: no spatial order, 0: smooth)"
    title = "roughness of PCA maps"
    return curves_figure({title: curves}, out, caption=caption, reading=_ROUGHNESS_READING, variants=variants)
