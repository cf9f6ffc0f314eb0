"""Figures as SVG (and PDF): the same colour for a variant everywhere, one file for light pages, one for dark."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dinoskip.files import write_bytes
from dinoskip.results import EvalResult
from visualize.pages import clean
from visualize.palette import variant_colours
from visualize.tables import best, measures, one_vote, single_blocks

Curves = Mapping[str, Mapping[int, float]]  # variant -> {block: value}
_THEMES = {False: ("#1c1c1f", "#66656b", "#e3e0d9"), True: ("#ececef", "#a09fa8", "#3a3a41")}
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))


@dataclass(frozen=True)
class Figure:
    """A figure on disk for a page: ``light`` and ``dark`` SVG files, what it shows, and the same in words."""

    light: Path
    dark: Path
    caption: str
    alt: str


def loss_figure(runs: Mapping[str, Sequence[Mapping[str, Any]]], out: Path, *, pdf: bool = False) -> Figure | None:
    """Training loss against step, one line a variant, from the rows of each run's ``metrics.jsonl``.

    The thin line is the loss as logged, the thick one its running mean over a thirtieth of the run. Rows
    without a finite loss are left out; None if nothing is left.
    """
    curves: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, rows in runs.items():
        points = [
            (float(row["step"]), float(row["loss"]))
            for row in rows
            if isinstance(row.get("loss"), int | float) and "step" in row and math.isfinite(row["loss"])
        ]
        if points:
            table = np.array(points)
            curves[name] = (table[:, 0], table[:, 1])
    if not curves:
        return None

    def draw(colours: Sequence[str]) -> Any:
        figure, (axes,) = _panels(1, (6.4, 3.4))
        for number, name in enumerate(runs):
            if name not in curves:
                continue
            steps, loss = curves[name]
            width = max(1, len(loss) // 30)
            axes.plot(steps, loss, color=colours[number], linewidth=0.8, alpha=0.3)
            smooth = np.convolve(loss, np.ones(width) / width, mode="valid")
            middle = steps[(width - 1) // 2 :][: len(smooth)]
            axes.plot(middle, smooth, color=colours[number], linestyle=_dash(number), label=_name(name))
        axes.set(xlabel="step", ylabel="loss")
        axes.margins(x=0.01)
        _legend(figure, axes)
        return figure

    finals = "; ".join(f"{clean(name, 40)} {loss[-1]:.2f}" for name, (_, loss) in curves.items())
    return _write(out, draw, len(runs), "Training loss", f"Training loss against step. Last values: {finals}.", pdf)


def blocks_figure(variants: Mapping[str, Sequence[EvalResult]], out: Path, *, pdf: bool = False) -> Figure | None:
    """Each headline measure (mIoU, CorLoc, k-NN) against block, one panel a measure; None if no row has a single block.

    The best block of a variant is marked; a dashed level is a value of several blocks together.
    """
    found = {
        measure: values
        for measure, values in one_vote(measures(variants)).items()
        if measure.task != "classify"  # of the last block alone
        and any(map(single_blocks, values.values()))
    }
    if not found:
        return None
    panels = list(found.items())

    def draw(colours: Sequence[str]) -> Any:
        figure, grid = _panels(len(panels))
        for axes, (measure, values) in zip(grid, panels, strict=True):
            for number, name in enumerate(variants):
                curve = single_blocks(values.get(name, {}))
                if not curve:
                    continue
                _curve(axes, curve, colours[number], number, name)
                top = best(values[name]) or ("1", math.nan)
                axes.plot(int(top[0]), top[1], "o", markersize=8, fillstyle="none", color=colours[number])
                for block, value in values[name].items():
                    if not block.isdigit():
                        axes.axhline(value, color=colours[number], linestyle=":", linewidth=1.1)
            axes.set_title(_name(measure.label))
            axes.set_xlabel("block")
        grid[0].set_ylabel("%")
        _legend(figure, grid[0])
        return figure

    words = [
        f"{measure.label}: "
        + ", ".join(
            f"{clean(name, 40)} best {top[1]:.1f} at block {top[0]}"
            for name, top in ((name, best(one)) for name, one in values.items())
            if top
        )
        for measure, values in panels
    ]
    caption = "Frozen features, block by block. Rings mark the best block; dotted levels use several blocks together"
    return _write(out, draw, len(variants), caption, ". ".join(words) + ".", pdf)


def online_figure(runs: Mapping[str, Sequence[Mapping[str, Any]]], out: Path, *, pdf: bool = False) -> Figure | None:
    """What was measured while training against epoch, one panel a measure, from the rows of each ``metrics.jsonl``.

    Measures are ``knn{k}_top1``, ``probe_miou``, ``probe_block{b}_miou`` and, of supervised runs, ``top1`` and
    ``top5``; None if no row has one.
    """
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for name, rows in runs.items():
        for row in rows:
            for key, value in row.items():
                title = _online_title(key)
                if title and isinstance(value, int | float) and "epoch" in row:
                    panels.setdefault(title, {}).setdefault(name, {})[int(row["epoch"])] = float(value)
    caption = "Measured while training, on a fixed sample of images, in percent"
    return diagnostics_figure(panels, out, caption=caption, variants=list(runs), along="epoch", pdf=pdf)


def _online_title(key: str) -> str | None:
    """A panel's title for a measure taken while training, None for any other key."""
    if found := re.fullmatch(r"top([15])", key):
        return f"top-{found[1]}"
    if found := re.fullmatch(r"knn(\d+)_top1", key):
        return f"k-NN top-1, k = {found[1]}"
    if found := re.fullmatch(r"probe_(?:block(\d+)_)?miou", key):
        return f"probe mIoU, block {found[1]}" if found[1] else "probe mIoU"
    return None


def diagnostics_figure(
    panels: Mapping[str, Curves],
    out: Path,
    *,
    caption: str,
    variants: Sequence[str] | None = None,
    logarithmic: Sequence[str] = (),
    along: str = "block",
    pdf: bool = False,
) -> Figure | None:
    """Any quantity against block (or what ``along`` says): ``{panel title: {variant: {block: value}}}``.

    Panels whose titles are in ``logarithmic`` have a log axis. For token similarity, effective rank, the condition
    number of the value-output product, gradients. Values that are not finite (or not positive on a log axis) are left
    out. ``variants`` gives the order of colours; by default the order in which they occur.
    """
    order = list(variants or dict.fromkeys(name for curves in panels.values() for name in curves))
    kept: dict[str, dict[str, dict[int, float]]] = {}
    for title, curves in panels.items():
        for name, curve in curves.items():
            good = {b: v for b, v in curve.items() if math.isfinite(v) and (v > 0 or title not in logarithmic)}
            if good and name in order:
                kept.setdefault(title, {})[name] = good
    if not kept:
        return None

    def draw(colours: Sequence[str]) -> Any:
        figure, grid = _panels(len(kept))
        for axes, (title, curves) in zip(grid, kept.items(), strict=True):
            for name, curve in curves.items():
                _curve(axes, curve, colours[order.index(name)], order.index(name), name)
            if title in logarithmic:
                axes.set_yscale("log")
                axes.yaxis.set_minor_formatter("")
            axes.set_title(_name(title))
            axes.set_xlabel(along)
        _legend(figure, grid[0])
        return figure

    words = [
        f"{clean(title)}: "
        + ", ".join(
            f"{clean(name, 40)} from {curve[min(curve)]:.3g} to {curve[max(curve)]:.3g}"
            for name, curve in curves.items()
        )
        for title, curves in kept.items()
    ]
    return _write(out, draw, len(order), caption, ". ".join(words) + ".", pdf)


def _panels(count: int, size: tuple[float, float] = (3.35, 2.9)) -> tuple[Any, list[Any]]:
    """An empty figure of ``count`` axes, three a line, of ``size`` inches each; not one of pyplot's global figures."""
    from matplotlib.figure import Figure as Drawing

    columns = min(count, 3)
    lines = math.ceil(count / columns)
    figure = Drawing(figsize=(max(5.0, size[0] * columns), size[1] * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    flat = list(grid.flat)
    for axes in flat[count:]:
        axes.set_axis_off()
    for axes in flat[:count]:
        axes.xaxis.get_major_locator().set_params(integer=True)
    return figure, flat[:count]


def _curve(axes: Any, curve: Mapping[int, float], colour: str, number: int, name: str) -> None:
    blocks = sorted(curve)
    values = [curve[block] for block in blocks]
    axes.plot(blocks, values, color=colour, linestyle=_dash(number), marker=".", markersize=6, label=_name(name))


def _dash(number: int) -> Any:
    """Solid for the first six variants; the colours repeat with another dash after that."""
    return _DASHES[number // 6 % len(_DASHES)]


def _name(text: str) -> str:
    """Text for matplotlib: one short line, and no dollar that would start a formula."""
    return clean(text, 48).replace("$", r"\$")


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    inches = 0.08 * (max(map(len, labels)) + 6)  # of the longest entry, its line and the gap after it
    columns = max(1, min(4, int(figure.get_figwidth() / inches)))
    rows = math.ceil(len(labels) / columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows - 1))  # else many rows would cover the panels
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, borderaxespad=0.2)


@contextmanager
def _theme(dark: bool) -> Iterator[None]:
    import matplotlib

    ink, muted, line = _THEMES[dark]
    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans", "font.size": 9.5, "axes.titlesize": 10, "axes.titlelocation": "left",
        "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": line, "axes.labelcolor": muted,
        "axes.titlecolor": ink, "text.color": ink, "xtick.color": muted, "ytick.color": muted, "axes.grid": True,
        "axes.grid.axis": "y", "grid.color": line, "grid.linewidth": 0.7, "axes.axisbelow": True, "xtick.major.size": 0,
        "ytick.major.size": 0, "lines.linewidth": 1.8, "legend.frameon": False, "figure.facecolor": "none",
        "axes.facecolor": "none", "savefig.facecolor": "none",
        "svg.hashsalt": "dinoskip", "pdf.fonttype": 42,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        yield


def _write(out: Path, draw: Callable[[Sequence[str]], Any], count: int, caption: str, alt: str, pdf: bool) -> Figure:
    """Draw for light and dark pages; ``out`` names the light SVG, the dark one gets ``-dark``."""
    dark_path = out.with_name(f"{out.stem}-dark.svg")
    for dark, path in ((False, out.with_suffix(".svg")), (True, dark_path)):
        with _theme(dark):
            figure = draw(variant_colours(count, dark))
            kinds = [("svg", path), *([("pdf", out.with_suffix(".pdf"))] if pdf and not dark else [])]
            for kind, target in kinds:
                stream = io.BytesIO()
                figure.savefig(stream, format=kind, metadata={"Date" if kind == "svg" else "CreationDate": None})
                write_bytes(target, stream.getvalue())
    return Figure(out.with_suffix(".svg"), dark_path, caption, alt)
