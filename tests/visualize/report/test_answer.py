"""The report's answer: which pairs, what decides, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dinoskip.decisions.wording import points
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult
from visualize.comparison import Scores
from visualize.report.answer import NO_SCORE, answers, choices, compared_pairs, verdict
from visualize.report.answer_table import answer_table
from visualize.report.cautions import cautions
from visualize.report.overview import overviews
from visualize.rows import DEFAULT, INITIALISED, REMEDY, SKIP, StudyVariant

IDS = tuple(str(number) for number in range(100))


PROTOCOL = "tokencut tau=0.2 eps=1e-05"


def corloc(model, rate, block="1", epoch=3, **more):
    """A row that hits the first ``rate`` of a hundred images, and its record."""
    row = EvalResult("CorLoc", 100.0 * rate, "tokencut", block, "voc", "val", 100, model=model, epoch=epoch,
                     low=100 * rate - 9, high=100 * rate + 9, protocol=PROTOCOL, **more)  # fmt: skip
    return row, ImageRecords(IDS, (np.arange(100) < round(100 * rate)).astype(np.uint8))


def miou(model, value, block, heldout, **more):
    ends = {"low": value - 2, "high": value + 2}
    return EvalResult(
        "mIoU", value, "probe", block, "voc", "val", 100, model=model, epoch=3, heldout=heldout, **ends, **more
    )


def studied_with(*variants):
    """Variants of 12 blocks by name, role, optimizer and rows with their records, and their scores."""
    records = {row: one for variant in variants for row, one in variant[3] if one is not None}
    studied = [
        StudyVariant(name, role, optimizer, 12, [row for row, _ in rows]) for name, role, optimizer, rows in variants
    ]
    return studied, Scores({one.name: one.rows for one in studied}, records)


def answered(*variants, baselines=()):
    return answers(*studied_with(*variants), baselines)


def test_a_network_is_compared_with_its_counterpart():
    def pairs(*variants):
        return compared_pairs([StudyVariant(name, role, optimizer, depth) for name, role, optimizer, depth in variants])

    skip, ours = ("s", SKIP, "adamw", 12), ("o", INITIALISED, "adamw", 12)
    assert pairs(skip, ours, ("x", INITIALISED, "adamw", 9), ("y", SKIP, "soap", 12)) == [("o", "s")]
    others = ("d", DEFAULT, "adamw", 12), ("c", "", "adamw", 12), ("c", "", "soap", 12)
    assert pairs(skip, ours, *others) == [("o", "s"), ("d", "s"), ("c", "s")], "and those in none of the paper's tables"
    assert pairs(("a", "", "", 12), ("b", "", "", 12), ("c", "", "", 12)) == [("b", "a"), ("c", "a")]
    assert pairs(skip) == [("s", "")]
    assert pairs() == []


def test_of_one_training_each_what_images_alone_tell_apart_is_undecided_and_what_luck_cannot_explain_is_decided():
    near = answered(("s", SKIP, "soap", [corloc("s", 0.5)]), ("o", INITIALISED, "soap", [corloc("o", 0.6)]))
    [line] = near[0].lines
    assert line.difference.p < 0.01
    assert (line.sign, line.difference.within_luck, line.difference.kind) == (0, True, "one training each")
    found = answered(("s", SKIP, "soap", [corloc("s", 0.5)]), ("o", INITIALISED, "soap", [corloc("o", 0.8)]))
    [line] = found[0].lines
    assert (line.sign, line.verdict) == (1, "higher")
    assert verdict(found) == (
        f"“o” is higher, one training each, in CorLoc, voc val ({points(line.difference)}), compared with “s”."
    )
    assert points(line.difference).startswith("+30.0 [+")


def test_a_difference_that_one_test_finds_is_undecided_among_many():
    pair = (("s", SKIP, "soap", [corloc("s", 0.50)]), ("o", INITIALISED, "soap", [corloc("o", 0.71)]))
    assert answered(*pair)[0].lines[0].sign == 1
    more = [
        (f"{name}{n}", role, f"{optimizer}{n}", [corloc(f"{name}{n}", 0.5)])
        for n in range(2)
        for name, role, optimizer, _ in pair
    ]
    found = answered(*pair, *more)
    assert [line.sign for answer in found for line in answer.lines] == [0, 0, 0]
    said = (
        "Compared with “s”: “o” does not differ significantly. Compared with “s0”: “o0” does not differ significantly."
    )
    assert verdict(found).startswith(said)


COMPLETE = {"degenerate": 1.0, "complete": 1.0}
FAILED = "affinity graph degenerate at τ = 0.2 (100 of 100 images)"


def test_a_dead_network_never_wins_and_has_no_interval():
    gone = {**COMPLETE, "token_cosine": 0.999}
    found = answered(("s", SKIP, "soap", [corloc("s", 0.2)]), ("o", INITIALISED, "soap", [corloc("o", 0.6, **gone)]))
    [line] = found[0].lines
    assert line.sign == 0
    assert line.first.is_dead
    assert line.certainty == "undecided: o has collapsed"
    said = f"o, CorLoc, voc val: 1 of 1 blocks (1): tokens alike, {FAILED}; {REMEDY}"
    assert said in cautions(found)
    assert (
        "o, CorLoc, voc val: network collapsed: all patches alike, affinity graph degenerate, "
        "nothing gained in training" in cautions(found)
    )
    [cells] = answer_table(found).rows
    assert cells[2] == f"60.0 b1: tokens alike, {FAILED}"
    beaten = answered(("s", SKIP, "soap", [corloc("s", 0.6)]), ("o", INITIALISED, "soap", [corloc("o", 0.2, **gone)]))
    assert beaten[0].lines[0].sign == -1, "a dead network still loses"


def test_a_complete_graph_alone_bars_no_verdict():
    offset = {**COMPLETE, "token_cosine": 0.86}
    found = answered(("s", SKIP, "soap", [corloc("s", 0.2)]), ("o", INITIALISED, "soap", [corloc("o", 0.6, **offset)]))
    [line] = found[0].lines
    assert (line.sign, line.first.is_dead, line.first.failed_there) == (1, False, FAILED)
    assert not any("collapsed" in one for one in cautions(found))
    cell = overviews(found, ())[0].lines[1][1][0]
    assert (cell.word, cell.at) == ("higher, one training each", f"block 1, {FAILED.partition(' (')[0]}")


def test_tokens_alike_that_gained_by_training_are_no_dead_network():
    gone = {**COMPLETE, "token_cosine": 0.999}
    rows = [corloc("o", 0.6, **gone), corloc("o", 0.1, epoch=0, **gone)]
    found = answered(("s", SKIP, "soap", [corloc("s", 0.2)]), ("o", INITIALISED, "soap", rows))
    assert (found[0].lines[0].sign, found[0].lines[0].first.is_dead) == (1, False)
    nothing = [corloc("o", 0.6, **gone), corloc("o", 0.6, epoch=0, **gone)]
    found = answered(("s", SKIP, "soap", [corloc("s", 0.2)]), ("o", INITIALISED, "soap", nothing))
    assert (found[0].lines[0].sign, found[0].lines[0].first.is_dead) == (0, True)


def test_the_probes_block_is_chosen_on_held_out_training_images():
    rows = [miou("a", 30.0, "1", 50.0), miou("a", 40.0, "2", 60.0), miou("a", 44.0, "3", 55.0)]
    found = answered(("a", "", "", [(row, None) for row in rows]))
    [line] = found[0].lines
    assert (line.first.now[0].block, line.first.value, line.first.now[0].best.block) == ("b2", 40.0, "3")
    assert choices(found) == (
        "Blocks chosen on held-out training images (mIoU, voc val). Choosing the block on these images instead would "
        "have raised the score: +4.0 (a, mIoU, voc val)."
    )
    assert verdict(found) == (
        "a: mIoU, voc val (100 images) 40.0 at block 2. There is no second network to compare it with."
    )


def test_baselines_and_random_weights_stand_beside():
    row, record = corloc("s", 0.5)
    begun = [corloc("s", 0.1, epoch=0)]
    floor = [row.baseline("full image", 20.0), row.baseline("centre box", 55.0)]
    found = answered(("s", SKIP, "soap", [(row, record), *begun]), baselines=floor)
    [line] = found[0].lines
    assert line.first.before[0].value == 10.0
    assert line.trivial.value == 55.0
    assert any(said.endswith("50.0 is below the baseline (centre box), 55.0") for said in cautions(found))
    high = answered(("s", SKIP, "soap", [corloc("s", 0.9)]), baselines=floor)
    assert not any("not clearly above" in said for said in cautions(high))


def test_unpaired_differences_are_named():
    pair = (("s", SKIP, "soap", [(corloc("s", 0.5)[0], None)]), ("o", INITIALISED, "soap", [corloc("o", 0.6)]))
    found = answered(*pair)
    assert any("unpaired" in said for said in cautions(found))
    assert points(found[0].lines[0].difference).endswith("unpaired")


def test_what_was_not_run_has_no_difference():
    row = replace(corloc("o", 0.5)[0], dataset="coco")
    found = answered(("s", SKIP, "soap", [corloc("s", 0.5)]), ("o", INITIALISED, "soap", [(row, None)]))
    assert [line.difference for line in found[0].lines] == [None, None]
    assert "not scored on the same metric" in verdict(found)
    shown = {line[2] for line in answer_table(found).rows}
    assert shown == {"not run", "50.0 [41.0, 59.0] b1, best on these images 50.0 b1"}
    assert verdict([]) == NO_SCORE


def test_training_that_has_lifted_nothing_is_named():
    def said(before):
        row, record = corloc("s", 0.5)
        found = answered(("s", SKIP, "soap", [(row, record), corloc("s", before, epoch=0)]))
        return [one for one in cautions(found) if "before training" in one]

    assert said(0.5) == ["s, CorLoc, voc val, b1: 50.0 is not clearly above the same network before training, 50.0"]
    assert said(0.2) == []


def test_cuts_that_fail_are_named_also_where_another_block_is_chosen():
    rows = [
        corloc("s", 0.6),
        corloc("s", 0.2, "2", degenerate=1.0, complete=0.1),
        corloc("s", 0.2, "3", degenerate=0.4),
    ]
    found = answered(("s", SKIP, "soap", rows))
    assert not found[0].lines[0].first.failed_there
    said = f"s, CorLoc, voc val: 1 of 3 blocks (2): no cut at τ = 0.2 (100 of 100 images); {REMEDY}"
    assert said in cautions(found)
