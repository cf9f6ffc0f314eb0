"""The answer over seeds of training: one for all of them, with gains, and silent measures."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult
from visualize.comparison import Scores
from visualize.report import Report, build_report
from visualize.report.answer import answers, compared_pairs, verdict
from visualize.report.answer_table import answer_table
from visualize.report.cautions import cautions
from visualize.report.separation import NOT_TESTED, separation_said, separations, speechless
from visualize.rows import INITIALISED, SKIP, StudyVariant

PAGES = ("several", "single")
VALUES = {
    ("skip", 0): 40.0,
    ("skip", 1): 42.0,
    ("skip", 2): 41.5,
    ("ours", 0): 70.0,
    ("ours", 1): 71.0,
    ("ours", 2): 69.0,
}
ROLES = {"skip": SKIP, "ours": INITIALISED}


def rows(name, value, gained=10.0):
    """Two blocks: the first is chosen by what was held out, the last is 3 lower; ``gained`` lower before training."""
    return [
        EvalResult("mIoU", value + add - lower, "probe", str(block), "voc", "val", 9, model=name, epoch=epoch,
                   heldout=9.0 - block)
        for block, lower in ((1, 0.0), (2, 3.0))
        for epoch, add in ((0, -gained + 0.01 * value), (3, 0.0))
    ]  # fmt: skip


def variants(values=VALUES, gained=10.0):
    return [
        StudyVariant(
            f"{name}-s{seed}", ROLES[name], "soap", 12, rows(f"{name}-s{seed}", value, gained), family=name, seed=seed
        )
        for (name, seed), value in values.items()
    ]


def answered(studied, baselines=()):
    return answers(studied, scores_of(studied), baselines)


def test_one_answer_is_given_over_all_seeds():
    """It was of the first seed: better, p = .037, where the table over three said undecided."""
    assert compared_pairs(variants()) == [("ours", "skip")]
    [pair] = answered(variants())
    [line] = pair.lines
    assert line.verdict == "better"
    assert line.difference.value == pytest.approx(70 - 41.1667, abs=0.01)
    assert line.difference.seeds
    [cells] = answer_table([pair]).rows
    assert cells[:4] == ["ours − skip", "mIoU, voc val", "70.0 ± 1.0 b1", "41.2 ± 1.0 b1"]
    assert cells[6:8] == ["60.7 ± 1.0 / 31.6 ± 1.1", "67.0 ± 1.0 / 38.2 ± 1.0"]


def test_two_seeds_five_deviations_apart_are_undecided():
    near = {("skip", 0): 40.0, ("skip", 1): 42.0, ("ours", 0): 48.0, ("ours", 1): 50.0}
    [line] = answered(variants(near))[0].lines
    assert line.verdict == "undecided", "by two pooled deviations it was better"


def test_one_seed_on_one_side_is_undecided_and_says_so():
    fewer = {key: value for key, value in VALUES.items() if key not in {("skip", 1), ("skip", 2)}}
    [line] = answered(variants(fewer))[0].lines
    assert line.certainty == "undecided: one seed on one side"


def test_the_better_one_must_be_above_its_own_start():
    [line] = answered(variants(gained=0.0))[0].lines
    assert line.verdict == "undecided"
    assert line.certainty == "undecided: ours is not clearly above its own initialisation (−0.7)"


def test_the_page_says_what_is_random(tmp_path):
    build_report(Report(title="t", variants=variants()), tmp_path / "several")
    firsts = [replace(one, family="") for one in variants() if one.seed == 0]
    build_report(Report(title="t", variants=firsts), tmp_path / "single")
    said = {name: [(tmp_path / name / file).read_text() for file in ("index.html", "report.md")] for name in PAGES}
    assert all("was trained with several seeds" in text for text in said["several"])
    assert all("ours − skip" in said["several"][1] for _ in PAGES)
    assert not any("was trained once" in text for text in said["several"])


def with_records(trained, untrained, floor, seed=0):
    """A network of each role and a rule on 100 images, with their records: scores around these."""
    rng = np.random.default_rng(seed)
    base, ids = 0.05 * rng.standard_normal(100), tuple(map(str, range(100)))
    like = EvalResult("PCK@0.1 per image", 0.0, "correspond", "1", "pairs", "test", 100)
    records = {}

    def made(level, **about):
        values = level + base + 0.02 * rng.standard_normal(100)
        row = replace(like, value=100 * float(values.mean()), **about)
        records[row] = ImageRecords(ids, values)
        return row

    studied = [
        StudyVariant(name, role, "soap", 12, [made(untrained, model=name, epoch=0), made(level, model=name, epoch=3)])
        for (name, role), level in zip(ROLES.items(), trained, strict=True)
    ]
    rule = made(floor, model="baseline: same place", block="", epoch=-1)
    return studied, records, [rule]


def scores_of(studied, records=None):
    return Scores({one.name: one.rows for one in studied}, records)


@pytest.mark.parametrize(
    ("trained", "untrained", "floor", "separates"),
    [((0.5, 0.6), 0.3, 0.1, True), ((0.5, 0.6), 0.6, 0.1, False), ((0.5, 0.6), 0.3, 0.6, False)],
)
def test_a_measure_separates_that_is_above_the_rule_and_the_untrained(trained, untrained, floor, separates):
    studied, records, baselines = with_records(trained, untrained, floor)
    scores = scores_of(studied, records)
    [found] = separations(studied, scores, baselines)
    assert found.separates is separates
    silent = speechless([found])
    [line] = answers(studied, scores, baselines, silent)[0].lines
    assert line.verdict == ("higher" if separates else "undecided")
    assert line.why.startswith("inconclusive") is not separates
    apart = r"[+−]?\d+\.\d \[[+−]\d+\.\d, \+\d+\.\d\] against the"
    said = rf"best trained 60\.\d \(ours\), {apart} same place \(.+\), {apart} best untrained one \(.+, (ours|skip)\)\."
    assert re.search(said, separation_said([found])[0])


def test_a_silent_measure_is_folded_on_the_page(tmp_path):
    studied, records, baselines = with_records((0.5, 0.6), 0.6, 0.1)
    build_report(Report(title="t", variants=studied, baselines=baselines, records=records), tmp_path)
    page, text = ((tmp_path / name).read_text() for name in ("index.html", "report.md"))
    assert "Inconclusive metrics: no trained network is above these: PCK" in page
    folded = page.index("<details><summary>Inconclusive metrics")
    assert page.index("inconclusive</span>") < folded < page.index("ours</bdi> −")
    assert text.index("<details") < text.index("ours − skip")


def test_what_was_not_measured_is_taken_on_trust():
    studied = [replace(one, rows=[row for row in one.rows if row.epoch]) for one in variants()]
    [found] = separations(studied, scores_of(studied), [])
    assert found.separates is None
    assert separation_said([found])[0].endswith(f"{NOT_TESTED}.")


def test_cautions_name_a_start_that_is_not_beaten():
    said = cautions(answered(variants(gained=0.0)))
    assert any("ours, mIoU, voc val, b1: 70.0 is below the same network before training, 70.7" in one for one in said)


UNRESOLVED = "the best rate is the lowest or highest tried"


@pytest.mark.parametrize("name", ["ours", "skip"])
def test_a_network_whose_rate_is_unresolved_wins_and_loses_nothing(tmp_path, name):
    studied = [replace(one, unresolved=UNRESOLVED if one.family == name else "") for one in variants()]
    [line] = answered(studied)[0].lines
    assert (line.verdict, line.certainty) == ("undecided", f"undecided: rate of {name} unresolved")
    build_report(Report(title="t", variants=studied), tmp_path)
    for file in ("index.html", "report.md"):
        said = (tmp_path / file).read_text(encoding="utf-8")
        assert f"No verdict between “ours” and “skip”: rate of {name} unresolved." in said
        assert UNRESOLVED in said


def test_of_several_pairs_those_without_a_resolved_rate_are_counted():
    third = [replace(one, name=f"more-{one.seed}", family="more") for one in variants() if one.family == "ours"]
    studied = [replace(one, unresolved=UNRESOLVED if one.family == "ours" else "") for one in [*variants(), *third]]
    found = answered(studied)
    assert [line.verdict for pair in found for line in pair.lines] == ["undecided", "better"]
    assert verdict(found) == (
        "Compared with “skip”: “ours” gets no verdict, a learning rate being unresolved; "
        "“more” is better on 1 of 1 metrics."
    )
