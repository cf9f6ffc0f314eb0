"""The third study's page: from rows alone, with verdicts only where all runs are there."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from benchmarks.pages import write_csv
from studies import evidence, evidence_page, evidence_readings
from studies.evidence_answer import PRIMARY, Sources, learning_rates, short_answer, undefined_cuts, unsure_signs
from studies.evidence_page import Comparison, by_seed, comparisons, page, verdicts, with_paragraph
from studies.evidence_readings import DISCOVERY, SEGMENTATION, readings, sentence
from studies.evidence_rows import NETWORKS, SEEDS, Measure, Paired
from studies.evidence_rule import SHAPES, wrong_verdicts
from studies.late_blocks_page import AS_IS

ROOT = Path(__file__).parents[2]


MEASURES = (
    *PRIMARY,
    *(measure for task, measure in evidence_readings.MEASURES if measure.dataset != "scenes" or measure.facet == "mlp"),
    Measure("", "tokencut", "CorLoc", "scenes", "out"),
)


def rows_of(seeds: int, level: dict[str, float]) -> list[dict[str, str]]:
    """Rows of every network with so many seeds, with all measures by block; no block of 1 to 4 counts in the rule."""
    about = {"lr": "0.008", "seconds": "600", "machine": "a machine", "study": "1.0", "degenerate": ""}

    def row(model: str, measure: Measure, block: str, value: float, facet: str) -> dict[str, str]:
        own = {"task": measure.task, "metric": measure.metric, "dataset": measure.dataset, "facet": facet}
        return {"model": model, "block": block, "value": str(value), "weights": f"w-{model}", **own, **about}

    made = [row("baseline: colours", PRIMARY[0], "", 20.0, ""), row("baseline: colours", PRIMARY[1], "", 39.0, "")]
    for network in NETWORKS:
        for seed in range(seeds):
            for measure in MEASURES:
                made += [
                    row(f"{network}-soap-s{seed}", measure, str(block), value, measure.facet)
                    for block in range(1, 13)
                    for value in [99.0 if block < 5 else level[network] + (seed * seed) % 3 + block]
                ]
    return made


def committed(rows: list[dict[str, str]]) -> Sources:
    """Return sources with these rows of the study, and the committed rows of all else."""
    return replace(evidence.sources(), rows=rows)


def lowered(rows: list[dict[str, str]], task: str, network: str, points: float) -> list[dict[str, str]]:
    """Rows in which a network's values in a task are so many points lower."""
    return [
        {**row, "value": str(float(row["value"]) - points)}
        if row["task"] == task and row["model"].startswith(f"{network}-")
        else row
        for row in rows
    ]


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
    text = page(committed(rows_of(4, LEVELS)))
    assert "16 of 20 runs are finished (skip 4, mixing 4, annealed 4, paper init 4)" in text
    assert "No verdict is given" in text
    assert "p = " not in text.partition("## What was added")[0]
    assert "Segmentation" not in text.partition("## ")[0]


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
    said = f"{sum(differences) / 3:+.1f} ± {(high - low) / 2:.1f}"
    (line,) = [line for line in evidence_page.second_study(second()) if line.startswith("| CorLoc")]
    assert line.endswith(f"| {said} |")


def test_a_complete_study_is_judged_by_a_paired_t_test() -> None:
    rows = rows_of(5, LEVELS)
    for row in rows:  # differences of seeds that are not all alike
        if row["model"] == "mixing-soap-s3":
            row["value"] = str(float(row["value"]) + 4)
    made = comparisons(rows, PRIMARY)
    mixing = made[0]
    assert (mixing.network, mixing.lead.n) == ("mixing", 5)
    expected = stats.ttest_rel([10, 10, 10, 14, 10], [0] * 5)
    assert mixing.lead.p == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval()
    assert (mixing.lead.mean - mixing.lead.half, mixing.lead.mean + mixing.lead.half) == pytest.approx((low, high))
    said = verdicts(made)
    assert said[0].startswith("better, p = ")
    assert said[2].startswith("worse, p = ")


def answer(sources: Sources) -> list[str]:
    """The short answer of these rows: segmentation, discovery, learning rates."""
    return short_answer(readings(sources.rows, sources.late_blocks), sources)


def test_the_answer_turns_with_the_rows() -> None:
    """No sentence of the answer is a constant: each changes where the sign of its rows does."""
    sources = evidence.sources()
    rows, late, before = sources.rows, sources.late_blocks, answer(sources)
    assert "no." in before[0].partition(":")[2].split("**")[0]
    better = answer(replace(sources, rows=lowered(rows, "probe", "skip", 30)))
    assert "yes." in better[0].partition(":")[2].split("**")[0]
    assert "leads" in better[0]
    assert better[1:] == before[1:]
    discovery = answer(replace(sources, rows=lowered(rows, "tokencut", "annealed", 60)))
    assert discovery[0] == before[0]
    assert discovery[1] != before[1]
    partly = sentence(readings(lowered(rows, "probe", "mixing", -30), late), SEGMENTATION)
    assert "depends" in partly
    assert "*mixing* leads in all 12" in partly
    assert "*paper init* trails in all 12" in partly


def test_late_blocks_turn_the_answer_too() -> None:
    sources = evidence.sources()
    cells = [str(block) for block in range(1, 13)]
    late = [
        {**row, **{cell: str(100 - float(row[cell])) for cell in cells}} if row["measure"].startswith("CorLoc") else row
        for row in sources.late_blocks
    ]
    turned = answer(replace(sources, late_blocks=late))
    assert turned[1] != answer(sources)[1]
    assert turned[2] != answer(sources)[2]


def test_baselines_are_named_by_the_side_on_which_a_network_is() -> None:
    """The counts of sides are those of the intervals, in both tasks."""
    sources = evidence.sources()
    before = answer(sources)
    assert "above it *skip*" in before[0]
    assert "below it *mixing*" in before[0]
    assert "above it *mixing*" in before[1]
    assert "undecided against it *annealed*" in before[1]
    turned = answer(replace(sources, rows=lowered(sources.rows, "tokencut", "mixing", 60)))[1]
    assert "above it" not in turned
    assert "undecided against it *annealed*" in turned
    assert "below it *skip*" in turned


def test_own_best_blocks_are_counted_over_all_sets_of_images() -> None:
    sources = evidence.sources()
    every = readings(sources.rows, sources.late_blocks)
    own = [reading for reading in every if reading.is_the_papers]
    assert {reading.images for reading in own} == {"scenes, 64 px", "scenes, 128 px", "100 other scenes, 64 px"}
    count = [sum(reading.leads[name].sign for reading in own) for name in ("mixing", "annealed", "paper")]
    assert count == [1, -2, -3]
    assert "*mixing* leads in 1 of 3; *annealed* trails in 2 of 3; *paper init* trails in all 3" in answer(sources)[1]
    lower = answer(replace(sources, rows=lowered(sources.rows, "tokencut", "mixing", 60)))[1]
    assert "*mixing* trails in 2 of 3" in lower


def test_the_other_study_turns_the_answer() -> None:
    sources = evidence.sources()
    assert "no network without skips leads" in answer(sources)[1]
    dial = lowered(sources.dial, "tokencut", "skip", 60)
    assert "no network without skips leads" not in answer(replace(sources, dial=dial))[1]
    assert "another study" not in answer(replace(sources, dial=[]))[1]


def test_the_learning_rate_may_explain_a_lead_that_closes_at_one_rate() -> None:
    sources = evidence.sources()
    assert "depends on the learning rate" in learning_rates(sources)
    assert "within 10 points of" in learning_rates(sources)
    falls = [
        {**row, **{str(block): "20" for block in range(5, 13)}} if row["measure"] == AS_IS else row
        for row in sources.epochs
    ]
    fallen = learning_rates(replace(sources, epochs=falls))
    assert "depends on the learning rate" not in fallen
    assert "CorLoc of 20 (22 at its own), below *mixing* (69)" in fallen
    assert "Neither was measured" in learning_rates(replace(sources, epochs=[]))
    assert learning_rates(replace(sources, rates=[])) == ""


def test_differences_that_undefined_cuts_could_turn_are_marked() -> None:
    """Each mark of the table is one of the differences counted, and differences without a record are counted too."""
    sources = evidence.sources()
    every = readings(sources.rows, sources.late_blocks)
    unsure = unsure_signs(sources.rows, every)
    table = evidence_readings.table(every, DISCOVERY, unsure.turned)
    assert "\n".join(table).count(evidence_readings.UNSURE_MARK) == len(unsure.turned)
    assert unsure.checked + unsure.unrecorded == 3 * len(evidence_readings.of_task(every, DISCOVERY))
    assert f"{len(unsure.turned)} of {unsure.checked}" in undefined_cuts(unsure)
    sure = [{**row, "degenerate": "0"} for row in sources.rows]
    assert unsure_signs(sure, every).turned == frozenset()


def test_where_all_readings_agree_the_answer_is_one_word() -> None:
    late = [row for row in evidence.sources().late_blocks if not row["measure"].startswith("CorLoc")]
    every = readings(rows_of(5, LEVELS), late)
    assert "depends" in sentence(every, DISCOVERY)
    above = readings(rows_of(5, {"skip": 10.0, "mixing": 40.0, "annealed": 30.5, "paper": 21.0}), late)
    rule = [reading for reading in above if reading.is_the_rule and reading.task == DISCOVERY]
    assert len(rule) == 1
    assert {name: lead.mean for name, lead in rule[0].leads.items()} == {"mixing": 30, "annealed": 20.5, "paper": 11}


@pytest.mark.slow  # a frozen script
def test_other_parts_of_the_page_turn_with_their_rows() -> None:
    sources = evidence.sources()
    before = page(sources)
    late = [{**row, "value": "1"} if row["block"] in {"8", "9", "10", "11", "12"} else row for row in sources.dial]
    fallen = page(replace(sources, dial=late))
    assert "does not fall" in before
    assert "does not fall" not in fallen
    slower = [{**row, "miou": "1"} if float(row["lr"]) > 0.02 else row for row in sources.rates]
    assert "9 times that of *mixing*" in before
    turned = page(replace(sources, rates=slower))
    assert "9 times that of *mixing*" not in turned
    assert "9 times the learning rate of *mixing*" in before
    assert "9 times the learning rate of *mixing*" not in turned
    sure = [{**row, "degenerate": "0"} for row in sources.rows]
    assert "Blocks with undefined cuts" in before
    assert "Blocks with undefined cuts" not in page(replace(sources, rows=sure))


def test_a_baseline_is_compared_by_a_test_over_seeds() -> None:
    rows = evidence.read_all()
    values = by_seed(rows, PRIMARY[1], "annealed")
    height = evidence_page.floor(rows, PRIMARY[1], "random patch")
    assert height is not None
    expected = stats.ttest_1samp(list(values.values()), height)
    (line,) = [line for line in evidence_page.against_baselines(rows) if line.startswith("| annealed − random patch")]
    assert line.endswith(f"| {expected.pvalue:.2g} |")
    assert expected.pvalue > 0.05  # what the page once called above the baseline


def test_readme_says_what_the_rows_give() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert with_paragraph(text, evidence.sources()) == text
    other = replace(evidence.sources(), rows=lowered(evidence.read_all(), "probe", "skip", 30))
    assert with_paragraph(text, other) != text


def test_the_sign_of_a_difference_is_that_of_its_interval() -> None:
    assert Paired({0: 1.0, 1: 1.2, 2: 0.9}).sign == 1
    assert Paired({0: -1.0, 1: -1.2, 2: -0.9}).sign == -1
    assert Paired({0: 1.0, 1: -1.2, 2: 0.9}).sign == 0
    assert Paired({0: 1.0}).sign == 0
    assert Paired({0: 0.0, 1: 0.0}).p == 1


def test_an_interval_beside_zero_is_not_rounded_onto_it() -> None:
    one = Paired({0: 0.0, 1: 2.0})
    assert one.text == "+1.0 ± 12.7"
    half = one.half
    near = Paired({0: half - 1 + 0.02, 1: half + 1 + 0.02})
    assert near.sign == 1
    assert near.text == f"+{half + 0.02:.2f} ± {half:.2f}"
    assert Paired({0: 0.0, 1: 0.0}).text == "+0.0 ± 0.0"


@pytest.mark.parametrize("shape", SHAPES)
def test_without_a_difference_the_rule_seldom_finds_one(shape: str) -> None:
    """4 to 7 % of studies as measured with 4,000; with 400, three standard errors are 3.8 points."""
    assert wrong_verdicts(shape, 400) < 0.11


def test_what_is_undecided_says_how_large_the_difference_may_be() -> None:
    lead = Paired({0: 1.0, 1: -2.0, 2: 3.0, 3: 0.5, 4: -1.0})
    bound = max(abs(end) for end in stats.ttest_1samp(list(lead.by_seed.values()), 0).confidence_interval())
    said = Comparison("mixing", PRIMARY[1], lead).verdict(lead.p)
    assert said == f"undecided, p = {lead.p:.3g}: a difference of up to {bound:.1f} either way is not excluded"


def test_one_seed_has_no_interval() -> None:
    one = Paired({0: 1.0})
    assert math.isnan(one.p)
    assert math.isnan(one.half)
    assert page(committed(rows_of(1, LEVELS)))


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
    text = (ROOT / "docs" / "results" / "evidence.md").read_text(encoding="utf-8")
    assert page(evidence.sources()) + "\n" == text


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
