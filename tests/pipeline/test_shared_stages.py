"""Two studies that share their stages: what one computes the other finds, and each keeps its own page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import read_json, write_manifest, write_text
from dinoskip.pipeline.report.results_folder import publish_results
from tests.helpers.labelled import make_classes
from tests.helpers.study import SUPERVISED


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies ``both``, of two variants, trained, and ``alone``, of the second of them; their stages are in ``all``."""
    root = tmp_path_factory.mktemp("shared")
    for split in ("train", "val"):
        make_classes(root / "data" / split, 6)
    text = SUPERVISED.replace("DATA", str(root / "data"))
    text = text.replace("name: labelled", f"output: {root / 'runs'}\nstages: all")
    (root / "both.yaml").write_text(f"name: both\n{text}", encoding="utf-8")
    (root / "alone.yaml").write_text(f"name: alone\n{text.replace('{skip: true}, ', '')}", encoding="utf-8")
    assert main(["run", str(root / "both.yaml"), "--device", "cpu", "--only", "supervise"]) == 0
    return root


def test_the_second_finds_what_the_first_computed_and_both_keep_their_rows(shared: Path) -> None:
    runs, command = shared / "runs", ["run", str(shared / "alone.yaml"), "--only", "supervise", "--device", "cpu"]
    before = (runs / "both" / "rows.csv").read_bytes()
    (trained,) = (runs / "all/stages/supervise/skipless-adamw").iterdir()
    assert main(command) == 0
    assert list((runs / "all/stages/supervise/skipless-adamw").iterdir()) == [trained]
    assert (runs / "both" / "rows.csv").read_bytes() == before
    assert {row["model"] for row in read_json(runs / "alone" / "rows.json")} == {"skipless-adamw"}
    assert {path.name for path in runs.iterdir()} == {"all", "both", "alone"}


def test_cleaning_keeps_what_the_other_study_uses(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc", str(shared / "alone.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unused"] == []


def _page(folder: Path, title: str, *variants: str) -> Path:
    study = {"name": "x", "report": {"title": title}, "variants": {"model": [{"label": one} for one in variants]}}
    write_text(folder / "study.yaml", json.dumps(study))
    write_text(folder / "index.html", title)
    write_manifest(folder)
    return folder


def test_a_page_does_not_take_anothers_place_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def shown(number: int, title: str, *variants: str) -> str:
        caplog.clear()
        publish_results(tmp_path / "x", [], {"report": _page(tmp_path / str(number), title, *variants)})
        return caplog.text

    assert shown(0, "Depth", "skip") == ""
    assert shown(1, "Depth", "skip", "skipless") == ""  # it has all that stood there
    assert "x/report: the page 'Depth' is replaced by 'Depth', of another title or without" in shown(2, "Depth", "skip")
    assert "the page 'Depth' is replaced by 'Epochs'" in shown(3, "Epochs", "skip")


def test_a_damaged_page_is_named(tmp_path: Path) -> None:
    damaged, whole = _page(tmp_path / "0", "Depth", "skip"), _page(tmp_path / "1", "Depth", "skip")
    publish_results(tmp_path / "x", [], {"report": whole})
    (damaged / "study.yaml").write_text("{: [")
    with pytest.raises(DataError, match=r"damaged output: .*study\.yaml"):
        publish_results(tmp_path / "x", [], {"report": damaged})
    (tmp_path / "x" / "report" / "study.yaml").write_text("{: [")
    with pytest.raises(ConfigError, match=r"report.study\.yaml: .*was changed"):
        publish_results(tmp_path / "x", [], {"report": whole})
