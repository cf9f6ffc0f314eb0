"""Tests of the section of the report on an analysis."""

from __future__ import annotations

from pathlib import Path

from dinoskip.pipeline.stage import ShownOf
from dinoskip_diagnostics.page import inside_of, mean_ln_kappa, signal_table
from dinoskip_diagnostics.results import CkaPair, Inside

NETWORKS = ("deep ep9", "deep ep10", "skip ep3", "given", "unknown ep1")


def test_the_last_epoch_of_a_network_stands_for_its_variant() -> None:
    inside = Inside(
        {name: {"rows": name} for name in NETWORKS},
        {"deep ep10": {}},
        [CkaPair(a, b, []) for a in ("deep ep10", "deep ep9") for b in ("deep ep10", "skip ep3")],
    )
    variants = {"with skips": "skip", "a deep one": "deep", "given": "given", "absent": "absent"}
    kept = inside_of(ShownOf({}, variants, Path()), inside)
    assert {name: one["rows"] for name, one in kept.inside.items()} == {
        "with skips": "skip ep3", "a deep one": "deep ep10", "given": "given",
    }  # fmt: skip
    assert kept.sqnr == {"a deep one": {}}
    assert [(pair.left, pair.right) for pair in kept.cka] == [
        ("a deep one", "with skips"),
        ("a deep one", "a deep one"),
    ]


def test_signal_rows_become_a_table() -> None:
    row = {
        "token_cosine": [0.4, 0.5], "effective_rank": [60.0, 30.0], "query_gradient": [1.0, 1e-9],
        "final_cosine": 0.6, "final_effective_rank": 20.0,
    }  # fmt: skip
    table = signal_table([{"name": name, **row} for name in ("skip", "skipless default")])
    assert len(table.columns) == len(table.rows[0]) == 9
    assert table.rows[0][-1] == 1e-9


def test_blocks_without_a_number_are_left_out() -> None:
    rows = [{"ln_kappa_tokens": 2.0, "ln_kappa_out": None}, {"ln_kappa_tokens": 4.0, "ln_kappa_out": 1.0}]
    assert mean_ln_kappa(rows) == {"in": 3.0, "out": 1.0}
