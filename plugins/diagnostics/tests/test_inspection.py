"""``dinoskip analyze --data``: tables, JSON and figures of several backbones on one folder."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.cli import main
from tests.helpers.labelled import make_classes
from tests.helpers.tiny import make_images
from visualize.figures.drawing import written_as

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=32"
FIGURES = {"kappa", "signals", "softmax", "histograms", "sqnr", "cka"}


def test_analyze_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = make_images(tmp_path / "images"), tmp_path / "out"
    other = f"{VIT},seed=1"
    command = ["analyze", VIT, other, "--data", str(folder), "--count", "3", "--size", "32", "--out", str(out)]
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


def test_scores_of_quantised_networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """k-NN tells the colours apart until four bits are too few; the probe's rows are there, too."""
    for split, each in (("train", 12), ("val", 8)):
        make_classes(tmp_path / "classes" / split, each, seed=each)
        make_masks(tmp_path / "masks", split, each)
    command = ["analyze", VIT, "--data", str(tmp_path / "classes" / "val"), "--count", "2", "--size", "32"]
    command += ["--knn", str(tmp_path / "classes")]
    with written_as(()):
        assert main([*command, "--out", str(tmp_path / "out")]) == 0
    assert "scores in percent" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "inside.json").read_text())["quantised"]
    labels = ["as it is", "W8A12", "W8A8", "W8A6", "W6A6", "W4A8", "W4A4"]
    found = {(row["measure"], row["quantised"]): row["percent"] for row in rows}
    assert set(found) == {("knn10_top1", label) for label in labels}
    assert found["knn10_top1", "as it is"] > 60
    assert abs(found["knn10_top1", "W8A8"] - found["knn10_top1", "as it is"]) < 10
    assert all(0 <= value <= 100 for value in found.values())
    asked = ["analyze", VIT, "--data", "bundled", "--count", "1", "--size", "32", "--knn", str(tmp_path / "classes")]
    assert main([*asked, "--probe", f"masks:{tmp_path / 'masks'}", "--precisions", "W16A8,A6", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["quantised"]
    found = {(row["measure"], row["quantised"]): row["percent"] for row in rows}
    assert list(found) == [
        (measure, label) for label in ("as it is", "W16A8", "W32A6") for measure in ("knn10_top1", "probe_miou")
    ]
    assert all(0 <= value <= 100 for value in found.values())
    assert main([*asked, "--precisions", "W8A1"]) == 2
    assert "'W8A1' is not a precision" in capsys.readouterr().err
    assert main(["analyze", VIT, "--data", "bundled", "--probe", str(tmp_path)]) == 2
    assert "is not KIND:DIR" in capsys.readouterr().err


def make_masks(root: Path, split: str, count: int) -> None:
    """Two classes: bright squares on dark ground."""
    rng = np.random.default_rng(count)
    for part in ("images", "masks"):
        (root / part / split).mkdir(parents=True)
    (root / "classes.txt").write_text("ground\nsquare\n")
    for index in range(count):
        mask = np.zeros((32, 32), dtype=np.uint8)
        top, left = rng.integers(0, 16, 2)
        mask[top : top + 16, left : left + 16] = 1
        pixels = np.clip(60 + 120 * mask[..., None] + rng.normal(0, 20, (32, 32, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(root / "images" / split / f"{index}.png")
        Image.fromarray(mask).save(root / "masks" / split / f"{index}.png")


@pytest.mark.slow
def test_fresh_networks_on_bundled_photographs(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["analyze", "--data", "bundled", "--count", "2", "--size", "32", "--model", "vit_tiny_patch16"]
    assert main([*command, "--depth", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["inside"]) == ["skip", "skipless default", "skipless initialised"]
    cosines = {name: found["rows"][1]["token_cosine"] for name, found in result["inside"].items()}
    assert cosines["skipless default"] > 0.99 > cosines["skipless initialised"]


def test_wrong_use_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", VIT, "--out", str(tmp_path)]) == 2
    assert "--data" in capsys.readouterr().err
    assert main(["analyze", VIT, "--data", str(tmp_path / "none")]) == 3
    assert main(["analyze", VIT, "--data", "bundled", "--count", "0"]) == 2
