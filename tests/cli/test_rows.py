"""Which rows a command shows as the best."""

from dinoskip.cli.rows import best_rows
from dinoskip.results import EvalResult


def test_the_best_row_of_an_error_is_the_lowest() -> None:
    rows = [EvalResult(metric, value, "x", block, "d", "val", 3) for metric in ("RMSE", "mIoU")
            for block, value in (("1", 0.5), ("2", 0.4), ("3", 0.6))]  # fmt: skip
    assert {row.metric: row.block for row in best_rows(rows)} == {"RMSE": "2", "mIoU": "3"}
