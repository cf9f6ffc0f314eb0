"""Verdicts on the paper's claims: by intervals of rows that differ in one thing alone."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dinoskip.results import EvalResult
from visualize.paper.claims import (
    CONTRADICTED,
    SUPPORTED,
    UNDECIDED,
    Claim,
    Comparison,
    claims,
    claims_grid,
)
from visualize.paper.compare import ComparedStudy
from visualize.paper.published import DEFAULT, INITIALISED, SKIP
from visualize.rows import StudyVariant

RESCUE, DENSE, LAST, SEVERAL, NINE, PICTURES = 1, 5, 6, 7, 8, 9


def row(model, value, task="probe", block="9", dataset="voc", half=1.0, **more):
    metric = {"probe": "mIoU", "tokencut": "CorLoc", "knn": "knn_k10", "classify": "top1"}[task]
    ends = {"low": value - half, "high": value + half} if half else {}
    return EvalResult(metric, value, task, block, dataset, "val", 100, epoch=6, model=model, **ends, **more)


def variant(role, optimizer, *rows, depth=12):
    name = f"{role}-{optimizer}-{depth}"
    return StudyVariant(name, role, optimizer, depth, [row(name, **one) for one in rows])


def study(*variants):
    return ComparedStudy(variants, {"voc": "VOC2012", "stuff": "COCO-Stuff"}, 6)


@pytest.mark.parametrize(
    ("ours", "theirs", "half", "verdict"),
    [(60, 50, 4.9, SUPPORTED), (60, 50, 5.1, UNDECIDED), (50, 60, 4.9, CONTRADICTED), (60, 50, 0, UNDECIDED)],
)
def test_a_comparison_counts_where_the_intervals_are_apart(ours, theirs, half, verdict):
    found = claims(study(
        variant(SKIP, "adamw", {"value": theirs, "half": half}),
        variant(INITIALISED, "adamw", {"value": ours, "half": half}),
    ))  # fmt: skip
    claim = found[DENSE]
    assert claim.verdict == verdict
    assert len(claim.comparisons) == 1
    text = claim.comparisons[0].text
    assert text.startswith("mIoU, voc val: skipless, initialised-adamw-12")
    assert " against skip-adamw-12" in text


@given(st.lists(st.sampled_from([-1, 0, 1]), max_size=6))
def test_a_verdict_needs_all_that_counts_to_agree(signs):
    verdict = Claim("", [Comparison("", sign) for sign in signs]).verdict
    assert verdict == (
        SUPPORTED if max(signs, default=0) == 1 and min(signs) >= 0
        else CONTRADICTED if min(signs, default=0) == -1 and max(signs) <= 0
        else UNDECIDED
    )  # fmt: skip


def test_only_variants_that_differ_in_one_thing_are_compared():
    high, low = {"value": 60.0}, {"value": 20.0}
    variants = [
        variant(role, optimizer, low if role == DEFAULT else high, depth=depth)
        for role, optimizer, depth in itertools.product((SKIP, DEFAULT, INITIALISED, ""), ("adamw", "soap"), (9, 12))
    ]
    found = claims(study(*variants))
    assert len(found[RESCUE].comparisons) == 4  # two optimizers, two depths
    for one in found[RESCUE].comparisons:
        ours, theirs = one.text.partition(": ")[2].split(" against ")
        assert ours.split()[1].partition("-")[2] == theirs.split()[0].partition("-")[2]
    worse = found[4]  # SOAP is worse in segmentation: three roles, two depths, all equal
    assert len(worse.comparisons) == 6
    assert worse.verdict == UNDECIDED


def test_each_variant_stands_with_its_best_block_and_last_epoch():
    ours = [row("ours", 30.0, block="3"), row("ours", 70.0, block="11"), row("ours", 50.0, block="12")]
    ours += [EvalResult("mIoU", 99.0, "probe", "1", "voc", "val", 100, epoch=3, model="ours", low=98.0, high=99.5)]
    found = claims(study(StudyVariant("ours", INITIALISED, "adamw", 12, ours),
                         variant(SKIP, "adamw", {"value": 60.0})))  # fmt: skip
    assert "ours 70.0 [69.0, 71.0] b11 against" in found[DENSE].comparisons[0].text
    [last] = found[LAST].comparisons
    assert last.sign == 1
    assert last.text.endswith("ours: 70.0 [69.0, 71.0] b11 against 50.0 [49.0, 51.0] b12")


def test_accuracy_is_the_last_blocks():
    both = [
        [row(name, value, "knn", block, dataset="nette") for block, value in values.items()]
        for name, values in {"skip": {"1": 20.0, "12": 40.0}, "default": {"1": 50.0, "12": 10.0}}.items()
    ]
    found = claims(
        study(StudyVariant("skip", SKIP, "soap", 12, both[0]), StudyVariant("default", DEFAULT, "soap", 12, both[1]))
    )
    [failed] = found[0].comparisons
    assert failed.sign == 1
    assert failed.text.endswith("skip 40.0 [39.0, 41.0] b12 against default 10.0 [9.0, 11.0] b12")


def test_several_blocks_count_on_complex_scenes_alone():
    found = {
        dataset: [row("ours", 40.0, dataset=dataset), row("ours", 50.0, block="3+9", dataset=dataset)]
        for dataset in ("voc", "stuff")
    }
    only_voc = claims(study(StudyVariant("ours", INITIALISED, "adamw", 12, found["voc"])))[SEVERAL]
    assert not only_voc.comparisons
    assert only_voc.verdict == UNDECIDED
    assert "COCO-Stuff" in only_voc.missing
    both = claims(study(StudyVariant("ours", INITIALISED, "adamw", 12, found["voc"] + found["stuff"])))[SEVERAL]
    assert [one.sign for one in both.comparisons] == [1]
    assert "stuff" in both.comparisons[0].text


def test_nine_blocks_are_compared_with_twelve():
    corloc = {"task": "tokencut", "value": 40.0}
    found = claims(study(
        variant(SKIP, "adamw", {**corloc, "value": 20.0}), variant(SKIP, "adamw", corloc, depth=9),
        variant(INITIALISED, "adamw", corloc), variant(INITIALISED, "adamw", corloc, depth=9),
    ))  # fmt: skip
    [nine] = found[NINE].comparisons
    assert nine.sign == 1
    assert "initialised-adamw-9 " in nine.text
    assert "skip-adamw-12 " in nine.text


def test_pictures_are_compared_image_by_image():
    pair = (variant(SKIP, "adamw"), variant(INITIALISED, "adamw"))
    smooth, rough = [0.2 + 0.01 * i for i in range(10)], [0.5 + 0.01 * i for i in range(9)] + [0.1]
    found = claims(study(*pair), {pair[0].name: rough, pair[1].name: smooth}, 11)[PICTURES]
    assert found.verdict == SUPPORTED
    assert "block 11" in found.text
    assert "smoother on 9 of 10 images, p = 0.021" in found.comparisons[0].text
    few = claims(study(*pair), {pair[0].name: rough[:5], pair[1].name: smooth[:5]}, 11)[PICTURES]
    assert few.verdict == UNDECIDED
    assert few.comparisons[0].sign == 0
    worse = claims(study(*pair), {pair[0].name: smooth, pair[1].name: rough}, 11)[PICTURES]
    assert worse.verdict == CONTRADICTED


def test_the_table_has_a_line_a_claim_and_a_line_a_comparison():
    found = claims(study(variant(SKIP, "soap", {"value": 20.0}), variant(INITIALISED, "soap", {"value": 60.0})))
    grid = claims_grid(found)
    assert len(grid.rows) == len(found) + sum(len(claim.comparisons) for claim in found)
    assert [grid.rows[number][1] for number in sorted(grid.rules)] == [claim.verdict for claim in found]
    at = next(number for number, line in enumerate(grid.rows) if line[0] == found[DENSE].text)
    assert grid.rows[at + 1][:2] == ["", "+"]
    assert all(claim.missing for claim in found if not claim.comparisons)
