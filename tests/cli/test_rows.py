"""The rows that a command prints as the best."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dinoskip.cli.rows import best_rows, print_names, print_results
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.pipeline.study_runner import study_runner
from dinoskip.results.rows import EvalResult
from tests.helpers.shipped import CONFIGS
from visualize.rows import spread


def test_the_best_row_of_an_error_is_the_lowest() -> None:
    rows = [EvalResult(metric, value, "x", block, "d", "val", 3) for metric in ("RMSE", "mIoU")
            for block, value in (("1", 0.5), ("2", 0.4), ("3", 0.6))]  # fmt: skip
    assert {row.metric: row.block for row in best_rows(rows)} == {"RMSE": "2", "mIoU": "3"}


@pytest.mark.parametrize("complete", [0.0, 1.0])
def test_a_number_from_failed_cuts_says_so_instead_of_an_interval(
    complete: float, capsys: pytest.CaptureFixture[str]
) -> None:
    row = EvalResult(
        "CorLoc", 4.2, "tokencut", "12", "voc", "val", 100, model="a", low=1.0, high=9.0,
        protocol="tokencut tau=0.2", degenerate=complete, complete=complete,
    )  # fmt: skip
    runner: Any = SimpleNamespace(published=dict)
    print_results(runner, [row], {})
    printed = capsys.readouterr().out
    assert ("4.2 (1.0-9.0)" in printed) == (not complete)
    assert ("4.2 (affinity graph degenerate at τ = 0.2)" in printed) == bool(complete)
    assert ("affinity graph degenerate at τ = 0.2 (100 of 100 images)" in printed) == bool(complete)
    assert ("says nothing of the network" in printed) == bool(complete)


def test_tables_say_in_how_many_images_there_is_no_cut() -> None:
    row = EvalResult(
        "CorLoc", 4.2, "tokencut", "12", "voc", "val", 100, low=1.0, high=9.0, degenerate=0.07, complete=0.0
    )
    assert spread(row) == "[1.0, 9.0] (no cut in 7 of 100)"
    assert spread(replace(row, degenerate=0.0)) == "[1.0, 9.0]"
    assert spread(replace(row, degenerate=0.6)) == "no cut (60 of 100 images)"


def test_a_network_has_its_short_name_its_words_and_what_it_is_read_from_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, variants = load_study(CONFIGS / "demo.yaml", [f"output={tmp_path}"])
    runner = study_runner(study, variants, build_nodes(study, variants))
    print_names(runner, {"skip", "paper-adamw"})
    lines = [tuple(map(str.strip, line.split("  "))) for line in capsys.readouterr().out.splitlines()[1:] if line]
    assert [tuple(filter(None, cells)) for cells in lines] == [
        ("skip", "pretrained, with skips", "dinoskip:skip"),
        ("paper-adamw", "skipless, paper's initialisation", "trained here"),
    ]
    print_names(runner, ())
    assert len(capsys.readouterr().out.split("\n\n")[0].splitlines()) == 1 + len(variants)
