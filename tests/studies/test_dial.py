"""The page from skips to none: written from its committed rows, and rows read out of a study's stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.pages import read_csv, result_row
from dinoskip.io.files import read_json
from dinoskip.results.rows import EvalResult, rows_csv, write_rows
from studies.dial import (
    EPOCH,
    FOLDER,
    NETWORKS,
    PAGE,
    complete,
    name_of,
    page,
    stage_rows,
    variants_of,
)

ROWS = [result_row(entry) for entry in read_csv(FOLDER / "rows.csv")]


def test_the_page_is_what_its_rows_say() -> None:
    assert page(ROWS, read_json(FOLDER / "about.json")) == PAGE.read_text()


def test_rows_survive_the_file(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(rows_csv(ROWS))
    assert [result_row(entry) for entry in read_csv(tmp_path / "rows.csv")] == ROWS
    assert len(ROWS) == len((FOLDER / "rows.csv").read_text().splitlines()) - 1


def test_only_seeds_that_all_finished_networks_have_are_compared() -> None:
    def rows(name: str, seed: int) -> list[EvalResult]:
        some = [row for row in ROWS if row.model == "skip-soap-s0"]
        return [replace(row, model=f"{name}-soap-s{seed}") for row in some]

    given = [*rows("skip", 0), *rows("skip", 1), *rows("mixing", 1), *rows("mixing_annealed", 1)[:-40]]
    assert complete(given)["skip"] == {0, 1}
    assert {(one.name, one.role) for one in variants_of(given)} == {("skip-soap-s1", "skip"), ("mixing-soap-s1", "")}
    given += [*rows("mixing", 0)]
    assert {one.family for one in variants_of(given)} == {"skip", "mixing"}


def test_networks_are_those_of_the_configurations() -> None:
    configs = Path(__file__).parents[2] / "configs" / "objectives"
    text = "".join((configs / f"{name}.yaml").read_text() for name in ("dial", "dial_skip", "dial_distilled"))
    assert all(f"label: {name}}}" in text for name in NETWORKS)
    assert f"epochs: [0, {EPOCH}]" in text


def test_rows_are_read_from_finished_stages(tmp_path: Path) -> None:
    row = next(row for row in ROWS if row.model == "skip-soap-s0" and row.task == "probe")
    folder = tmp_path / "dial" / "stages" / "probe" / "mixing-soap-s2" / "ep3" / "scenes" / "key"
    folder.mkdir(parents=True)
    write_rows(folder / "rows.json", [replace(row, model="weights"), replace(row, metric="mAcc", model="weights")])
    (found,) = stage_rows([tmp_path])
    assert (found.model, found.epoch, found.value) == ("mixing-soap-s2", 3, row.value)
    assert name_of(found.model) == ("mixing", 2)
