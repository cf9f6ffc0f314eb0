"""The first sentences: why a benchmark is inconclusive, and features without labels."""

from dataclasses import replace

from dinoskip.decisions.choosing import Score
from dinoskip.results.rows import EvalResult
from visualize.report.answer import Answer, AnswerLine, Measured
from visualize.report.first_sentence import COSINE, MOST, RANK, features_said, inconclusive_said
from visualize.rows import Benchmark

MIOU = Benchmark("probe", "mIoU", "voc", "val")
RULE = EvalResult("mIoU", 20.6, "probe", "1", "voc", "val", 2, model="baseline: random patch")


def side(name: str, value: float) -> Measured:
    row = EvalResult("mIoU", value, "probe", "3", "voc", "val", 2, model=name)
    return Measured(name, (Score(row, value, ("3",)),))


def line(first: float, second: float, benchmark: Benchmark = MIOU) -> AnswerLine:
    return AnswerLine(benchmark, side("ours", first), side("default", second), trivial=RULE)


def test_an_inconclusive_metric_is_said_with_its_values_and_the_best_baseline() -> None:
    said = inconclusive_said([Answer("ours", "default", [line(20.0, 12.1)])], {MIOU})
    assert said.index("“ours” 20.0") < said.index("“default” 12.1") < said.index("(random patch, 20.6)")
    assert "neither beats the best baseline" in said
    assert "neither is clearly above" in inconclusive_said([Answer("ours", "default", [line(21.0, 12.1)])], {MIOU})


def test_what_is_conclusive_is_not_said() -> None:
    assert inconclusive_said([Answer("ours", "default", [line(40.0, 12.1)])], set()) == ""


def test_of_three_networks_the_table_has_the_values() -> None:
    other = replace(line(19.0, 12.1), first=side("third", 19.0))
    said = inconclusive_said(
        [Answer("ours", "default", [line(20.0, 12.1)]), Answer("third", "default", [other])], {MIOU}
    )
    assert "none of the networks compared beats the best baseline (random patch, 20.6)" in said
    assert "12.1" not in said


def test_only_the_first_benchmarks_are_said() -> None:
    many = [replace(MIOU, dataset=f"set{number}") for number in range(MOST + 2)]
    said = inconclusive_said([Answer("ours", "default", [line(1.0, 2.0, one) for one in many])], set(many))
    assert f"set{MOST - 1}" in said
    assert f"set{MOST}" not in said
    assert "2 more" in said


def test_one_network_has_nothing_to_compare() -> None:
    alone = replace(line(4.0, 2.0), second=None)
    assert inconclusive_said([Answer("ours", "default", [alone])], {MIOU}) == ""
    assert inconclusive_said([Answer("ours", "", [line(1.0, 2.0)])], {MIOU}) == ""


def test_features_without_labels_are_compared_by_block_and_a_collapse_is_said() -> None:
    features = {COSINE: {"skip": {1: 0.5, 2: 0.4}, "ours": {1: 0.3, 2: 0.39}}, RANK: {"skip": {2: 34.2}}}
    said = features_said(features)
    assert said.index("“ours”") < said.index("“skip”")
    assert "at 2 of 2 blocks (mean cosine 0.30 to 0.39 against 0.40 to 0.50)" in said
    assert "No network has collapsed" in said
    assert "Patches" not in features_said({COSINE: {name: features[COSINE]["skip"] for name in ("a", "b")}}), "a tie"
    features[COSINE]["third"] = {1: 0.3, 2: 0.97}
    said = features_said(features)
    assert said.startswith("“third”: patches are nearly alike")
    assert "“ours”" not in said
    assert features_said({}) == features_said({COSINE: {}}) == ""
