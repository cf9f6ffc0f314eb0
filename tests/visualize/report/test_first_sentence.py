"""The first sentence: every value, the best baseline, and why a benchmark is inconclusive."""

from dataclasses import replace

from dinoskip.decisions.choosing import Score
from dinoskip.results.rows import EvalResult
from visualize.report.answer import Answer, AnswerLine, Measured
from visualize.report.first_sentence import COSINE, MOST, RANK, features_said, values_said
from visualize.rows import Benchmark

MIOU = Benchmark("probe", "mIoU", "voc", "val")
RULE = EvalResult("mIoU", 20.6, "probe", "1", "voc", "val", 2, model="baseline: random patch")


def side(name: str, value: float) -> Measured:
    row = EvalResult("mIoU", value, "probe", "3", "voc", "val", 2, model=name)
    return Measured(name, (Score(row, value, ("3",)),))


def line(first: float, second: float, benchmark: Benchmark = MIOU) -> AnswerLine:
    return AnswerLine(benchmark, side("ours", first), side("default", second), trivial=RULE)


def test_values_and_the_best_baseline_are_said() -> None:
    said = values_said([Answer("ours", "default", [line(20.0, 12.1)])], {MIOU: "inconclusive"})
    assert (
        said.index("20.0 (ours, block 3)") < said.index("12.1 (default, block 3)") < said.index("20.6 (random patch)")
    )
    assert "Neither beats the baseline" in said
    assert "Neither is clearly above" in values_said([Answer("ours", "default", [line(21.0, 12.1)])], {MIOU: "x"})


def test_what_is_conclusive_has_no_excuse() -> None:
    said = values_said([Answer("ours", "default", [line(40.0, 12.1)])], {})
    assert "40.0 (ours, block 3)" in said
    assert "does not show" not in said


def test_blocks_of_halves_and_of_none() -> None:
    halves = line(1.0, 2.0)
    fitted = replace(halves, first=replace(halves.first, now=(replace(halves.first.now[0], blocks=("2", "10")),)))
    assert "1.0 (ours, blocks 2, 10)" in values_said([Answer("ours", "default", [fitted])], {})
    row = replace(halves.first.now[0].row, block="")
    classified = replace(halves, first=replace(halves.first, now=(Score(row, 1.0, ("",)),)))
    assert "1.0 (ours)" in values_said([Answer("ours", "default", [classified])], {})


def test_only_the_first_benchmarks_are_said() -> None:
    many = [replace(MIOU, dataset=f"set{number}") for number in range(MOST + 2)]
    said = values_said([Answer("ours", "default", [line(1.0, 2.0, one) for one in many])], {})
    assert f"set{MOST - 1}" in said
    assert f"set{MOST}" not in said
    assert "2 more" in said


def test_one_network_has_nothing_to_compare() -> None:
    assert values_said([Answer("ours", "", [line(1.0, 2.0)])], {}) == ""


def test_values_at_the_last_block_and_whether_patches_are_all_alike() -> None:
    features = {
        COSINE: {"skip": {1: 0.5, 2: 0.4}, "ours": {1: 0.3, 2: 0.97}},
        RANK: {"skip": {2: 34.2}, "ours": {2: 1.5}},
    }
    said = features_said(features)
    assert "0.40 (skip), 0.97 (ours)" in said
    assert "34 (skip), 1.5 (ours)" in said
    assert said.endswith("ours: patches are alike at some block.")
    features[COSINE]["ours"][2] = 0.9
    assert features_said(features).endswith("No network's patches are all alike.")
    assert features_said({}) == ""
