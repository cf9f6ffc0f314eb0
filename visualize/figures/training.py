"""Figures of training runs: the loss, what was measured while training, what was inside the network."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from visualize.figures.curves import Groups, curves_figure, panel_groups
from visualize.figures.drawing import PANEL, Figure, dash, heading, legend, panels, write_figure
from visualize.figures.networks import KAPPAS, LOGARITHMIC
from visualize.pages import clean
from visualize.palette import variant_colour, variant_places

Rows = Sequence[Mapping[str, Any]]
_PROBE = "probe mIoU"

LOSS_READING = "Look for a line that stays level from the start: such a network does not train."
_TEACHER_READING = (
    " The level of DINO's loss does not rank networks, because it contains the teacher's entropy. At ln K, with K the "
    "number of the head's outputs, training has collapsed."
)
_ONLINE_READING = (
    "Look for lines that rise. Where a line falls while the loss still falls, the features become worse, and an "
    "earlier epoch should be evaluated, too."
)
_KAPPAS = ("kappa_attention", "kappa_sa")
_STEPS = 5  # curves of a panel: more cannot be told apart
_HISTOGRAM = "histogram_"
_HISTOGRAM_READING = (
    "From light to dark: early to late in training. The dashed line is a Gaussian's density. Tails that rise with the "
    "step are outliers, which widen the range that few bits must cover."
)
_INSIDE_READING = (
    "Look for a token cosine that approaches 1 (all tokens become equal, and other statistics of them are degenerate), "
    "an entropy of 1 (attention averages) or 0 (it copies), and query gradients that vanish."
)


def loss_figure(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], out: Path, groups: Groups | None = None
) -> Figure | None:
    """Training loss against step, one line a variant, a panel an optimizer (``groups``), as figure 1 of the paper.

    From the rows of each run's ``metrics.jsonl``. The thin line is the loss as logged, the thick one its running
    mean over a thirtieth of the run. Rows without a finite loss are left out; None if nothing is left.
    """
    losses: dict[str, np.ndarray] = {}  # (steps, 2)
    for name, rows in runs.items():
        points = [
            (float(row["step"]), float(row["loss"]))
            for row in rows
            if isinstance(row.get("loss"), int | float) and "step" in row and math.isfinite(row["loss"])
        ]
        if points:
            losses[name] = np.array(points)
    if not losses:
        return None
    order, parts = list(runs), panel_groups(list(losses), groups)
    places = variant_places(order)

    def draw() -> Any:
        figure, grid = panels(len(parts), (6.4, 3.4) if len(parts) == 1 else PANEL)
        for axes, (title, names) in zip(grid, parts.items(), strict=True):
            for name in names:
                number = places[name]
                steps, loss = losses[name].T
                width = max(1, len(loss) // 30)
                axes.plot(steps, loss, color=variant_colour(number), linewidth=0.8, alpha=0.3)
                smooth = np.convolve(loss, np.ones(width) / width, mode="valid")
                middle = steps[(width - 1) // 2 :][: len(smooth)]
                axes.plot(middle, smooth, color=variant_colour(number), linestyle=dash(number), label=name)
            axes.set_xlabel("step")
            axes.margins(x=0.01)
            heading(axes, title)
            axes.sharey(grid[0])
        grid[0].set_ylabel("loss")
        legend(figure, grid, order)
        return figure

    finals = "; ".join(f"{clean(name, 40)} {loss[-1, 1]:.2f}" for name, loss in losses.items())
    caption = "Training loss" + (", by optimizer" if len(parts) > 1 else "")
    alt = f"Training loss against step. Last values: {finals}."
    by_teacher = any("teacher_entropy" in row for rows in runs.values() for row in rows)
    return write_figure(out, draw, caption, alt, LOSS_READING + _TEACHER_READING * by_teacher)


def online_figure(runs: Mapping[str, Sequence[Mapping[str, Any]]], out: Path) -> Figure | None:
    """Draw the measures taken while training against epoch, one panel each, from the rows of each ``metrics.jsonl``.

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
    parts = [title for title in shown if title.startswith(f"{_PROBE}, ")]
    if len(parts) == 1 and shown[parts[0]] == shown.get(_PROBE):
        del shown[_PROBE]  # of the one block that is measured
    caption = "Measured while training, on a fixed sample of images, in percent"
    return curves_figure(shown, out, caption=caption, reading=_ONLINE_READING, variants=list(runs), along="epoch")


def _online_title(key: str) -> str | None:
    """A panel's title for a measure taken while training, None for any other key."""
    if match := re.fullmatch(r"top([15])", key):
        return f"top-{match[1]}"
    if match := re.fullmatch(r"knn(\d+)_top1", key):
        return f"k-NN top-1, k = {match[1]}"
    if match := re.fullmatch(r"probe_(?:block(\d+)_)?miou", key):
        return f"{_PROBE}, block {match[1]}" if match[1] else _PROBE
    return None


def skip_weight_figure(runs: Mapping[str, Rows], out: Path) -> Figure | None:
    """Weight of the skip connections against step, from each ``metrics.jsonl``; None if it never changes."""
    values = {
        name: {int(row["step"]): float(row["skip_weight"]) for row in rows if "skip_weight" in row}
        for name, rows in runs.items()
    }
    if not any(len(set(by_step.values())) > 1 for by_step in values.values()):
        return None
    caption = "Weight of the skip connections while training (of the last sublayer, where it falls with depth)"
    reading = "Compare with the curves of loss and metrics while the weight changes and after it has stopped changing."
    panels = {"skip weight": values}
    return curves_figure(panels, out, caption=caption, reading=reading, variants=list(runs), along="step")


def training_figure(runs: Mapping[str, Rows], out: Path) -> Figure | None:
    """Rows of each run's ``diagnostics.jsonl`` against step: the median over blocks of every quantity."""
    titles = {
        "entropy": "attention entropy / ln n", "diagonal": "mean diagonal of attention",
        "token_cosine": "token cosine", "kurtosis": "excess kurtosis of outputs",
        "negentropy": "negentropy of outputs, nats", "grad_query": "query gradient",
        **{key: KAPPAS[key] for key in KAPPAS if key in _KAPPAS or key.startswith("kappa_weights")},
    }  # fmt: skip
    panels = {
        title: {
            name: {int(row["step"]): median(map(float, row[key])) for row in rows if row.get(key)}
            for name, rows in runs.items()
        }
        for key, title in titles.items()
    }
    caption = "Inside while training, median over blocks, on two fixed images"
    return curves_figure(
        panels,
        out,
        caption=caption,
        reading=_INSIDE_READING,
        variants=list(runs),
        logarithmic=LOGARITHMIC,
        along="step",
    )


def histograms_figure(runs: Mapping[str, Rows], out: Path) -> Figure | None:
    """Density of the last block's standardised outputs at up to five steps, a panel a run (paper 4, figs. 7 to 9).

    From the rows of each ``diagnostics.jsonl``; None if none has a histogram.
    """
    shown: dict[str, list[tuple[int, list[float]]]] = {}
    for name, rows in runs.items():
        keys = {int(key.removeprefix(_HISTOGRAM)) for row in rows for key in row if key.startswith(_HISTOGRAM)}
        if keys:
            kept = [(int(row["step"]), row[key]) for row in rows if (key := f"{_HISTOGRAM}{max(keys)}") in row]
            where = np.linspace(0, len(kept) - 1, min(_STEPS, len(kept))).round().astype(int)
            shown[name] = [kept[index] for index in where]
    if not shown:
        return None
    places = variant_places(list(runs))

    def draw() -> Any:
        figure, grid = panels(len(shown))
        for axes, (name, curves) in zip(grid, shown.items(), strict=True):
            for place, (step, density) in enumerate(curves, 1):
                axes.plot(_middles(len(density)), density, color=variant_colour(places[name]),
                          alpha=0.2 + 0.8 * place / len(curves), linewidth=1.2, label=f"step {step}")  # fmt: skip
            middles = np.array(_middles(96))
            axes.plot(middles, np.exp(-(middles**2) / 2) / math.sqrt(2 * math.pi), color="0.5", linestyle="--")
            axes.set(xlabel="standard deviations", yscale="log", ylim=(1e-5, 2), xlim=(-8, 8))
            axes.legend(fontsize="small", frameon=False)
            heading(axes, name)
        grid[0].set_ylabel("density")
        return figure

    words = [
        f"{clean(name, 40)} at steps {', '.join(str(step) for step, _ in curves)}" for name, curves in shown.items()
    ]
    caption = "Outputs of the last block while training, standardised, on two fixed images"
    return write_figure(out, draw, caption, "; ".join(words), _HISTOGRAM_READING)


def _middles(count: int) -> list[float]:
    """Middles of ``count`` bins of equal width from -8 to 8."""
    return [-8 + 16 * (index + 0.5) / count for index in range(count)]
