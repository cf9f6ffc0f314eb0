"""Tables of the other papers with our numbers beside."""

import pytest

from visualize.paper.others import OTHERS, beside
from visualize.report.diagnostics import epochs_tables, mean_ln_kappa


def test_every_line_has_a_number_a_column() -> None:
    for table in OTHERS.values():
        assert {len(numbers) for numbers in table.rows.values()} == {len(table.measures)}, table.title


def test_ours_stand_beside_the_papers() -> None:
    table = beside("graying.table3", {"plain": {"top1": 80.5, "ln κ in": 6.6}, "other": {"top1": 1.0}})
    assert table.columns == [
        "variant", "top-1, ours", "top-1, paper", "ln κ in, ours", "ln κ in, paper", "ln κ out, ours",
        "ln κ out, paper",
    ]  # fmt: skip
    assert table.rows[0] == ["plain", 80.5, 81.0, 6.6, 6.72, None, 6.74]
    assert table.rows[1][:3] == ["svd_0.9", None, 81.2]
    assert len(table.rows) == 11


def test_epochs_to_the_first_runs_accuracy() -> None:
    def curve(*values: float) -> list[dict[str, float | None]]:
        return [{"epoch": 5 * place, "top1": value} for place, value in enumerate(values, 1)] + [
            {"epoch": 1, "loss": 2}
        ]

    (table,) = epochs_tables({"default": curve(10, 30, 29), "fast": curve(20, 29, 40), "slow": curve(1, 2, 3), "x": []})
    assert table.rows == [
        ["default", 29, 10, pytest.approx(100 * 10 / 15)], ["fast", 40, 10, pytest.approx(100 * 10 / 15)],
        ["slow", 3, "never", "–"],
    ]  # fmt: skip
    assert epochs_tables({"default": curve(1), "dino": [{"epoch": 1, "loss": 1.0}]}) == []


def test_blocks_without_a_number_are_left_out() -> None:
    rows = [{"ln_kappa_tokens": 2.0, "ln_kappa_out": None}, {"ln_kappa_tokens": 4.0, "ln_kappa_out": 1.0}]
    assert mean_ln_kappa(rows) == {"in": 3.0, "out": 1.0}
