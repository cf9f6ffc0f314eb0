"""The command that lays out the papers reads studies' folders, finished or not, and nothing else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dinoskip.cli import main
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.study import load_study
from dinoskip_papers.items import CONDITIONED, CUTTING_THE_SKIP, GRAYING, QUANTISATION
from dinoskip_papers.other_page import FoundStudy
from dinoskip_papers.records import RECORDS
from dinoskip_papers.studies import Source, loss_on_page, pictures_of
from tests.helpers.shipped import CONFIGS, write_shrunk
from visualize.report import Report
from visualize.report.papers import StudyNumbers


def cells_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[int]]:
    """The filled cells of the tables, and all, as the command says them."""
    capsys.readouterr()
    assert main(["paper", *words, "--json"]) == 0
    cells: dict[str, list[int]] = json.loads(capsys.readouterr().out)["cells"]
    return cells


def test_a_study_of_another_kind_fills_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_shrunk("eval/own_masks.yaml", tmp_path)
    monkeypatch.chdir(path.parent)
    assert main(["run", path.name, "output=runs", "--device", "cpu", "-q"]) == 0
    folder = load_study(path.name, ["output=runs"])[0].results
    cells = cells_of(capsys, str(folder), "--out", "page")
    assert cells["paper.table2"][0] == 0 < cells["paper.table2"][1]
    said = {name: str(folder.resolve()) in Path("page", name, "index.html").read_text() for name in ("", *RECORDS)}
    assert [name for name, it in said.items() if it] == ["", "cutting_the_skip"], "of papers, the one with its tasks"
    assert main(["paper", str(folder), "--out", str(folder)]) == 2
    assert "the folder of a study" in capsys.readouterr().err
    assert main(["paper", "page", "--out", "another"]) == 2
    assert "holds no report/" in capsys.readouterr().err
    assert not Path("another").exists()


SUPERVISED = """
name: graying_tiny
data: {train: {kind: folder, root: data/train}}
model: {name: vit_mini_patch16, depth: 2, img_size: 32}
optimizer: {name: adamw}
variants:
  model: [{label: plain}, {label: svd, graying: {kind: svd, epsilon: 0.95}}]
supervise: {dataset: train, epochs: 1, warmup_epochs: 0, batch_size: 4, augment: {size: 32}}
analyze: {model: vit_mini_patch16, depth: 2, img_size: 32, photos: 1}
report: {compare: graying.table2, figure_formats: []}
"""


def test_a_finished_study_is_found_without_its_data_and_its_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(SUPERVISED)
    assert main(["rehearse", "study.yaml", "--out", "rehearsed", "--device", "cpu", "-q"]) in {0, 2}
    studies = Path("rehearsed/plain/runs")
    whole = cells_of(capsys, "graying", "--runs", str(studies), "--out", "whole")
    assert whole["graying.table2"] == [4, 6]
    shutil.rmtree("rehearsed/plain/data")
    shutil.rmtree(studies / "graying_tiny" / "stages")
    shutil.move(str(studies), "elsewhere")
    assert cells_of(capsys, "graying", "--runs", "elsewhere", "--out", "alone") == whole
    page = Path("alone/graying/index.html").read_text()
    assert "elsewhere/graying_tiny" in page
    assert "A rehearsal: " in page, "the study's note"
    text = Path("whole/graying/tables/graying-table2.csv").read_text()
    assert (
        Path("alone/graying/tables/graying-table2.csv").read_text().splitlines()[1].split(",")[:6]
        == (text.splitlines()[1].split(",")[:6])
    )


def test_figures_are_the_pages_where_the_stages_are_gone(tmp_path: Path) -> None:
    drawn, gallery = tmp_path / "report" / "img", tmp_path / "report" / "gallery"
    report = Report("a", (), compare=["paper.table2"], block=4)
    source = Source(tmp_path, Task(None, {}, {}, tmp_path, "cpu", 0), report, "from rows.json alone")
    assert loss_on_page(tmp_path) is None
    assert pictures_of([source]) == {}
    drawn.mkdir(parents=True)
    gallery.mkdir()
    (drawn / "loss.svg").touch()
    assert loss_on_page(tmp_path) is None, "half a figure is none"
    (drawn / "loss-dark.svg").touch()
    figure = loss_on_page(tmp_path)
    assert figure is not None
    assert figure.files == {"light": drawn / "loss.svg", "dark": drawn / "loss-dark.svg"}
    for name in ("strip.png", "sheet-block3.png", "sheet-block4-plain.png", "sheet-block4.png"):
        (gallery / name).touch()
    found = pictures_of([source])
    assert [picture.path for picture in found.values()] == [gallery / "strip.png", gallery / "sheet-block4.png"]
    assert pictures_of([replace(source, report=replace(report, compare=["paper.table3"]))]) == {}


def test_where_no_study_is_found_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/study").mkdir(parents=True)
    Path("runs/study/rows.json").write_text("[]")
    assert main(["paper", "graying", "--out", "page"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("warning: ")
    assert "report/study.yaml" in said


def test_a_table_of_a_studys_page_is_read_from_it(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    lines = [
        "### Rounded",
        "",
        "| network | as it is | W8A8 |",
        "|---|---:|---:|",
        "| with skips, AdamW | 61.5 | not run |",
    ]
    page = "\n".join([*lines, "", "k-NN.", ""])
    (tmp_path / "report" / "report.md").write_text(page)
    study = FoundStudy(tmp_path, "quantisation", StudyNumbers(Report("a", ()), {}, {}), ())
    table = study.printed("Rounded")
    assert table is not None
    assert table["columns"] == ["network", "as it is", "W8A8"]
    assert table["rows"] == [["with skips, AdamW", "61.5", "not run"]]
    assert study.printed("Spectrum") is None
    assert study.printed("") is None


def test_every_item_of_a_paper_is_made_by_a_configuration_that_ships_or_says_why_not() -> None:
    for name, items in {
        "cutting_the_skip": CUTTING_THE_SKIP, "graying": GRAYING, "conditioned": CONDITIONED,
        "quantisation": QUANTISATION,
    }.items():  # fmt: skip
        record = RECORDS[name]
        assert record.items is items
        assert len({item.name for item in items}) == len(items)
        assert {item.table for item in items if item.table} == set(record.tables), "each table once"
        for item in items:
            assert item.made_by or item.why, item.name
            for config in item.made_by:
                assert not config.endswith(".yaml") or (CONFIGS / config).is_file(), config
            if item.table and item.table != "conditioned.table13":  # by an override of table 12's, as its item says
                study: Any = load_study(CONFIGS / item.made_by[-1])[0]
                assert item.table in study.report.compare, item.name


def test_every_configuration_of_a_paper_makes_an_item() -> None:
    made = {config for record in RECORDS.values() for item in record.items for config in item.made_by}
    others = {"paper/base.yaml", "paper/readings.yaml", "paper/readings_recipe.yaml", "paper/table2_anchor.yaml"}
    there = {path.relative_to(CONFIGS).as_posix() for path in (CONFIGS / "paper").glob("*.yaml")}
    assert there - others == {config for config in made if config.endswith(".yaml")}
