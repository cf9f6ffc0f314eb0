"""The page of the studies of objectives: its numbers are those of the rows, its verdict follows the rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.objectives import NETWORKS, answer, judged_lines, read_study, verdict, write_page
from dinoskip.files import write_json
from dinoskip.results import EvalResult, write_rows

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
        write_json(folder / "stages" / "sweep" / f"{name}-soap" / "key" / "sweep.json", {"lr": 0.016, "rates": tried})
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
    assert "Tokens alive at the end: mirrored." in said
    assert "more than a point above their start: paper, mirrored." in said
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
    assert "At the last block: no tokens are alive." in answer(dead, lines)
    assert set(lines) == {("objectives-mae", "paper", block) for block in ("last", "chosen")}
    line = lines["objectives-mae", "paper", "last"]
    assert (line.verdict, line.difference) == ("worse", pytest.approx(-19.0))
    before = lines["objectives-mae", "paper", "chosen"]
    assert before.verdict == "undecided"
