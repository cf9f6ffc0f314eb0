"""The page of the studies of objectives: its numbers are those of the rows, its verdict follows the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dinoskip.io.files import write_json
from dinoskip.results.estimates import difference, known
from dinoskip.results.rows import EvalResult, write_rows
from studies.objectives import NETWORKS, Network, answer, judged_lines, read_study, verdict, write_page

AFTER = {"skip": (30.0, 31.0, 32.0), "mirrored": (40.0, 41.0, 42.0), "paper": (12.0, 11.0, 13.0)}
"""mIoU of the last block by seed."""


def row(name: str, seed: int, task: str, block: int, epoch: int, value: float, cosine: float) -> EvalResult:
    return EvalResult(
        "mIoU" if task == "probe" else "accuracy", value, task, str(block), "scenes", "val", 10,
        model=f"{name}-soap-s{seed}", epoch=epoch, heldout=50.0 - block if task == "probe" else None,
        token_cosine=cosine if task == "probe" else None,
    )  # fmt: skip


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "objectives-mae"
    run = folder / "stages" / "pretrain" / "skip-soap-s0" / "key"
    write_json(run / "env.json", {"cores": "2", "memory": "23.5 GiB", "torch": "2.15.0", "python": "3.11.7"})
    write_json(run / "status.json", {"updated": 1_795_374_797.0})
    write_json(run / "timing.json", {"seconds": 5400.0})
    rows, tried = [], [{"lr": 0.0053}, {"lr": 0.016}]
    for name, values in AFTER.items():
        write_json(
            folder / "stages" / "sweep" / f"{name}-soap" / "key" / "sweep.json",
            {"lr": 0.016, "rates": tried, "unresolved": ""},
        )
        for seed, last in enumerate(values):
            for epoch, shift in ((0, 5.0 + 0.5 * seed), (4, 0.0)):
                cosine = 0.99 if name == "paper" else 0.4
                rows += [row(name, seed, "probe", 1, epoch, 20 - shift, cosine)]
                rows += [row(name, seed, "probe", 2, epoch, last - shift, cosine)]
                best = row(name, seed, "probe", 2, epoch, 99.0, cosine)
                rows += [replace(best, note="best on validation"), replace(best, metric="aAcc")]
                rows += [row(name, seed, "knn", 2, epoch, 25 + seed, cosine)]
    baseline = row("skip", 0, "probe", 2, 4, 0.0, 0.1).baseline("majority class", 11.9)
    write_rows(folder / "rows.json", [baseline, *rows])
    return folder


def test_values_are_those_of_the_rows(study: Path, tmp_path: Path) -> None:
    networks = read_study(study)
    assert [one.name for one in networks] == [name for name in NETWORKS if name in AFTER]
    write_page([study], tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    expected = (
        "| mirrored | 0.016 (highest) | 3 | 0.40 → 0.40 ± 0.00 | 35.5 → 41.0 ± 1.0 | +10.0, better "
        "| 14.5 → 20.0 ± 0.0 | +0.0, undecided | 26.0 → 26.0 ± 1.0 |"
    )
    assert expected in page
    assert "9 training runs" in page
    assert "1.5 core-hours, 2 cores, 23.5 GiB, torch 2.15.0, Python 3.11.7, 2026-11-22." in page
    assert (tmp_path / "objectives-blocks.svg").stat().st_size > 1000


def test_the_verdict_follows_the_rule(study: Path) -> None:
    networks = read_study(study)
    compared = judged_lines({"mae": networks})
    said = verdict("mae", networks, compared)
    assert "Tokens distinct after training: mirrored." in said
    assert "before training: paper, mirrored." in said
    assert "Better than skip at the last block: mirrored (+10.0)." in said
    assert "Better than skip at the chosen block: none." in said
    alone = [replace(one, seeds={0: one.seeds[0]}) for one in networks]
    assert verdict("mae", alone, judged_lines({"mae": alone})).endswith(
        "One seed: whether one is better than skip is undecided."
    )
    assert verdict("mae", networks[1:], {}) == verdict("mae", networks[:1], {}) == "Not complete yet."


def test_the_answer_names_live_networks_alone(study: Path) -> None:
    networks = read_study(study)
    studies = {"objectives-mae": networks}
    said = answer(studies, judged_lines(studies))
    assert "At the last block: mirrored with MAE (+10.0)." in said
    assert "At the chosen block under no objective; nearest is mirrored with MAE, +0.0 (undecided)." in said
    dead = {"objectives-mae": [one for one in networks if one.name != "mirrored"]}
    lines = judged_lines(dead)
    assert "At the last block: no tokens are distinct." in answer(dead, lines)
    assert set(lines) == {("objectives-mae", "paper", block) for block in ("last", "chosen")}
    line = lines["objectives-mae", "paper", "last"]
    assert (line.verdict, line.difference) == ("worse", pytest.approx(-19.0))
    before = lines["objectives-mae", "paper", "chosen"]
    assert before.verdict == "undecided"


def changed(networks: list[Network], name: str, by: Callable[[EvalResult], EvalResult]) -> list[Network]:
    """The same with every row of a network changed."""
    seeds = {one.name: {seed: tuple(map(by, rows)) for seed, rows in one.seeds.items()} for one in networks}
    return [replace(one, seeds=seeds[name]) if one.name == name else one for one in networks]


def test_all_lines_of_the_page_are_corrected_together(study: Path) -> None:
    """One network 3.4 points better, p = .03: decided if it were alone, and not among the page's four lines."""
    networks = changed(read_study(study), "mirrored", by=lambda row: replace(row, value=row.value - 6.6))
    skip, mirrored = (next(one for one in networks if one.name == name) for name in ("skip", "mirrored"))
    sides = [[known(value / 100) for value in one.over_seeds(one.last, 4)] for one in (mirrored, skip)]
    assert 0.02 < difference(*sides).p < 0.05
    assert judged_lines({"mae": networks})["mae", "mirrored", "last"].verdict == "undecided"


def test_a_difference_from_before_training_is_no_verdict(study: Path) -> None:
    """The difference is that of DINO's page: +5.1 after training, +5.0 before."""
    networks = read_study(study)
    assert judged_lines({"mae": networks})["mae", "mirrored", "last"].verdict == "better"
    up = {0: 5.0, 1: 5.5, 2: 6.0}
    begun = changed(
        networks, "mirrored",
        by=lambda row: row if row.epoch else replace(row, value=row.value + up[int(row.model[-1])]),
    )  # fmt: skip
    assert judged_lines({"mae": begun})["mae", "mirrored", "last"].verdict == "undecided"


@pytest.mark.parametrize("name", ["skip", "mirrored"])
def test_a_rate_that_is_unresolved_leaves_no_verdict(study: Path, name: str) -> None:
    networks = [replace(one, unresolved="why") if one.name == name else one for one in read_study(study)]
    found = judged_lines({"mae": networks})
    assert found["mae", "mirrored", "last"].verdict == "rate unresolved"
    assert found["mae", "paper", "last"].verdict == ("rate unresolved" if name == "skip" else "worse")
    assert "Better than skip at the last block: none." in verdict("mae", networks, found)


def test_a_sweep_that_does_not_say_is_unresolved(study: Path, tmp_path: Path) -> None:
    assert {one.unresolved for one in read_study(study)} == {""}
    for path in study.glob("stages/sweep/*/*/sweep.json"):
        write_json(path, {"lr": 0.016, "rates": [{"lr": 0.0053}, {"lr": 0.016}]})
    write_page([study], tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert page.count(", rate unresolved |") == 4
