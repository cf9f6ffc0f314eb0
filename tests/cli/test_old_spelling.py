"""The spellings of version 0.2 still work for one version, with one line that gives the new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.cli import _parser, main
from dinoskip.cli.old_spelling import as_now

NETWORK = "timm:vit_tiny_patch16_224,pretrained=false,depth=1"


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ("probe --backbone a --data d --out o", "eval probe a --data d --out o"),
        ("knn --data d --backbone=a --backbone b --out o x.y=1", "eval knn a b --data d --out o x.y=1"),
        ("gallery --backb a --data d --out o", "gallery a --data d --out o"),
        ("features export --backbone a --batch 4 --data d --out o", "features export a --batch 4 --data d --out o"),
        ("eval knn --backbone a --data d --out o", "eval knn a --data d --out o"),
        ("tokencut --help", "eval tokencut --help"),
    ],
)
def test_a_line_of_the_last_version_is_read_with_one_warning(
    old: str, now: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert as_now(old.split(), _parser().command_names) == now.split()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ")
    assert " ".join(word for word in now.split()[:2] if word != "a") in line


@pytest.mark.parametrize(
    "line",
    ["eval probe a --data d --out o", "look a --data d", "features convert s o", "gallery a", "-q", "--help", ""],
)
def test_todays_lines_stay_without_a_warning(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert as_now(line.split(), _parser().command_names) == line.split()
    assert capsys.readouterr().err == ""


def test_an_old_line_does_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--data", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    now = main(["features", "export", NETWORK, *out]), capsys.readouterr().err
    code, said = main(["features", "export", "--backbone", NETWORK, *out]), capsys.readouterr().err
    assert code == now[0] == 3
    assert said.splitlines()[1:] == now[1].splitlines()
