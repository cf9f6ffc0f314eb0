"""Means over seeds of training, their spread, and the rule by which one network is better."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dinoskip.results import EvalResult
from visualize.comparison import Scores
from visualize.paper.published import INITIALISED, SKIP
from visualize.report import Report, build_report
from visualize.report.answer import compared_pairs
from visualize.report.seeds import OverSeeds, SeedsLine, over_seeds, seeds_table, seeds_verdicts
from visualize.rows import Benchmark, StudyVariant

PAGES = ("several", "single")
MEASURE = Benchmark("probe", "mIoU", "voc", "val")
VALUES = {("skip", 0): 40.0, ("skip", 1): 42.0, ("ours", 0): 50.0, ("ours", 1): 53.0}


def rows(name, value):
    """Two blocks: the first is chosen by what was held out, the last is 3 lower; 10 lower before training."""
    return [
        EvalResult(
            "mIoU",
            value + add - lower,
            "probe",
            str(block),
            "voc",
            "val",
            9,
            model=name,
            epoch=epoch,
            heldout=9.0 - block,
        )
        for block, lower in ((1, 0.0), (2, 3.0))
        for epoch, add in ((0, -10.0), (3, 0.0))
    ]


def variants(values=VALUES):
    roles = {"skip": SKIP, "ours": INITIALISED}
    return [
        StudyVariant(
            f"{name}-s{seed}", roles.get(name, ""), "soap", 12, rows(f"{name}-s{seed}", value), family=name, seed=seed
        )
        for (name, seed), value in values.items()
    ]


def lines_of(studied):
    return over_seeds(studied, Scores({one.name: one.rows for one in studied}))


def test_means_spread_start_and_last_block_by_hand():
    [line] = lines_of(variants())
    assert (line.first, line.second) == ("ours", "skip")
    assert (line.one.chosen, line.one.last, line.one.before) == ((50.0, 53.0), (47.0, 50.0), (40.0, 43.0))
    assert line.difference == pytest.approx(51.5 - 41.0)
    assert line.deviation == pytest.approx(math.sqrt((4.5 + 2.0) / 2))
    assert line.verdict == "better"
    table = seeds_table([line])
    assert table.rows[0][2:7] == ["51.5 ± 2.1", "41.0 ± 1.4", "+10.5 [+2.7, +18.3]", "1.8", "better"]
    assert line.interval == pytest.approx((10.5 - 4.302653 * line.deviation, 10.5 + 4.302653 * line.deviation))
    assert seeds_verdicts([line]) == ["ours against skip: better in mIoU, voc val (+10.5 [+2.7, +18.3])."]


def test_the_answer_over_images_is_of_the_first_seed_alone():
    assert compared_pairs(variants()) == [("ours-s0", "skip-s0")]
    assert compared_pairs([StudyVariant("a-s0", family="a"), StudyVariant("a-s1", family="a", seed=1)]) == [
        ("a-s0", "")
    ]


def test_a_report_over_seeds_does_not_say_that_there_was_one_run(tmp_path):
    build_report(Report(title="t", variants=variants()), tmp_path / "several")
    build_report(Report(title="t", variants=[replace(one, family="") for one in variants()]), tmp_path / "single")
    said = {name: [(tmp_path / name / file).read_text() for file in ("index.html", "report.md")] for name in PAGES}
    assert not any("one training run a network" in text for text in said["several"])
    assert all("Over seeds of training" in text for text in said["several"])
    assert all("one training run a network" in text for text in said["single"])


def test_networks_are_held_against_the_first_of_their_optimizer():
    studied = [
        StudyVariant(f"{name}-s0", "", optimizer, 12, rows(f"{name}-s0", 9.0), family=name)
        for name, optimizer in (("a", "adamw"), ("b", "adamw"), ("c", "soap"), ("d", "soap"))
    ]
    studied.append(StudyVariant("a-s1", "", "adamw", 12, rows("a-s1", 9.0), family="a", seed=1))
    assert [(line.first, line.second) for line in lines_of(studied)] == [("b", "a"), ("c", "a"), ("d", "c")]


def test_nothing_is_said_without_several_seeds():
    alone = [StudyVariant("ours", INITIALISED, "soap", 12, rows("ours", 5)), StudyVariant("skip", SKIP, "soap", 12)]
    assert lines_of(alone) == []
    assert seeds_table([]) is None
    assert seeds_verdicts([]) == []
    assert lines_of(variants({("skip", 0): 40.0, ("ours", 0): 90.0})) == [], "one seed each has no deviation"


def test_the_better_one_must_be_above_its_own_start():
    higher, lower = OverSeeds((50.0, 50.1), (), (50.2, 50.2)), OverSeeds((40.0, 40.1), (), (30.0,))
    line = SeedsLine("a", "b", MEASURE, higher, lower)
    assert line.verdict == "undecided"
    assert seeds_verdicts([line]) == [
        "a against b: undecided in mIoU, voc val (+10.0 [+9.7, +10.3], a not above its start)."
    ]
    assert "b not above its start" in seeds_verdicts([SeedsLine("a", "b", MEASURE, lower, higher)])[0]


numbers = st.lists(st.floats(0, 100), min_size=2, max_size=5)


@given(numbers, numbers)
def test_the_pooled_deviation_and_the_rule(one, two):
    line = SeedsLine("a", "b", None, OverSeeds(tuple(one), ()), OverSeeds(tuple(two), ()))
    squares = sum((value - statistics.mean(side)) ** 2 for side in (one, two) for value in side)
    deviation = math.sqrt(squares / (len(one) + len(two) - 2))
    assert line.deviation == pytest.approx(deviation, abs=1e-9)
    difference = statistics.mean(one) - statistics.mean(two)
    if abs(abs(difference) - 2 * deviation) > 1e-6:
        expected = "undecided" if abs(difference) < 2 * deviation else "better" if difference > 0 else "worse"
        assert line.verdict == expected
