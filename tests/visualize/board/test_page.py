"""The page and files of a board."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from tests.helpers.html import Page
from tests.visualize.board.test_ranking import source
from visualize.board import BoardSource, make_board, write_board

NASTY = '"><script>alert(1)</script>=1+1'


def test_tables_files_and_links(tmp_path: Path) -> None:
    gallery = tmp_path / "study" / "gallery" / "index.html"
    gallery.parent.mkdir(parents=True)
    gallery.write_text("")
    one = source("one", {"good": {"1": 0.9, "10": 0.8, "3+6": 0.7}, NASTY: {"1": 0.2}})
    other = source("two", {"b": {"1": 0.6}}, norm="final")
    sources = [BoardSource("one", one.rows, one.records, gallery), replace(other)]
    page = write_board(make_board(sources), tmp_path / "board", NASTY)
    elements = Page(page)
    assert sum(tag == "script" for tag, _ in elements.tags) == 1  # the page's own
    assert "../study/gallery/index.html" in elements.values("href")
    assert all((page.parent / link).resolve().is_file() for link in elements.values("href"))
    head = next(cells for cells in elements.rows if cells and cells[0] == "rank")
    assert head[-3:] == ["1", "10", "3+6"]
    assert any("good" in cells for cells in elements.rows)
    lines = list(csv.DictReader((page.parent / "board.csv").read_text().splitlines()))
    assert [(line["rank"], line["source"]) for line in lines] == [("1", "one"), ("2", "one"), ("1", "two")]
    assert lines[1]["paired"] == "True"
    assert float(lines[1]["difference"]) < 0
    assert not lines[0]["difference"]
    (refused,) = csv.DictReader((page.parent / "refused.csv").read_text().splitlines())
    assert (refused["norm one"], refused["norm other"], refused["facet one"]) == ("none", "final", "")
    every = list(csv.DictReader((page.parent / "rows.csv").read_text().splitlines()))
    assert len(every) == 5
    assert {line["variant"] for line in every} == {"one", "two"}


def test_a_board_without_rankable_rows_says_so(tmp_path: Path) -> None:
    rows = tuple(replace(row, metric="mAcc") for row in source("one", {"a": {"1": 0.5}}).rows)
    page = write_board(make_board([BoardSource("one", rows, {})]), tmp_path)
    assert "No row that may be ranked." in page.read_text()
