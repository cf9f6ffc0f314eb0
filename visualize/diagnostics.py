"""Rows of ``dinoskip.diagnostics.signal_table`` and ``dinoskip.init.report`` as tables and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dinoskip.measures import condition_number
from dinoskip.randomness import torch_rng
from visualize.figures import Figure, _curve, _legend, _name, _panels, _write, diagnostics_figure
from visualize.report import DataTable

Rows = Sequence[Mapping[str, Any]]

_SIGNAL = {"token_cosine": "token cosine", "effective_rank": "effective rank", "query_gradient": "query gradient"}
_WEIGHTS = {
    "block": "block",
    "kappa_vo": "κ(WV WO)",
    "vo_min": "σ min WV WO",
    "vo_max": "σ max WV WO",
    "logit_diagonal": "logit of a token with itself",
    "logit_spread": "spread of other logits",
    "kappa_q": "κ(WQ), median head",
    "fc1_gain": "fc1 gain",
    "fc2_gain": "fc2 gain",
}


def signal_table(rows: Rows) -> DataTable:
    """Fresh networks by token cosine, effective rank and query gradient at blocks 1, 3, the middle and the last."""
    depth = max((len(row["token_cosine"]) for row in rows), default=1)
    blocks = sorted({1, min(3, depth), max(1, depth // 2), depth})
    columns = ["network"]
    columns += [f"cosine b{block}" for block in blocks] + ["cosine final"]
    columns += [f"rank b{block}" for block in blocks] + ["rank final"]
    columns += [f"query grad b{block}" for block in blocks]
    body = [
        [
            row["name"],
            *(_at(row["token_cosine"], block) for block in blocks),
            row["final_cosine"],
            *(_at(row["effective_rank"], block) for block in blocks),
            row["final_effective_rank"],
            *(_at(row["query_gradient"], block) for block in blocks),
        ]
        for row in rows
    ]
    note = "Token cosine and effective rank after norm1, before any training; query gradient is the norm of dL/dWQ."
    return DataTable("Signal propagation at initialisation", columns, body, note)


def signal_figure(rows: Rows, out: Path, *, pdf: bool = False) -> Figure | None:
    """The same against block, one panel a quantity; rank and gradient on logarithmic axes."""
    panels = {
        title: {str(row["name"]): dict(enumerate(map(float, row[key]), start=1)) for row in rows}
        for key, title in _SIGNAL.items()
    }
    return diagnostics_figure(
        panels,
        out,
        caption="Signal propagation at initialisation, fresh networks",
        logarithmic=("effective rank", "query gradient"),
        pdf=pdf,
    )


def weights_table(title: str, rows: Rows) -> DataTable:
    """One model's weights block by block, folded."""
    return DataTable.of(title, rows, _WEIGHTS, folded=True)


def weights_figure(models: Mapping[str, Rows], out: Path, *, caption: str, pdf: bool = False) -> Figure | None:
    """κ(WV WO) and the mean diagonal logit against block, one line a model (fresh or trained)."""
    panels = {
        title: {name: {int(row["block"]): float(row[key]) for row in rows} for name, rows in models.items()}
        for key, title in (("kappa_vo", "κ(WV WO)"), ("logit_diagonal", "logit of a token with itself"))
    }
    return diagnostics_figure(panels, out, caption=caption, logarithmic=("κ(WV WO)",), pdf=pdf)


_KAPPAS = {
    "kappa_attention": "κ(attention), median",
    "kappa_sa": "κ(SA(X))",
    "kappa_sa_skip": "κ(SA(X) + X)",
    "kappa_k": "κ(K), lower bound",
    "kappa_weights": "κ(J) by WQ, WK, WV",
    "kappa_weights_bound": "bound of κ(J), Theorem 3.1",
}
_SIGNALS = {
    "token_cosine": "token cosine",
    "effective_rank": "effective rank",
    "attention_entropy": "attention entropy / ln n",
    "attention_diagonal": "mean diagonal of attention",
    "excess_kurtosis": "excess kurtosis of outputs",
    "grad_query": "query gradient",
}
_LOG = (*_KAPPAS.values(), "effective rank", "mean diagonal of attention", "query gradient")


def inside_figures(result: Mapping[str, Any], out: Path, *, pdf: bool = False) -> list[Figure]:
    """Figures of ``dinoskip.pipeline.inside``'s result: κ and signals by block, histograms, SQNR by bits, CKA."""
    rows = {name: found["rows"] for name, found in result["inside"].items()}
    made = [
        _by_block(rows, _KAPPAS, out / "kappa", "Condition numbers by block, on photographs", pdf),
        _by_block(rows, _SIGNALS, out / "signals", "Tokens, attention and gradients by block, on photographs", pdf),
        softmax_figure(out / "softmax", pdf=pdf),
        histogram_figure({n: f["histograms"] for n, f in result["inside"].items()}, out / "histograms", pdf=pdf),
        sqnr_figure(result["sqnr"], out / "sqnr", pdf=pdf),
        cka_figure(result["cka"], out / "cka", pdf=pdf),
    ]
    return [figure for figure in made if figure is not None]


def _by_block(
    models: Mapping[str, Rows], titles: Mapping[str, str], out: Path, caption: str, pdf: bool
) -> Figure | None:
    panels = {
        title: {
            name: {int(row["block"]): float(row[key]) for row in rows if row.get(key) is not None}
            for name, rows in models.items()
        }
        for key, title in titles.items()
    }
    return diagnostics_figure(panels, out, caption=caption, variants=list(models), logarithmic=_LOG, pdf=pdf)


def training_figure(runs: Mapping[str, Rows], out: Path, *, pdf: bool = False) -> Figure | None:
    """Rows of each run's ``diagnostics.jsonl`` against step: the median over blocks of every quantity."""
    titles = {
        "entropy": "attention entropy / ln n", "diagonal": "mean diagonal of attention",
        "token_cosine": "token cosine", "kurtosis": "excess kurtosis of outputs", "grad_query": "query gradient",
    }  # fmt: skip
    panels = {
        title: {
            name: {int(row["step"]): median(map(float, row[key])) for row in rows if row.get(key)}
            for name, rows in runs.items()
        }
        for key, title in titles.items()
    }
    caption = "Inside while training, median over blocks, on two fixed images"
    logarithmic = ("mean diagonal of attention", "query gradient")
    return diagnostics_figure(
        panels, out, caption=caption, variants=list(runs), logarithmic=logarithmic, along="step", pdf=pdf
    )


def softmax_figure(out: Path, *, pdf: bool = False) -> Figure:
    """Softmax of a diagonally dominant and of a diffuse 10 × 10 matrix (Cutting the Skip, Fig. 5), seed 0."""
    noise = 0.1 * torch.randn(10, 10, dtype=torch.float64, generator=torch_rng(0, "figure 5")) / 10**0.5
    shown = {}
    for beta in (5, 0):
        attention = (noise + beta * torch.eye(10, dtype=torch.float64)).softmax(-1)
        kappa = float(condition_number(attention).kappa)
        shown[f"β = {beta}: κ = {kappa:.4g}"] = attention.tolist()

    def draw(_: Sequence[str]) -> Any:
        figure, grid = _panels(2)
        _heat(figure, grid, shown)
        return figure

    caption = "Softmax of 0.1 Z + β I: peaked and diffuse attention"
    return _write(out, draw, 1, caption, "; ".join(shown), pdf)


def _heat(figure: Any, grid: Sequence[Any], shown: Mapping[str, Sequence[Sequence[float | None]]]) -> None:
    """A heat map from 0 to 1 in each of ``grid``, with one colour bar."""
    image = None
    for axes, (title, values) in zip(grid, shown.items(), strict=True):
        table = [[math.nan if value is None else value for value in row] for row in values]
        image = axes.imshow(table, vmin=0, vmax=1, cmap="cividis", origin="upper", extent=_extent(table))
        axes.set_title(_name(title))
        axes.grid(False)
    figure.colorbar(image, ax=list(grid), shrink=0.8)


def _extent(table: Sequence[Sequence[float]]) -> tuple[float, float, float, float]:
    return 0.5, len(table[0]) + 0.5, len(table) + 0.5, 0.5


def histogram_figure(
    models: Mapping[str, Mapping[str, Mapping[str, Any]]], out: Path, *, pdf: bool = False
) -> Figure | None:
    """Density of standardised block outputs, one panel a block, with γ = excess kurtosis (paper 4, Fig. 4)."""
    names = list(models)
    blocks = sorted({int(block) for found in models.values() for block in found})
    if not blocks:
        return None

    def draw(colours: Sequence[str]) -> Any:
        figure, grid = _panels(len(blocks))
        for axes, block in zip(grid, blocks, strict=True):
            for number, name in enumerate(names):
                found = models[name].get(str(block))
                if found is None:
                    continue
                count = len(found["density"])
                places = [-8 + 16 * (index + 0.5) / count for index in range(count)]
                axes.plot(places, found["density"], color=colours[number], label=_name(name))
                label = f"γ = {found['excess_kurtosis']:.3g}"
                axes.text(0.98, 0.95 - 0.1 * number, label, color=colours[number], ha="right", va="top",
                          transform=axes.transAxes)  # fmt: skip
            axes.set_title(f"block {block}")
            axes.set_xlabel("standard deviations")
            axes.set_yscale("log")
            axes.set_ylim(1e-5, 2)
        grid[0].set_ylabel("density")
        _legend(figure, grid[0])
        return figure

    words = [
        f"{name}: " + ", ".join(f"block {block} γ = {one['excess_kurtosis']:.3g}" for block, one in found.items())
        for name, found in models.items()
    ]
    return _write(out, draw, len(names), "Activations of block outputs, standardised", "; ".join(words), pdf)


def sqnr_figure(
    models: Mapping[str, Mapping[str, Mapping[str, float | None]]], out: Path, *, pdf: bool = False
) -> Figure | None:
    """Median SQNR over sites against bits of activations (paper 4, Fig. 11), and its normalised MSE."""
    names = list(models)
    if not names:
        return None
    curves: dict[str, dict[int, float]] = {}
    for name, sites in models.items():
        by_bits: dict[int, list[float]] = {}
        for site in sites.values():
            for bits, value in site.items():
                if value is not None:
                    by_bits.setdefault(int(bits), []).append(value)
        curves[name] = {bits: median(values) for bits, values in by_bits.items()}
    panels = {
        "SQNR in dB": curves,
        "normalised MSE": {n: {b: 10 ** (-v / 10) for b, v in curve.items()} for n, curve in curves.items()},
    }

    def draw(colours: Sequence[str]) -> Any:
        figure, grid = _panels(2)
        for axes, (title, found) in zip(grid, panels.items(), strict=True):
            for number, (name, curve) in enumerate(found.items()):
                _curve(axes, curve, colours[number], number, name)
            axes.set_title(title)
            axes.set_xlabel("bits of activations")
        grid[1].set_yscale("log")
        grid[1].yaxis.set_minor_formatter("")
        _legend(figure, grid[0])
        return figure

    words = [
        f"{name}: " + ", ".join(f"{b} bits {v:.1f} dB" for b, v in curve.items()) for name, curve in curves.items()
    ]
    return _write(out, draw, len(names), "Distortion of activations, median over sites", "; ".join(words), pdf)


def cka_figure(pairs: Sequence[Mapping[str, Any]], out: Path, *, pdf: bool = False) -> Figure | None:
    """Linear CKA of every pair of blocks, a heat map a pair of models."""
    shown = {f"{pair['left']} | {pair['right']}": pair["matrix"] for pair in pairs}
    if not shown:
        return None

    def draw(_: Sequence[str]) -> Any:
        figure, grid = _panels(len(shown))
        _heat(figure, grid, shown)
        for axes in grid:
            axes.set_xlabel("block of the second")
        grid[0].set_ylabel("block of the first")
        return figure

    return _write(out, draw, 1, "Linear CKA between blocks", "Pairs: " + "; ".join(shown), pdf)


def _at(values: Sequence[float], block: int) -> float | None:
    return float(values[block - 1]) if block <= len(values) else None
