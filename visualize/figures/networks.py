"""Figures of what is inside networks, fresh or trained: signal propagation, weights, condition numbers by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from visualize.figures.activations import cka_figure, histogram_figure, softmax_figure, sqnr_figure
from visualize.figures.curves import curves_figure
from visualize.figures.drawing import Figure
from visualize.pages import clean

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
        reading=_SIGNAL_READING,
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
            name: {int(row["block"]): float(row[key]) for row in rows if row[key] is not None}
            for name, rows in models.items()
        }
        for key, title in (("kappa_vo", kappa), ("logit_diagonal", "logit of a token with itself"))
        for stage, models in stages.items()
    }
    logarithmic = [title for title in panels if title.startswith(kappa)]
    return curves_figure(
        panels, out, caption=caption, reading=_WEIGHTS_READING, logarithmic=logarithmic, variants=variants
    )


def spectrum_figure(spectra: Mapping[str, Sequence[float]], out: Path, variants: Sequence[str]) -> Figure | None:
    """All singular values of one block's Jacobian by its weights, falling, over the largest: ``{variant: values}``."""
    thinned = {}
    for name, values in spectra.items():
        step = max(1, len(values) // _POINTS)
        thinned[name] = {index + 1: values[index] / values[0] for index in range(0, len(values), step)}
    title = "singular value over the largest"
    return curves_figure(
        {title: thinned}, out, caption="Spectrum of the Jacobian of one block's attention by its weights",
        reading=_SPECTRUM_READING, variants=variants, logarithmic=[title], along="number of the singular value",
    )  # fmt: skip


def jacobian_figure(networks: Mapping[str, Mapping[str, Any]], out: Path) -> Figure | None:
    """κ and largest singular value of J_l, of :func:`dinoskip.diagnostics.network_jacobian.network_jacobian`, by block.

    ``networks`` are their ``rows`` by name. None where there is none.
    """
    if not networks:
        return None
    rows = {name: network["rows"] for name, network in networks.items()}
    return _by_block(
        rows, _DEPTH, out, "Jacobian of the last block's output by each block's weights, on a photograph",
        _DEPTH_READING, list(rows),
    )  # fmt: skip


_DEPTH = {
    "largest": "largest singular value of J",
    "kappa": "κ(J), attention",
    "kappa_seen": "κ(J), attention, without what norms take",
    "kappa_mlp_seen": "κ(J), MLP, without what norms take",
}
_POINTS = 40  # of a curve
KAPPAS = {
    "kappa_attention": "κ(attention), median",
    "kappa_sa": "κ(SA(X))",
    "kappa_sa_skip": "κ(SA(X) + X)",
    "kappa_mlp": "κ(MLP(X))",
    "kappa_mlp_skip": "κ(MLP(X) + X)",
    "kappa_k": "κ(K), lower bound",
    "kappa_weights": "κ(J) by WQ, WK, WV",
    "kappa_weights_bound": "Theorem 3.1's bound of κ(J)",
    "kappa_weights_ceiling": "upper bound of κ(J)",
}
_SIGNALS = {
    "token_cosine": "token cosine",
    "effective_rank": "effective rank",
    "attention_entropy": "attention entropy / ln n",
    "attention_diagonal": "mean diagonal of attention",
    "excess_kurtosis": "excess kurtosis of outputs",
    "negentropy": "negentropy of outputs, nats",
    "grad_query": "query gradient",
}
LOGARITHMIC = (*KAPPAS.values(), *_DEPTH.values(), "effective rank", "mean diagonal of attention", "query gradient")


_SIGNAL_READING = (
    "A cosine and a rank that approach 1 with depth mean that all tokens become equal. Query gradients that fall by "
    "orders of magnitude mean that the attention of these blocks cannot learn."
)
_WEIGHTS_READING = (
    "Look for κ(WV WO) that rises above 1 in training. Where the diagonal logit falls to that of other tokens, "
    "attention no longer copies each token but averages over all of them."
)
_SPECTRUM_READING = (
    "A curve that falls far belongs to a badly conditioned Jacobian: a step of gradient descent changes the output in "
    "few directions. The Jacobian is taken with respect to W_Q, W_K and W_V of all heads, on a photograph."
)
_DEPTH_READING = (
    "A κ(J) that grows towards the first blocks means that a step of gradient descent on them changes the output in "
    "few directions: eq. 9 multiplies a factor for every block above, which skips (eq. 8) keep near the identity. "
    "Networks too wide for all singular values have κ(J) as a lower bound, comparable between networks of one width."
)
_SIGNALS_READING = (
    "At a token cosine near 1 the tokens of an image are equal. The dense features of such a block hold no "
    "information, and its other numbers have no meaning. At an attention entropy of 1 attention averages all "
    "tokens; at a diagonal of 1 it copies them."
)
_KAPPA_READING = (
    "Panels with a skip (+ X) are usually far below those without: the skip improves the conditioning. κ(J) and its "
    "bounds depend on weights and tokens, κ(WV WO) on the weights alone."
)
_NO_RANK = 1e14  # κ near 1/eps of float64: what it is of has lost rank


def _kappa_reading(models: Mapping[str, Rows]) -> str:
    """Return the figure's reading; where κ(J) is at float64's limit, it names the tokens as the cause, and blocks."""
    degenerate = []
    for name, rows in models.items():
        lost = [row for row in rows if (row.get("kappa_weights") or 0) > _NO_RANK]
        if lost:
            blocks = ", ".join(str(row["block"]) for row in lost)
            cosine = median(float(row["token_cosine"]) for row in lost)
            degenerate.append(f"{clean(name, 40)} at block{'s' if len(lost) > 1 else ''} {blocks}, cosine {cosine:.2f}")
    if not degenerate:
        return _KAPPA_READING
    return (
        f"{_KAPPA_READING} κ(J) above 10¹⁴ is the limit of float64: the tokens that reach the block no longer span its "
        f"inputs ({'; '.join(degenerate)}), so it does not say that the weights are badly conditioned."
    )


def network_figures(result: Mapping[str, Any], out: Path, variants: Sequence[str] | None = None) -> list[Figure]:
    """Figures of what is inside networks on photographs: κ, signals by block, SQNR, CKA.

    ``variants`` gives the order of colours, of more networks than the result may have.
    """
    rows = {name: network["rows"] for name, network in result["inside"].items()}
    order = list(variants or rows)
    kappas, signals = "Condition numbers by block", "Tokens, attention and gradients by block"
    figures = [
        _by_block(rows, KAPPAS, out / "kappa", f"{kappas}, on photographs", _kappa_reading(rows), order),
        _by_block(rows, _SIGNALS, out / "signals", f"{signals}, on photographs", _SIGNALS_READING, order),
        softmax_figure(out / "softmax"),
        histogram_figure({n: f["histograms"] for n, f in result["inside"].items()}, out / "histograms", order),
        sqnr_figure(result["sqnr"], out / "sqnr", order),
        cka_figure(result["cka"], out / "cka"),
    ]
    return [figure for figure in figures if figure is not None]


def _by_block(
    models: Mapping[str, Rows], titles: Mapping[str, str], out: Path, caption: str, reading: str, order: Sequence[str]
) -> Figure | None:
    panels = {
        title: {
            name: {int(row["block"]): float(row[key]) for row in rows if row.get(key) is not None}
            for name, rows in models.items()
        }
        for key, title in titles.items()
    }
    return curves_figure(panels, out, caption=caption, reading=reading, variants=order, logarithmic=LOGARITHMIC)
