"""Figures of what is inside networks, fresh or trained: signal propagation, weights, condition numbers by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from visualize.figures.activations import cka_figure, histogram_figure, softmax_figure, sqnr_figure
from visualize.figures.curves import curves_figure
from visualize.figures.drawing import Figure

Rows = Sequence[Mapping[str, Any]]

_SIGNAL = {"token_cosine": "token cosine", "effective_rank": "effective rank", "query_gradient": "query gradient"}


def signal_figure(rows: Rows, out: Path) -> Figure | None:
    """Token cosine, effective rank and query gradient against block; rank and gradient on logarithmic axes."""
    panels = {
        title: {str(row["name"]): dict(enumerate(map(float, row[key]), start=1)) for row in rows}
        for key, title in _SIGNAL.items()
    }
    return curves_figure(
        panels,
        out,
        caption="Signal propagation at initialisation, fresh networks",
        logarithmic=("effective rank", "query gradient"),
    )


def weights_figure(
    stages: Mapping[str, Mapping[str, Rows]], out: Path, *, caption: str, variants: Sequence[str] | None = None
) -> Figure | None:
    """κ(WV WO) and the mean diagonal logit against block, one line a model: ``{stage: {model: rows}}``.

    A stage, such as "at initialisation" and "trained", has panels of its own.
    """
    kappa = "κ(WV WO)"
    panels = {
        f"{title}, {stage}": {
            name: {int(row["block"]): float(row[key]) for row in rows} for name, rows in models.items()
        }
        for key, title in (("kappa_vo", kappa), ("logit_diagonal", "logit of a token with itself"))
        for stage, models in stages.items()
    }
    logarithmic = [title for title in panels if title.startswith(kappa)]
    return curves_figure(panels, out, caption=caption, logarithmic=logarithmic, variants=variants)


KAPPAS = {
    "kappa_attention": "κ(attention), median",
    "kappa_sa": "κ(SA(X))",
    "kappa_sa_skip": "κ(SA(X) + X)",
    "kappa_mlp": "κ(MLP(X))",
    "kappa_mlp_skip": "κ(MLP(X) + X)",
    "kappa_k": "κ(K), lower bound",
    "kappa_weights": "κ(J) by WQ, WK, WV",
    "kappa_weights_bound": "Theorem 3.1's bound of κ(J)",
    "kappa_weights_ceiling": "what κ(J) cannot exceed",
}
_SIGNALS = {
    "token_cosine": "token cosine",
    "effective_rank": "effective rank",
    "attention_entropy": "attention entropy / ln n",
    "attention_diagonal": "mean diagonal of attention",
    "excess_kurtosis": "excess kurtosis of outputs",
    "grad_query": "query gradient",
}
LOGARITHMIC = (*KAPPAS.values(), "effective rank", "mean diagonal of attention", "query gradient")


def network_figures(result: Mapping[str, Any], out: Path, variants: Sequence[str] | None = None) -> list[Figure]:
    """Figures of ``dinoskip.pipeline.inside``'s result: κ and signals by block, histograms, SQNR by bits, CKA.

    ``variants`` gives the order of colours, of more networks than the result may have.
    """
    rows = {name: one["rows"] for name, one in result["inside"].items()}
    order = list(variants or rows)
    made = [
        _by_block(rows, KAPPAS, out / "kappa", "Condition numbers by block, on photographs", order),
        _by_block(rows, _SIGNALS, out / "signals", "Tokens, attention and gradients by block, on photographs", order),
        softmax_figure(out / "softmax"),
        histogram_figure({n: f["histograms"] for n, f in result["inside"].items()}, out / "histograms", order),
        sqnr_figure(result["sqnr"], out / "sqnr", order),
        cka_figure(result["cka"], out / "cka"),
    ]
    return [figure for figure in made if figure is not None]


def _by_block(
    models: Mapping[str, Rows], titles: Mapping[str, str], out: Path, caption: str, order: Sequence[str]
) -> Figure | None:
    panels = {
        title: {
            name: {int(row["block"]): float(row[key]) for row in rows if row.get(key) is not None}
            for name, rows in models.items()
        }
        for key, title in titles.items()
    }
    return curves_figure(panels, out, caption=caption, variants=order, logarithmic=LOGARITHMIC)
