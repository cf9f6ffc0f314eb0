"""The command analyze, of fresh networks and given ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dinoskip.cli import main
from tests.helpers.folders import contents
from tests.helpers.tiny import make_images

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2"


def test_analyze_along_the_dial(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--model", "vit_mini_patch16", "--depth", "3", "--size", "64", "--count", "2"]
    assert main(["analyze", "--dial", "1,0.5,0", *small]) == 0
    shown = capsys.readouterr().out
    starts, weights = ("default", "paper", "calibrated, mixing"), ("1", "0.5", "1 to 0.5", "0")
    assert all(f"{start}, {weight}" in shown for start in starts for weight in weights)
    assert main(["analyze", "--dial", "0.5", "--json", *small]) == 0
    rows = json.loads(capsys.readouterr().out)["dial"]
    assert [row["product"] for row in rows] == [0.5**6, pytest.approx(0.9 * 0.8 * 0.7 * 0.6 * 0.5)] * 3
    for wrong, message in (("a", "is no list of numbers"), ("1.5", "less than or equal to 1")):
        assert main(["analyze", "--dial", wrong, *small]) == 2
        assert message in capsys.readouterr().err
    assert main(["analyze", "--dial", "1", VIT]) == 2


@pytest.mark.slow  # every instrument and figure
def test_analyze_through_the_depth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--data", "bundled", "--count", "1", "--size", "32", "--model", "vit_mini_patch16", "--depth", "2"]
    assert main(["analyze", *small, "--jacobian", "--out", str(tmp_path / "out"), "-q"]) == 0
    found = json.loads((tmp_path / "out" / "inside.json").read_text())["jacobian"]
    assert set(found) == {"skip", "skipless default", "skipless initialised"}
    for network in found.values():
        assert [row["block"] for row in network["rows"]] == [1, 2]
        assert all(row["kappa"] >= 1 and row["kappa_seen"] is None for row in network["rows"]), "640 outputs: bounds"
    assert (tmp_path / "out" / "jacobian.svg").stat().st_size > 1000
    assert "kappa_seen" in capsys.readouterr().out
    assert main(["analyze", "--jacobian"]) == 2
    assert "go with --data" in capsys.readouterr().err


def test_analyze_fresh_and_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--model", "vit_tiny_patch16", "--depth", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in result["signal"]] == ["skip", "skipless default", "skipless initialised"]
    assert all(abs(row["kappa_vo"] - 1) < 1e-4 for rows in result["fresh"].values() for row in rows)
    assert main(["analyze", VIT]) == 0
    assert "kappa_vo" in capsys.readouterr().out
    assert main(["analyze", "--model", "vit_tni_patch16"]) == 2
    assert "did you mean vit_tiny_patch16?" in capsys.readouterr().err


def test_a_network_without_attention_is_refused_before_it_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "timm:resnet18,pretrained=false", "--data", "bundled"]) == 2
    assert "timm:resnet18,pretrained=false has no attention that is known" in capsys.readouterr().err


def test_it_does_not_write_into_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = make_images(tmp_path / "photos", 2)
    before = contents(photos)
    assert main(["analyze", VIT, "--data", str(photos), "--out", str(photos / "out")]) == 2
    assert str(photos) in capsys.readouterr().err
    assert contents(photos) == before
