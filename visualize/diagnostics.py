"""Rows of ``dinoskip.diagnostics.signal_table`` and ``dinoskip.init.report`` as tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from visualize.datatable import DataTable
from visualize.drawing import Figure
from visualize.figures import curves_figure
from visualize.inside import cka_figure, histogram_figure, softmax_figure, sqnr_figure

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


def signal_figure(rows: Rows, out: Path) -> Figure | None:
    """The same against block, one panel a quantity; rank and gradient on logarithmic axes."""
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


def weights_table(title: str, rows: Rows) -> DataTable:
    """One model's weights block by block, folded."""
    return DataTable.of(title, rows, _WEIGHTS, folded=True)


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


_KAPPAS = {
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
_LOG = (*_KAPPAS.values(), "effective rank", "mean diagonal of attention", "query gradient")


def inside_figures(result: Mapping[str, Any], out: Path, variants: Sequence[str] | None = None) -> list[Figure]:
    """Figures of ``dinoskip.pipeline.inside``'s result: κ and signals by block, histograms, SQNR by bits, CKA.

    ``variants`` gives the order of colours, of more networks than the result may have.
    """
    rows = {name: found["rows"] for name, found in result["inside"].items()}
    order = list(variants or rows)
    made = [
        _by_block(rows, _KAPPAS, out / "kappa", "Condition numbers by block, on photographs", order),
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
    return curves_figure(panels, out, caption=caption, variants=order, logarithmic=_LOG)


def training_figure(runs: Mapping[str, Rows], out: Path) -> Figure | None:
    """Rows of each run's ``diagnostics.jsonl`` against step: the median over blocks of every quantity."""
    titles = {
        "entropy": "attention entropy / ln n", "diagonal": "mean diagonal of attention",
        "token_cosine": "token cosine", "kurtosis": "excess kurtosis of outputs", "grad_query": "query gradient",
        **{key: _KAPPAS[key] for key in _KAPPAS if key == "kappa_attention" or key.startswith("kappa_weights")},
    }  # fmt: skip
    panels = {
        title: {
            name: {int(row["step"]): median(map(float, row[key])) for row in rows if row.get(key)}
            for name, rows in runs.items()
        }
        for key, title in titles.items()
    }
    caption = "Inside while training, median over blocks, on two fixed images"
    return curves_figure(panels, out, caption=caption, variants=list(runs), logarithmic=_LOG, along="step")


def _at(values: Sequence[float], block: int) -> float | None:
    return float(values[block - 1]) if block <= len(values) else None
