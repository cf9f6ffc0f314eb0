"""Networks read at several places: like is compared with like, and it is said where the sign depends on the place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dinoskip.decisions.choosing import BY_CROSS_FITTING, BY_HELD_OUT
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult
from visualize.comparison import Scores
from visualize.report.answer import answers, dependences
from visualize.report.answer_table import answer_table
from visualize.report.content import Report
from visualize.report.page import build_report
from visualize.report.separation import separations
from visualize.rows import INITIALISED, SKIP, StudyVariant, principal

IDS = tuple(map(str, range(100)))


def miou(model, facet, block, value, heldout, **more):
    ends = {"low": value - 0.1, "high": value + 0.1, "facet": facet, "heldout": heldout}
    return EvalResult("mIoU", value, "probe", str(block), "voc", "val", 100, model=model, epoch=3, **ends, **more)


def hit(model, facet, block, hits):
    row = EvalResult("CorLoc", 100 * hits.mean(), "tokencut", str(block), "voc", "val", 100, model=model, facet=facet)
    return row, ImageRecords(IDS, hits.astype(np.uint8))


def studied(rows):
    roles = {"calibrated": INITIALISED, "skip": SKIP}
    return [
        StudyVariant(name, role, "soap", 12, [row for row in rows if row.model == name]) for name, role in roles.items()
    ]


# A skipless block's MLP is its output; with skips the branch is better, and better still on what is not held out.
SKIPLESS = [miou("calibrated", facet, block, 50 + block, 40 + block) for facet in ("out", "mlp") for block in (1, 2)]
WITH_SKIPS = [miou("skip", "out", 1, 51, 42), miou("skip", "out", 2, 50, 41)]
WITH_SKIPS += [miou("skip", "mlp", 1, 56, 47), miou("skip", "mlp", 2, 58, 46)]


def lines_of(rows, records=None):
    variants = studied(rows)
    kept = principal({one.name: one.rows for one in variants}, every_read_point=True)
    return answers(variants, Scores(kept, records))


def test_each_read_point_is_compared_and_each_network_at_its_own_best():
    [found] = lines_of([*SKIPLESS, *WITH_SKIPS])
    about = [(line.benchmark.label, line.first.parts["block"], line.second.parts["block"]) for line in found.lines]
    assert about == [
        ("mIoU, voc val (read at out)", "b2", "b1"),
        ("mIoU, voc val (read at mlp)", "b2", "b1"),
        ("mIoU, voc val (each read at its own best)", "b2 out", "b1 mlp"),
    ]
    assert [round(line.difference.value) for line in found.lines] == [1, -4, -4]
    best = found.lines[2].second.now[0]
    assert (best.how, best.value, best.best.value) == (BY_HELD_OUT, 56, 58), "chosen without the images shown"


def test_where_the_sign_depends_on_the_read_point_it_is_said():
    found = lines_of([*SKIPLESS, *WITH_SKIPS])
    [sentence] = dependences(found)
    start = "mIoU, voc val: the sign of calibrated − skip depends on where blocks are read: read at out +1.0 ["
    assert sentence.startswith(start)
    assert "; each read at its own best −4.0 [" in sentence
    assert sentence in answer_table(found, every=found).notes
    assert dependences(lines_of([*SKIPLESS, *(row for row in WITH_SKIPS if row.facet == "mlp")])) == []
    level = [miou("skip", "out", 1, 52.02, 42), *(row for row in WITH_SKIPS if row.facet == "mlp")]
    assert dependences(lines_of([*SKIPLESS, *level])) == [], "what prints as 0.0 has no sign"


def test_block_and_read_point_are_chosen_together_on_other_halves_of_the_images():
    rng = np.random.default_rng(0)
    rates = {("calibrated", "out"): 0.5, ("calibrated", "value"): 0.4, ("skip", "out"): 0.1, ("skip", "value"): 0.8}
    records = dict(hit(*place, 1, rng.random(100) < rate) for place, rate in rates.items())
    [found] = lines_of(list(records), records)
    last = found.lines[-1]
    assert last.benchmark.label == "CorLoc, voc val (each read at its own best)"
    assert {score.how for side in (last.first, last.second) for score in side.now} == {BY_CROSS_FITTING}
    assert last.second.parts["block"] == "b1 value"
    assert last.second.value == pytest.approx(next(r.value for r in records if (r.model, r.facet) == ("skip", "value")))


def test_one_read_point_has_no_line_of_its_own_best():
    rows = [row for row in (*SKIPLESS, *WITH_SKIPS) if row.facet == "out"]
    [found] = lines_of(rows)
    assert [line.benchmark.label for line in found.lines] == ["mIoU, voc val"]


def test_norms_of_one_read_point_are_not_taken_for_two():
    rows = [miou("calibrated", "out", 1, 50, 40, norm=norm) for norm in ("final", "layer")]
    variants = studied([*rows, *WITH_SKIPS])
    scores = Scores({one.name: one.rows for one in variants})
    assert "own best" not in " ".join(benchmark.label for benchmark in scores.benchmarks)


def test_the_page_names_the_read_point_in_every_table(tmp_path):
    build_report(Report("Read points", studied([*SKIPLESS, *WITH_SKIPS])), tmp_path)
    for page in ("index.html", "report.md"):
        assert "depends on where blocks are read" in (tmp_path / page).read_text(encoding="utf-8")
    for name in ("answer", "best"):
        said = (tmp_path / "tables" / f"{name}.md").read_text(encoding="utf-8")
        assert "read at out" in said
        assert "read at mlp" in said
    blocks = [path.read_text(encoding="utf-8") for path in sorted((tmp_path / "tables").glob("blocks-*.md"))]
    assert ["read at out" in blocks[0], "read at mlp" in blocks[1], len(blocks)] == [True, True, 2]


def test_measures_that_separate_nothing_still_say_where_the_sign_depends(tmp_path):
    high = replace(miou("", "out", 1, 99, 99).baseline("majority class", 99.0), low=98.9, high=99.1)
    build_report(Report("Read points", studied([*SKIPLESS, *WITH_SKIPS]), baselines=[high]), tmp_path)
    said = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Inconclusive metrics" in said
    verdict = said.partition('class="verdict"')[2].partition("</p>")[0]
    assert "does not show which is better" in verdict
    assert "depends on where blocks are read" in verdict


def skipless(model, facets, value):
    return [miou(model, facet, block, value + block, 40 + block) for facet in facets for block in (1, 2)]


def test_read_points_of_the_same_numbers_are_corrected_as_one():
    """A skipless block's output is its MLP branch: three lines of one comparison are no larger a family than one."""
    found = {}
    for facets in (("out",), ("out", "mlp"), ("out", "attn")):
        rows = [*skipless("calibrated", facets, 50), *skipless("mixing", facets, 50.15)]
        rows = [replace(row, value=row.value + 0.01 * row.facet.count("attn")) for row in rows]
        names = ("calibrated", "mixing")
        networks = [StudyVariant(one, "", "soap", 12, [row for row in rows if row.model == one]) for one in names]
        kept = principal({one.name: one.rows for one in networks}, every_read_point=True)
        [pair] = answers(networks, Scores(kept))
        found[facets] = [line.p for line in pair.lines]
    [alone] = found["out",]
    assert found["out", "mlp"] == pytest.approx([alone] * 3)
    assert found["out", "attn"] == pytest.approx([3 * alone] * 3), "other numbers are other comparisons"


def test_read_points_of_the_same_numbers_are_one_test_of_what_separates():
    """One-sided p is 0.03 above the rule: it separates alone, and not among three tests."""
    separate = {}
    for facets in (("out",), ("out", "mlp"), ("out", "attn")):
        rows = skipless("calibrated", facets, 50)
        rows = [replace(row, value=row.value + 0.001 * (row.facet == "attn")) for row in rows]
        networks = [StudyVariant("calibrated", INITIALISED, "soap", 12, rows)]
        kept = principal({"calibrated": rows}, every_read_point=True)
        rule = replace(rows[0].baseline("majority class", 51.9), low=51.89, high=51.91)
        separate[facets] = [one.separates for one in separations(networks, Scores(kept), [rule])]
    assert separate == {("out",): [True], ("out", "mlp"): [True] * 3, ("out", "attn"): [False] * 3}
