"""Any quantity against block, step or epoch: a panel a quantity, a line a variant."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from visualize.figures.drawing import Figure, curve, heading, legend, logarithmic_scale, panels, write_figure
from visualize.pages import clean
from visualize.palette import variant_places

Curves = Mapping[str, Mapping[int, float]]  # variant -> {block: value}
Groups = Mapping[str, str]  # variant -> the panel it belongs to (its optimizer)


def panel_groups(names: Sequence[str], groups: Groups | None) -> dict[str, list[str]]:
    """Panels and the variants of each, in order; one panel without a title if all belong together."""
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault((groups or {}).get(name, ""), []).append(name)
    return members if len(members) > 1 else {"": list(names)}


def curves_figure(
    quantities: Mapping[str, Curves],
    out: Path,
    *,
    caption: str,
    reading: str = "",
    variants: Sequence[str] | None = None,
    logarithmic: Sequence[str] = (),
    along: str = "block",
) -> Figure | None:
    """Any quantity against block (or what ``along`` says): ``{panel title: {variant: {block: value}}}``.

    ``reading`` says in a sentence what to look for.

    Panels whose titles are in ``logarithmic`` have a log axis if they span a decade (else it would have no labels).
    Values that are not finite (or not positive on a log axis) are left out. ``variants`` gives the order of colours;
    by default the order in which they occur.
    """
    order = list(variants or dict.fromkeys(name for curves in quantities.values() for name in curves))
    places = variant_places(order)
    kept: dict[str, dict[str, dict[int, float]]] = {}
    for title, curves in quantities.items():
        for name, points in curves.items():
            good = {b: v for b, v in points.items() if math.isfinite(v) and (v > 0 or title not in logarithmic)}
            if good and name in order:
                kept.setdefault(title, {})[name] = good
    if not kept:
        return None

    def draw() -> Any:
        figure, grid = panels(len(kept))
        for axes, (title, curves) in zip(grid, kept.items(), strict=True):
            for name, points in curves.items():
                curve(axes, points, places[name], name)
            if title in logarithmic and _decades(curves) >= 1:
                logarithmic_scale(axes)
            else:
                axes.ticklabel_format(axis="y", useOffset=False)
            if not any(value for points in curves.values() for value in points.values()):
                axes.set_ylim(-0.05, 1.0)  # zero everywhere: matplotlib's range would have it in the middle
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
    return write_figure(out, draw, caption, ". ".join(words) + ".", reading)


def _decades(curves: Curves) -> float:
    values = [value for points in curves.values() for value in points.values()]
    return math.log10(max(values) / min(values))
