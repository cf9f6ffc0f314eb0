"""``dinoskip analyze --images``: tables, JSON and figures of several backbones on one folder."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from dinoskip.cli import main
from tests.helpers.tiny import make_images

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=32"
FIGURES = {"kappa", "signals", "softmax", "histograms", "sqnr", "cka"}


def test_analyze_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = make_images(tmp_path / "images"), tmp_path / "out"
    other = f"{VIT},seed=1"
    command = ["analyze", VIT, other, "--images", str(folder), "--count", "3", "--size", "32", "--out", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "kappa_attention" in printed
    assert "8 bit" in printed
    result = json.loads((out / "inside.json").read_text())
    assert set(result["inside"]) == set(result["sqnr"]) == {VIT, other}
    assert [(pair["left"], pair["right"]) for pair in result["cka"]] == [(VIT, VIT), (VIT, other), (other, other)]
    assert {path.stem for path in out.glob("*.pdf")} == FIGURES
    for name in FIGURES:
        ElementTree.parse(out / f"{name}.svg")
        ElementTree.parse(out / f"{name}-dark.svg")


@pytest.mark.slow
def test_fresh_networks_on_bundled_photographs(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["analyze", "--images", "bundled", "--count", "2", "--size", "32", "--model", "vit_tiny_patch16"]
    assert main([*command, "--depth", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["inside"]) == ["skip", "skipless default", "skipless initialised"]
    cosines = {name: found["rows"][1]["token_cosine"] for name, found in result["inside"].items()}
    assert cosines["skipless default"] > 0.99 > cosines["skipless initialised"]


def test_wrong_use_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", VIT, "--out", str(tmp_path)]) == 2
    assert "--images" in capsys.readouterr().err
    assert main(["analyze", VIT, "--images", str(tmp_path / "none")]) == 3
    assert main(["analyze", VIT, "--images", "bundled", "--count", "0"]) == 2
