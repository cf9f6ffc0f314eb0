"""Figures of a study: loss, measures against block, epoch and depth; the same colour for a variant in all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dinoskip.results import EvalResult
from visualize.drawing import (
    PANEL,
    Figure,
    curve,
    dash,
    heading,
    legend,
    logarithmic_scale,
    mark,
    panels,
    several,
    write_figure,
)
from visualize.pages import clean
from visualize.tables import Measure, arranged, best, last_epochs, one_vote, single_blocks, values_of

Curves = Mapping[str, Mapping[int, float]]  # variant -> {block: value}
Variants = Mapping[str, Sequence[EvalResult]]
Groups = Mapping[str, str]  # variant -> the panel it belongs to (its optimizer)


def _groups(names: Sequence[str], groups: Groups | None) -> dict[str, list[str]]:
    """Panels and the variants of each, in order; one panel without a title if all belong together."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault((groups or {}).get(name, ""), []).append(name)
    return found if len(found) > 1 else {"": list(names)}


def loss_figure(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], out: Path, groups: Groups | None = None
) -> Figure | None:
    """Training loss against step, one line a variant, a panel an optimizer (``groups``), as figure 1 of the paper.

    From the rows of each run's ``metrics.jsonl``. The thin line is the loss as logged, the thick one its running
    mean over a thirtieth of the run. Rows without a finite loss are left out; None if nothing is left.
    """
    found: dict[str, np.ndarray] = {}  # (steps, 2)
    for name, rows in runs.items():
        points = [
            (float(row["step"]), float(row["loss"]))
            for row in rows
            if isinstance(row.get("loss"), int | float) and "step" in row and math.isfinite(row["loss"])
        ]
        if points:
            found[name] = np.array(points)
    if not found:
        return None
    order, parts = list(runs), _groups(list(found), groups)

    def draw(colours: Sequence[str]) -> Any:
        figure, grid = panels(len(parts), (6.4, 3.4) if len(parts) == 1 else PANEL)
        for axes, (title, names) in zip(grid, parts.items(), strict=True):
            for name in names:
                number = order.index(name)
                steps, loss = found[name].T
                width = max(1, len(loss) // 30)
                axes.plot(steps, loss, color=colours[number], linewidth=0.8, alpha=0.3)
                smooth = np.convolve(loss, np.ones(width) / width, mode="valid")
                middle = steps[(width - 1) // 2 :][: len(smooth)]
                axes.plot(middle, smooth, color=colours[number], linestyle=dash(number), label=name)
            axes.set_xlabel("step")
            axes.margins(x=0.01)
            heading(axes, title)
            axes.sharey(grid[0])
        grid[0].set_ylabel("loss")
        legend(figure, grid, order)
        return figure

    finals = "; ".join(f"{clean(name, 40)} {loss[-1, 1]:.2f}" for name, loss in found.items())
    caption = "Training loss" + (", by optimizer" if len(parts) > 1 else "")
    return write_figure(out, draw, len(order), caption, f"Training loss against step. Last values: {finals}.")


def blocks_figure(variants: Variants, out: Path) -> Figure | None:
    """Each headline measure (mIoU, CorLoc, k-NN) against block, one panel a measure; None if no row has a single block.

    The best block of a variant is ringed, 95 % intervals are shaded; a dotted level is a value of several blocks
    together.
    """
    found = {
        measure: rows
        for measure, rows in one_vote(last_epochs(variants)).items()
        if measure.task != "classify"  # of the last block alone
        and any(single_blocks(values_of(one)) for one in rows.values())
    }
    if not found:
        return None
    order = list(variants)

    def draw(colours: Sequence[str]) -> Any:
        figure, grid = panels(len(found))
        for axes, (measure, rows) in zip(grid, found.items(), strict=True):
            for name, own in rows.items():
                _block_curve(axes, own, colours[order.index(name)], order.index(name), name)
            heading(axes, measure.label)
            axes.set_xlabel("block")
        grid[0].set_ylabel("%")
        legend(figure, grid, order)
        return figure

    words = [
        f"{measure.label}: "
        + ", ".join(
            f"{clean(name, 40)} best {top[1]:.1f} at block {top[0]}"
            for name, top in ((name, best(values_of(one))) for name, one in rows.items())
            if top
        )
        for measure, rows in found.items()
    ]
    caption = "Frozen features, block by block. Rings mark the best block; dotted levels use several blocks together"
    if any(row.low is not None for rows in found.values() for own in rows.values() for row in own.values()):
        caption += "; shades are 95 % intervals"
    return write_figure(out, draw, len(order), caption, ". ".join(words) + ".")


def _block_curve(axes: Any, rows: Mapping[str, EvalResult], colour: str, number: int, name: str) -> None:
    """One variant in one panel: its curve, the ring, the shade, and levels of several blocks."""
    points = single_blocks(values_of(rows))
    if points:
        curve(axes, points, colour, number, name)
        top = best(values_of(rows)) or ("1", math.nan)
        axes.plot(int(top[0]), top[1], "o", markersize=9, fillstyle="none", color=colour)
    ends = {block: (rows[str(block)].low, rows[str(block)].high) for block in points}
    known = {block: end for block, end in ends.items() if None not in end}
    if known:
        low, high = zip(*known.values(), strict=True)
        axes.fill_between(list(known), low, high, color=colour, alpha=0.13 if number < 6 else 0.07, linewidth=0)
    for block, row in rows.items():
        if not block.isdigit():
            axes.axhline(row.value, color=colour, **several(number))


def epochs_figure(variants: Variants, out: Path, groups: Groups | None = None) -> Figure | None:
    """Each headline measure against epoch, as figure 2 of the paper: a line of panels a measure, a column an optimizer.

    Solid: the best single block of each epoch. Dotted: several blocks together. The panels of a measure share their
    scale. None unless some variant was evaluated at two epochs.
    """
    found = {
        measure: {name: epochs for name, epochs in rows.items() if len(epochs) > 1}
        for measure, rows in one_vote(arranged(variants)).items()
        if measure.task != "classify"
    }
    found = {measure: rows for measure, rows in found.items() if rows}
    if not found:
        return None
    order = list(variants)
    parts = _groups([name for name in order if any(name in rows for rows in found.values())], groups)

    def draw(colours: Sequence[str]) -> Any:
        cells = [(measure, title) for measure in found for title in parts]
        figure, grid = panels(len(cells), columns=len(parts) if len(parts) > 1 else 3)
        for number, (axes, (measure, title)) in enumerate(zip(grid, cells, strict=True)):
            for name in parts[title]:
                place = order.index(name)
                for blocks, points in _by_epoch(found[measure].get(name, {})).items():
                    if blocks:
                        _together(axes, points, colours[place], place)
                    else:
                        curve(axes, points, colours[place], place, name)
            heading(axes, f"{measure.label}" + (f", {title}" if title else ""))
            axes.set_xlabel("epoch")
            if len(parts) > 1:
                axes.sharey(grid[number - number % len(parts)])
        grid[0].set_ylabel("%")
        legend(figure, grid, order)
        return figure

    caption = "Frozen features against epoch. Solid: the best single block; dotted: several blocks together"
    return write_figure(out, draw, len(order), caption, _epoch_words(found))


def _together(axes: Any, points: Mapping[int, float], colour: str, number: int) -> None:
    """Values of several blocks together at integer places."""
    axes.plot(list(points), list(points.values()), color=colour, marker=mark(number), markersize=3.5, **several(number))


def _by_epoch(epochs: Mapping[int, Mapping[str, EvalResult]]) -> dict[str, dict[int, float]]:
    """``{"": {epoch: best single block}, "3+6+9+12": {epoch: value}}``."""
    found: dict[str, dict[int, float]] = {}
    for epoch in sorted(epochs):
        values = values_of(epochs[epoch])
        top = best(values)
        if top:
            found.setdefault("", {})[epoch] = top[1]
        for block, value in values.items():
            if not block.isdigit():
                found.setdefault(block, {})[epoch] = value
    return found


def _epoch_words(found: Mapping[Measure, Mapping[str, Mapping[int, Mapping[str, EvalResult]]]]) -> str:
    words = []
    for measure, rows in found.items():
        for name, epochs in rows.items():
            points = _by_epoch(epochs).get("", {})
            shown = ", ".join(f"{value:.1f} at epoch {epoch}" for epoch, value in points.items())
            words.append(f"{measure.label}: {clean(name, 40)} {shown}")
    return ". ".join(words) + "."


def depth_figure(variants: Variants, families: Mapping[str, tuple[str, int]], out: Path) -> Figure | None:
    """Each headline measure against the number of blocks, one line a family of variants that differ in depth.

    ``families`` is ``{variant: (name of its family, depth)}``. Solid: the best single block; dotted: several blocks
    together. None unless a family has two depths.
    """
    depths: dict[str, dict[int, str]] = {}
    for name, (family, depth) in families.items():
        if name in variants:
            depths.setdefault(family, {}).setdefault(depth, name)
    studied = [family for family, own in depths.items() if len(own) > 1]
    found = one_vote(last_epochs(variants)) if studied else {}
    if not found:
        return None
    curves = {
        measure: {family: _by_depth(rows, depths[family]) for family in depths} for measure, rows in found.items()
    }

    def draw(colours: Sequence[str]) -> Any:
        figure, grid = panels(len(curves))
        for axes, (measure, lines) in zip(grid, curves.items(), strict=True):
            for number, (family, (single, together)) in enumerate(lines.items()):
                if single:
                    curve(axes, single, colours[number], number, family)
                _together(axes, together, colours[number], number)
            heading(axes, measure.label)
            axes.set_xlabel("number of blocks")
        grid[0].set_ylabel("%")
        legend(figure, grid, list(depths))
        return figure

    words = [
        f"{measure.label}: {clean(family, 40)} " + ", ".join(f"{v:.1f} with {d} blocks" for d, v in single.items())
        for measure, lines in curves.items()
        for family, (single, _) in lines.items()
        if single
    ]
    caption = "Depth: what is left with fewer blocks. Solid: the best single block; dotted: several blocks together"
    return write_figure(out, draw, len(depths), caption, ". ".join(words) + ".")


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


def online_figure(runs: Mapping[str, Sequence[Mapping[str, Any]]], out: Path) -> Figure | None:
    """What was measured while training against epoch, one panel a measure, from the rows of each ``metrics.jsonl``.

    Measures are ``knn{k}_top1``, ``probe_miou``, ``probe_block{b}_miou`` and, of supervised runs, ``top1`` and
    ``top5``; None if no row has one.
    """
    shown: dict[str, dict[str, dict[int, float]]] = {}
    for name, rows in runs.items():
        for row in rows:
            for key, value in row.items():
                title = _online_title(key)
                if title and isinstance(value, int | float) and "epoch" in row:
                    shown.setdefault(title, {}).setdefault(name, {})[int(row["epoch"])] = float(value)
    caption = "Measured while training, on a fixed sample of images, in percent"
    return curves_figure(shown, out, caption=caption, variants=list(runs), along="epoch")


def _decades(curves: Curves) -> float:
    values = [value for points in curves.values() for value in points.values()]
    return math.log10(max(values) / min(values))


def _online_title(key: str) -> str | None:
    """A panel's title for a measure taken while training, None for any other key."""
    if found := re.fullmatch(r"top([15])", key):
        return f"top-{found[1]}"
    if found := re.fullmatch(r"knn(\d+)_top1", key):
        return f"k-NN top-1, k = {found[1]}"
    if found := re.fullmatch(r"probe_(?:block(\d+)_)?miou", key):
        return f"probe mIoU, block {found[1]}" if found[1] else "probe mIoU"
    return None


def curves_figure(
    quantities: Mapping[str, Curves],
    out: Path,
    *,
    caption: str,
    variants: Sequence[str] | None = None,
    logarithmic: Sequence[str] = (),
    along: str = "block",
) -> Figure | None:
    """Any quantity against block (or what ``along`` says): ``{panel title: {variant: {block: value}}}``.

    Panels whose titles are in ``logarithmic`` have a log axis if they span a decade (else it would have no labels).
    Values that are not finite (or not positive on a log axis) are left out. ``variants`` gives the order of colours;
    by default the order in which they occur.
    """
    order = list(variants or dict.fromkeys(name for curves in quantities.values() for name in curves))
    kept: dict[str, dict[str, dict[int, float]]] = {}
    for title, curves in quantities.items():
        for name, points in curves.items():
            good = {b: v for b, v in points.items() if math.isfinite(v) and (v > 0 or title not in logarithmic)}
            if good and name in order:
                kept.setdefault(title, {})[name] = good
    if not kept:
        return None

    def draw(colours: Sequence[str]) -> Any:
        figure, grid = panels(len(kept))
        for axes, (title, curves) in zip(grid, kept.items(), strict=True):
            for name, points in curves.items():
                curve(axes, points, colours[order.index(name)], order.index(name), name)
            if title in logarithmic and _decades(curves) >= 1:
                logarithmic_scale(axes)
            else:
                axes.ticklabel_format(axis="y", useOffset=False)
            heading(axes, title)
            axes.set_xlabel(along)
        legend(figure, grid, order)
        return figure

    words = [
        f"{clean(title)}: "
        + ", ".join(
            f"{clean(name, 40)} from {points[min(points)]:.3g} to {points[max(points)]:.3g}"
            for name, points in curves.items()
        )
        for title, curves in kept.items()
    ]
    return write_figure(out, draw, len(order), caption, ". ".join(words) + ".")
