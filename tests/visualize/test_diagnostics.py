"""The figure of a run's diagnostics.jsonl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from visualize.diagnostics import training_figure


def rows(scale: float) -> list[dict[str, Any]]:
    """Three rows of three blocks, as a run writes them."""
    return [
        {
            "step": step, "epoch": 1, "entropy": [0.9, 0.8, 0.7], "kappa_attention": [10.0, 1e3, 1e15],
            "kappa_weights": [scale, 3 * scale, 2 * scale], "kappa_weights_bound": [1e5 * step] * 3,
        }
        for step in (5, 10, 15)
    ]  # fmt: skip


def test_medians_over_blocks_against_step(tmp_path: Path) -> None:
    found = training_figure({"skip": rows(100), "skipless": rows(7), "not looked at": []}, tmp_path / "inside")
    assert found is not None
    for words in (
        "attention entropy / ln n: skip from 0.8 to 0.8, skipless from 0.8 to 0.8",
        "κ(attention), median: skip from 1e+03 to 1e+03",
        "κ(J) by WQ, WK, WV: skip from 200 to 200, skipless from 14 to 14",
        "Theorem 3.1's bound of κ(J): skip from 5e+05 to 1.5e+06",
    ):
        assert words in found.alt
    assert "token cosine" not in found.alt, "no panel for what the rows do not have"
    assert found.light.read_text().startswith("<?xml")
    assert found.dark.is_file()


def test_no_rows_no_figure(tmp_path: Path) -> None:
    assert training_figure({"skip": []}, tmp_path / "inside") is None
    assert list(tmp_path.iterdir()) == []
