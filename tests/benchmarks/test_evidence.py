"""The third study's page: from rows alone, with verdicts only where all runs are there."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
from scipy import stats

from benchmarks import evidence, evidence_page
from benchmarks.evidence_page import NETWORKS, PRIMARY, SEEDS, by_seed, comparisons, page, verdicts
from benchmarks.evidence_rule import SHAPES, wrong_verdicts
from benchmarks.pages import write_csv

ROOT = Path(__file__).parents[2]


def rows_of(seeds: int, level: dict[str, float]) -> list[dict[str, str]]:
    """Rows of every network with so many seeds, with mIoU and CorLoc by block; blocks 1 to 4 count for nothing."""
    about = {"lr": "0.008", "seconds": "600", "machine": "a machine", "study": "1.0"}

    def row(model: str, measure: evidence_page.Measure, block: str, value: float, facet: str) -> dict[str, str]:
        own = {"task": measure.task, "metric": measure.metric, "dataset": measure.dataset, "facet": facet}
        return {"model": model, "block": block, "value": str(value), "weights": f"w-{model}", **own, **about}

    found = [row("baseline: colours", PRIMARY[0], "", 20.0, "")]
    for network in NETWORKS:
        for seed in range(seeds):
            for measure in PRIMARY:
                found += [
                    row(f"{network}-soap-s{seed}", measure, str(block), value, measure.facet)
                    for block in range(1, 13)
                    for value in [99.0 if block < 5 else level[network] + (seed * seed) % 3 + block]
                ]
    return found


def second() -> list[dict[str, str]]:
    return list(csv.DictReader((ROOT / "docs" / "results" / "dense_seeds" / "rows.csv").open()))


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page names the configurations of the repository."""
    monkeypatch.chdir(ROOT)


LEVELS = {"skip": 30.0, "mixing": 40.0, "annealed": 30.5, "paper": 21.0}


def test_blocks_5_to_12_above_colours() -> None:
    rows = rows_of(2, LEVELS)
    mean = sum(range(5, 13)) / 8
    assert by_seed(rows, PRIMARY[0], "skip") == {0: 30 + mean - 20, 1: 31 + mean - 20}
    assert by_seed(rows, PRIMARY[1], "skip") == {0: 30 + mean, 1: 31 + mean}


def test_an_unfinished_study_has_no_verdict() -> None:
    made = comparisons(rows_of(4, LEVELS), PRIMARY)
    assert len(made) == 6
    assert set(verdicts(made)) == {"none yet: 4 of 5 seeds"}
    text = page(rows_of(4, LEVELS), [], second())
    assert "16 of 20 runs are finished (skip 4, mixing 4, annealed 4, paper 4)" in text
    assert "No verdict is given" in text
    assert "p =" not in text


def test_the_second_study_by_hand() -> None:
    """Blocks 5 to 12 of object discovery, from the file."""
    differences = []
    for seed in range(3):
        of = {
            name: [
                float(row["value"])
                for row in second()
                if (row["model"], row["task"], row["epoch"]) == (f"{name}-soap-s{seed}", "tokencut", "30")
                and int(row["block"]) >= 5
            ]
            for name in ("mixing", "skip")
        }
        differences.append(sum(of["mixing"]) / 8 - sum(of["skip"]) / 8)
    low, high = stats.ttest_1samp(differences, 0).confidence_interval()
    said = f"{sum(differences) / 3:+.1f} [{low:+.1f}, {high:+.1f}]"
    (line,) = [line for line in evidence_page.second_study(second()) if line.startswith("| CorLoc")]
    assert line.endswith(f"| {said} |")


def test_a_complete_study_is_judged_by_a_paired_t_test() -> None:
    rows = rows_of(5, LEVELS)
    for row in rows:  # differences of seeds that are not all alike
        if row["model"] == "mixing-soap-s3":
            row["value"] = str(float(row["value"]) + 4)
    made = comparisons(rows, PRIMARY)
    mixing = made[0]
    assert (mixing.network, mixing.n) == ("mixing", 5)
    expected = stats.ttest_rel([10, 10, 10, 14, 10], [0] * 5)
    assert mixing.p == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval()
    assert (mixing.mean - mixing.half, mixing.mean + mixing.half) == pytest.approx((low, high))
    said = verdicts(made)
    assert said[0].startswith("better, p = ")
    assert said[2].startswith("worse, p = ")


def test_the_answer_of_a_complete_study_opens_its_page() -> None:
    rows = rows_of(5, LEVELS)
    for row in rows:
        if row["model"] == "annealed-soap-s3":
            row["value"] = str(float(row["value"]) + 4)
    text = page([*rows, {**rows[0], "metric": "CorLoc", "task": "tokencut", "value": "39.0"}], [], second())
    start = text.split("## Primary", 1)[0]
    assert "- mIoU above colours: *mixing* is better than *skip* by 10.0; *annealed* cannot be told apart" in start
    assert "*paper* is worse than *skip* by 9.0. Above the best baseline without a network (colours): *skip*," in start
    assert "- CorLoc: *mixing* is better" in start
    assert "Above the best baseline without a network (colours): *skip*, *mixing*, *annealed*.\n" in start


@pytest.mark.parametrize("shape", SHAPES)
def test_without_a_difference_the_rule_seldom_finds_one(shape: str) -> None:
    """4 to 7 % of studies as measured with 4,000; with 400, three standard errors are 3.8 points."""
    assert wrong_verdicts(shape, 400) < 0.11


def test_what_is_undecided_says_how_large_the_difference_may_be() -> None:
    one = evidence_page.Comparison("mixing", PRIMARY[1], {0: 1.0, 1: -2.0, 2: 3.0, 3: 0.5, 4: -1.0})
    bound = max(abs(end) for end in stats.ttest_1samp(list(one.differences.values()), 0).confidence_interval())
    assert one.verdict(one.p) == f"undecided, p = {one.p:.3g}: smaller than {bound:.1f}"


def test_one_seed_has_no_interval() -> None:
    one = evidence_page.Comparison("mixing", PRIMARY[1], {0: 1.0})
    assert math.isnan(one.p)
    assert math.isnan(one.half)
    assert page(rows_of(1, LEVELS), [], second())


def test_rates_are_widened_at_an_edge_and_no_further() -> None:
    inside = dict(zip(evidence.RATES, (1.0, 3.0, 2.0, 1.0), strict=True))
    assert evidence.next_rate({}) == evidence.RATES[0]
    assert evidence.next_rate(inside) is None
    high = dict(zip(evidence.RATES, (1.0, 2.0, 3.0, 4.0), strict=True))
    assert evidence.next_rate(high) == pytest.approx(7.2e-2 * 3)
    low = dict(zip(evidence.RATES, (4.0, 3.0, 2.0, 1.0), strict=True))
    assert evidence.next_rate(low) == pytest.approx(2.7e-3**2 / 8e-3)
    assert evidence.next_rate({**low, 1e-3: 5.0, 3e-4: 6.0}) is None  # six were tried


def test_a_rate_needs_both_seeds() -> None:
    rows = [
        {"network": "skip", "lr": "0.008", "seed": seed, "miou": value} for seed, value in (("100", "2"), ("101", "4"))
    ]
    assert evidence.means([*rows, {**rows[0], "lr": "0.024"}, {**rows[0], "network": "paper"}], "skip") == {0.008: 3.0}


def test_the_page_is_what_its_rows_give() -> None:
    """No network is needed: the committed page is made again from the committed rows."""
    committed = (ROOT / "docs" / "results" / "evidence.md").read_text(encoding="utf-8")
    assert page(evidence.read_all(), evidence.read_rates(), evidence.second_study()) + "\n" == committed


def test_rows_survive_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    rows = rows_of(1, LEVELS)
    write_csv(tmp_path / "rows.csv.gz", tuple(rows[0]), rows)
    first = (tmp_path / "rows.csv.gz").read_bytes()
    assert evidence.read_all() == rows
    write_csv(tmp_path / "rows.csv.gz", tuple(rows[0]), rows)
    assert (tmp_path / "rows.csv.gz").read_bytes() == first  # no time of day in it


def test_the_seeds_are_those_of_the_configuration() -> None:
    from dinoskip.pipeline.study import load_study

    study, variants = load_study(ROOT / "configs" / "results" / "evidence.yaml")
    assert [variant.name for variant in variants] == [f"{name}-soap-s{seed}" for name in NETWORKS for seed in SEEDS]
    assert study.data["scenes"].objects == "shapes"  # type: ignore[attr-defined, unused-ignore]
