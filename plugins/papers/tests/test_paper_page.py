"""The page of the whole paper: which studies fill it, and what it says of the rest."""

from __future__ import annotations

import csv
from pathlib import Path

from dinoskip.results.rows import EvalResult
from dinoskip_papers.page import PaperPage, build_paper, paper_claims
from dinoskip_papers.published import MADE_BY, PUBLISHED
from plugins.papers.tests.test_compare import VARIANTS
from visualize.report.content import Report
from visualize.rows import INITIALISED, SKIP, StudyVariant

NAMES = {"voc": "VOC2012", "stuff": "COCO-Stuff"}


def a_study(title, variants, compare=("paper.table2",)):
    return Report(
        title=title, variants=variants, compare=list(compare), datasets=NAMES, epochs=30, trained_on="imagenette"
    )


def test_without_a_study_all_is_named_with_what_makes_it(tmp_path: Path) -> None:
    filled = build_paper(PaperPage([], {}, {}, {}, []), tmp_path)
    assert set(filled) == set(PUBLISHED)
    assert all(have == 0 < every for have, every in filled.values())
    page, text = (tmp_path / "index.html").read_text(), (tmp_path / "paper.md").read_text()
    for config in set(MADE_BY.values()):
        assert f"dinoskip run {config}" in page
        assert f"dinoskip run {config}" in text.replace("\\_", "_")


def test_a_table_is_filled_by_the_group_with_most_of_its_cells(tmp_path: Path) -> None:
    few, most = a_study("few", VARIANTS[:2]), a_study("most", VARIANTS)
    filled = build_paper(
        PaperPage([few, most], {}, {}, {"runs/few": "few", "runs/most": "most"}, ["few: small"]), tmp_path
    )
    alone = build_paper(PaperPage([few], {}, {}, {}, []), tmp_path / "few")
    assert filled["paper.table2"][0] > alone["paper.table2"][0] > 0
    assert filled["paper.table1"][0] == 0, "no study was made for it"
    page = (tmp_path / "index.html").read_text()
    assert "From most." in page
    assert "few: small" in page
    assert "runs/few" in page
    with (tmp_path / "tables" / "paper-table2.csv").open() as file:
        written = list(csv.reader(file))
    assert len(written) > 1
    assert {path.suffix for path in (tmp_path / "tables").iterdir()} == {".csv", ".md", ".tex"}


def test_claims_are_corrected_for_all_comparisons_of_all_groups() -> None:
    def variant(name: str, role: str, value: float) -> StudyVariant:
        interval = {"low": value - 4, "high": value + 4}
        row = EvalResult("mIoU", value, "probe", "9", "voc", "val", 100, epoch=30, model=name, **interval)
        return StudyVariant(name, role, "adamw", 12, [row])

    groups = [
        a_study(name, [variant(f"ours-{name}", INITIALISED, 60.8), variant(f"skip-{name}", SKIP, 50.0)])
        for name in ("first", "second")
    ]
    first, both = ([c for claim in paper_claims(some) for c in claim.comparisons] for some in (groups[:1], groups))
    assert len(both) == 2 * len(first) > 0
    assert 0.05 / len(both) < first[0].p < 0.05 / len(first)
    assert any(c.sign for c in first)
    assert not any(c.sign for c in both), "Holm's factor is that of both studies"
