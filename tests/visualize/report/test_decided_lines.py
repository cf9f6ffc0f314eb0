"""The page's words on lines that are not decided, of one training each, and of few seeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dinoskip.results.estimates import least_gap
from tests.visualize.report.test_answer import answered, corloc
from tests.visualize.report.test_answer_over_seeds import VALUES, scores_of, variants
from visualize.report import Report, build_report
from visualize.report.answer import answers, verdict
from visualize.report.cautions import cautions
from visualize.report.separation import separations
from visualize.rows import INITIALISED, SKIP


def of_shown(studied):
    """The same rows without what would choose a block: neither held-out scores nor records."""
    return [replace(one, rows=[replace(row, heldout=None) for row in one.rows]) for one in studied]


def answers_of(studied):
    return answers(studied, scores_of(studied))


def test_the_sentence_turns_with_the_sign_of_the_rows() -> None:
    turned = {key: 100 - value for key, value in VALUES.items()}
    said = [verdict(answers_of(variants(values))) for values in (VALUES, turned)]
    assert [" is better in " in one for one in said] == [True, False]
    assert [" is worse in " in one for one in said] == [False, True]


def test_a_block_chosen_on_the_images_shown_gives_no_verdict_and_the_line_says_why(tmp_path) -> None:
    """An upper estimate against an upper estimate was called worse, p < 0.001."""
    studied = of_shown(variants())
    [pair] = answers_of(studied)
    [line] = pair.lines
    assert (line.verdict, line.sign) == ("undecided", 0)
    assert line.certainty == "undecided: chosen on the images shown: ours and skip"
    said = verdict([pair])
    assert said.startswith("No ranking of “ours” and “skip” (chosen on the images shown: ours and skip): ")
    assert f"{line.first.value:.1f} and {line.second.value:.1f}" in said
    assert separations(studied, scores_of(studied), [])[0].separates is None, "nothing was tested"
    build_report(Report(title="t", variants=studied), tmp_path)
    for file in ("index.html", "report.md", "tables/answer.md"):
        text = (tmp_path / file).read_text(encoding="utf-8")
        assert "undecided: chosen on the images shown: ours and skip" in text
    rows = (tmp_path / "rows.html").read_text(encoding="utf-8")
    assert "selected" in rows


def test_one_block_is_no_choice() -> None:
    studied = [
        replace(one, rows=[replace(row, heldout=None) for row in one.rows if row.block == "1"]) for one in variants()
    ]
    [line] = answers_of(studied)[0].lines
    assert line.verdict == "better"
    assert {score.selected for side in (line.first, line.second) for score in side.now} == {"fixed"}


@pytest.mark.parametrize(("measures", "said"), [(1, False), (8, True)])
def test_of_few_seeds_and_many_measures_the_page_says_what_it_could_not_find(measures: int, said: bool) -> None:
    studied = [
        replace(one, rows=[replace(row, dataset=f"set{k}") for row in one.rows for k in range(measures)])
        for one in variants()
    ]
    found = [one for one in cautions(answers_of(studied)) if "deviations over seeds" in one]
    assert len(found) == said
    if said:
        assert f" {least_gap(3, 8):.0f} standard deviations over seeds" in found[0]
        enough = next(seeds for seeds in range(4, 20) if least_gap(seeds, 8) <= 5)
        assert f"With {enough} seeds {least_gap(enough, 8):.1f} suffice" in found[0]


def test_the_page_of_one_training_each_never_says_better(tmp_path) -> None:
    rows = {"s": corloc("s", 0.1), "o": corloc("o", 0.9)}
    found = answered(("s", SKIP, "soap", [rows["s"]]), ("o", INITIALISED, "soap", [rows["o"]]))
    [line] = found[0].lines
    assert (line.verdict, line.said) == ("higher", "higher, one training each")
    assert verdict(found).startswith("“o” is higher, one training each, in CorLoc, voc val (+80.0 [")
    studied = [replace(one, family="") for one in variants() if one.seed == 0]
    studied = [replace(one, rows=[replace(row, low=row.value - 1, high=row.value + 1) for row in one.rows])
               for one in studied]  # fmt: skip
    build_report(Report(title="t", variants=studied), tmp_path)
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "is higher, one training each, in mIoU" in page
    assert "better" not in page.partition("<details")[0]
    html = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "another seed may differ" in html
    assert 'class="higher"' in html
