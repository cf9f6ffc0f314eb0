"""What fresh and trained models look like inside, as plain rows and as text (``dinoskip analyze`` and the report)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dinoskip.diagnostics import bundled_photos, signal_table
from dinoskip.init.build import ModelConfig, SkiplessInit, build_model
from dinoskip.init.report import report
from dinoskip.models import load_backbone

_COLUMNS = ("kappa_vo", "vo_min", "vo_max", "logit_diagonal", "logit_spread", "kappa_q", "fc1_gain", "fc2_gain")


def analyze_spec(spec: str) -> dict[str, Any]:
    """Weights of an existing model, block by block."""
    return {"weights": {spec: [asdict(row) for row in report(load_backbone(spec).model)]}, "signal": []}


def fresh_analysis(name: str, depth: int, seed: int) -> dict[str, Any]:
    """A fresh skipless model's weights, and the three rows of signal propagation on bundled photographs."""
    model = build_model(ModelConfig(name=name, depth=depth, skip=False, init=SkiplessInit()), seed)
    rows = signal_table(bundled_photos(2), depth, name=name, seed=seed)
    return {
        "weights": {f"fresh skipless {name}": [asdict(row) for row in report(model)]},
        "signal": [asdict(row) for row in rows],
    }


def as_text(result: Mapping[str, Any]) -> str:
    """Both tables as aligned text."""
    lines: list[str] = []
    for title, rows in result["weights"].items():
        lines += [
            f"{title}: weights by block",
            *_aligned(("block", *_COLUMNS), [_weights_row(row) for row in rows]),
            "",
        ]
    if result["signal"]:
        depth = len(result["signal"][0]["token_cosine"])
        shown = sorted({1, min(3, depth), max(1, depth // 2), depth})
        header = ["network", *(f"cos b{b}" for b in shown), "cos final", *(f"rank b{b}" for b in shown), "rank final"]
        header += [f"q-grad b{b}" for b in shown]
        lines += [
            "signal propagation at initialisation",
            *_aligned(header, [_signal_row(r, shown) for r in result["signal"]]),
        ]
    return "\n".join(lines).rstrip()


def _weights_row(row: Mapping[str, Any]) -> list[str]:
    return [str(row["block"]), *(_number(row[name]) for name in _COLUMNS)]


def _signal_row(row: Mapping[str, Any], shown: Sequence[int]) -> list[str]:
    cells = [str(row["name"]), *(f"{row['token_cosine'][b - 1]:.3f}" for b in shown), f"{row['final_cosine']:.3f}"]
    cells += [f"{row['effective_rank'][b - 1]:.1f}" for b in shown] + [f"{row['final_effective_rank']:.2f}"]
    return cells + [f"{row['query_gradient'][b - 1]:.1e}" for b in shown]


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.2e}"


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
