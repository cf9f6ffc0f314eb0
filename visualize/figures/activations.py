"""Figures of what is inside networks: softmax of two matrices, histograms, SQNR by bits, CKA between blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dinoskip.models.rank_collapse import condition_number
from dinoskip.runtime.randomness import torch_rng
from visualize.figures.curves import curves_figure
from visualize.figures.drawing import TITLE, Figure, dash, fitted, legend, panels, write_figure
from visualize.palette import variant_colour, variant_places

_HEAT = (2.9, 2.9)  # inches a heat map
_ALL_PAIRS = 4  # of at most so many networks every pair is drawn
_SOFTMAX_READING = (
    "This figure is the same for every study. With a large diagonal, attention is nearly the identity and well "
    "conditioned. Without it, all rows are nearly equal, and attention is badly conditioned. The paper's "
    "initialisation gives the first case."
)
_HISTOGRAM_READING = (
    "Heavy tails and a large γ (a normal distribution has 0) mean outliers, which make a network hard to quantise."
)
_SQNR_READING = (
    "Higher is better. Each bit adds about 6 dB to every line. A line that is lower throughout belongs to a network "
    "with outliers, which widen the range that the bits must cover."
)
_CKA_READING = (
    "Large bright squares off the diagonal mean that these blocks have nearly the same representation. If only the "
    "diagonal is bright, every block changes it."
)
_GAMMAS = 4  # of at most so many networks γ is written into the panels


def softmax_figure(out: Path) -> Figure:
    """Softmax of a diagonally dominant and of a diffuse 10 × 10 matrix (Cutting the Skip, Fig. 5), seed 0."""
    noise = 0.1 * torch.randn(10, 10, dtype=torch.float64, generator=torch_rng(0, "figure 5")) / 10**0.5
    shown = {}
    for beta in (5, 0):
        attention = (noise + beta * torch.eye(10, dtype=torch.float64)).softmax(-1)
        kappa = float(condition_number(attention).kappa)
        shown[f"β = {beta}: κ = {kappa:.4g}"] = attention.tolist()

    def draw() -> Any:
        figure, grid = panels(2, _HEAT)
        _heat(figure, grid, list(shown.values()))
        for axes, title in zip(grid, shown, strict=True):
            axes.set_title(title)
        return figure

    return write_figure(
        out, draw, "Softmax of 0.1 Z + β I: peaked and diffuse attention", "; ".join(shown), _SOFTMAX_READING
    )


def _heat(figure: Any, grid: Sequence[Any], shown: Sequence[Sequence[Sequence[float | None]]]) -> None:
    """A heat map from 0 to 1 in each of ``grid``, with one colour bar; white where there is no number."""
    image = None
    for axes, values in zip(grid, shown, strict=True):
        table = [[math.nan if value is None else value for value in row] for row in values]
        extent = (0.5, len(table[0]) + 0.5, len(table) + 0.5, 0.5)
        image = axes.imshow(table, vmin=0, vmax=1, cmap="cividis", origin="upper", extent=extent)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.grid(False)
    lines = math.ceil(len(grid) / 3)
    figure.colorbar(image, ax=list(grid), shrink=0.8 / lines, anchor=(0, 1))


def histogram_figure(
    models: Mapping[str, Mapping[str, Mapping[str, Any]]], out: Path, variants: Sequence[str] | None = None
) -> Figure | None:
    """Density of standardised block outputs, one panel a block, with γ = excess kurtosis (paper 4, Fig. 4)."""
    names = list(variants or models)
    places = variant_places(names)
    blocks = sorted({int(block) for by_block in models.values() for block in by_block})
    if not blocks:
        return None

    def draw() -> Any:
        figure, grid = panels(len(blocks))
        for axes, block in zip(grid, blocks, strict=True):
            for place, name in enumerate(models):
                number, histogram = places[name], models[name].get(str(block))
                if histogram is None:
                    continue
                count = len(histogram["density"])
                middles = [-8 + 16 * (index + 0.5) / count for index in range(count)]
                look = {"color": variant_colour(number), "linestyle": dash(number), "label": name, "linewidth": 1.4}
                axes.plot(middles, histogram["density"], **look)
                if len(models) <= _GAMMAS:
                    label = f"γ = {histogram['excess_kurtosis']:.3g}"
                    axes.text(0.98, 0.97 - 0.09 * place, label, color=variant_colour(number), ha="right", va="top",
                              transform=axes.transAxes)  # fmt: skip
            axes.set(title=f"block {block}", xlabel="standard deviations", yscale="log", ylim=(1e-5, 2), xlim=(-8, 8))
        grid[0].set_ylabel("density")
        legend(figure, grid, names)
        return figure

    words = [
        f"{name}: " + ", ".join(f"block {block} γ = {row['excess_kurtosis']:.3g}" for block, row in by_block.items())
        for name, by_block in models.items()
    ]
    return write_figure(out, draw, "Activations of block outputs, standardised", "; ".join(words), _HISTOGRAM_READING)


def sqnr_figure(
    models: Mapping[str, Mapping[str, Mapping[str, float | None]]], out: Path, variants: Sequence[str] | None = None
) -> Figure | None:
    """Median SQNR over sites against bits of activations (paper 4, Fig. 11), and its normalised MSE."""
    curves: dict[str, dict[int, float]] = {}
    for name, sites in models.items():
        by_bits: dict[int, list[float]] = {}
        for site in sites.values():
            for bits, value in site.items():
                if value is not None:
                    by_bits.setdefault(int(bits), []).append(value)
        curves[name] = {bits: median(values) for bits, values in by_bits.items()}
    errors = {name: {bits: 10 ** (-value / 10) for bits, value in points.items()} for name, points in curves.items()}
    return curves_figure(
        {"SQNR in dB": curves, "normalised MSE": errors},
        out,
        caption="Distortion of activations, median over sites",
        reading=_SQNR_READING,
        variants=list(variants or models),
        logarithmic=("normalised MSE",),
        along="bits of activations",
    )


def cka_figure(pairs: Sequence[Mapping[str, Any]], out: Path) -> Figure | None:
    """Linear CKA between blocks, a heat map a pair of networks (rows: the first, columns: the second).

    Of more than four networks only each with itself and each with the first are drawn.
    """
    names = list(dict.fromkeys(pair["left"] for pair in pairs))
    shown = [pair for pair in pairs if len(names) <= _ALL_PAIRS or pair["left"] in {pair["right"], names[0]}]
    if not shown:
        return None

    def draw() -> Any:
        figure, grid = panels(len(shown), _HEAT)
        figure.get_layout_engine().set(h_pad=0.12)
        _heat(figure, grid, [pair["matrix"] for pair in shown])
        room = _HEAT[0] - 0.6
        for axes, pair in zip(grid, shown, strict=True):
            axes.set_title(fitted(pair["left"], room, TITLE, 2))
            same = pair["left"] == pair["right"]
            axes.set_xlabel("block" if same else f"block of\n{fitted(pair['right'], room, lines=2)}")
            axes.set_ylabel("block")
        return figure

    caption = "Linear CKA between blocks: down the network of the title, across the one named below (none: the same)"
    if any(value is None for pair in shown for row in pair["matrix"] for value in row):
        caption += "; white where all tokens of a block are the same"
    if len(shown) < len(pairs):
        caption += "; each network with itself and with the first"
    words = [f"{pair['left']} with {pair['right']}" for pair in shown]
    return write_figure(out, draw, caption, "Pairs: " + "; ".join(words), _CKA_READING)
