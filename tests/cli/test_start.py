"""``dinoskip init-study`` writes studies that are valid; ``dinoskip demo`` runs one that comes with the package."""

from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.cli.start import CONFIGS, PURPOSES
from dinoskip.pipeline.study import load_study


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_study_to_start_from(
    purpose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init-study", "mine", purpose]) == 0
    assert capsys.readouterr().out.startswith("mine.yaml: ")
    text = (tmp_path / "mine.yaml").read_text()
    assert "NAME" not in text.replace(":NAME", "")
    study, variants = load_study("mine.yaml")
    assert (study.name, len(variants)) == ("mine", 2)
    assert main(["init-study", "mine", purpose]) == 2  # nothing is written over
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "mine.yaml").read_text() == text


def test_names_that_no_folder_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init-study", "../x y"]) == 2
    assert not list(tmp_path.parent.glob("x y*"))


def test_the_demo_is_a_study_of_the_package(tmp_path: Path) -> None:
    assert (CONFIGS / "demo.yaml").is_file()
    study, _ = load_study(CONFIGS / "demo.yaml")
    assert study.name == "demo"
