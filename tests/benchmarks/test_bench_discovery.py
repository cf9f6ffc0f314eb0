"""CorLoc of several ways to find objects: the small copies of photographs, paired differences and the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.bench_discovery import Found, lines_of, paired, small_copy
from dinoskip.cli import main
from dinoskip.data.sets.coco_json import coco_json
from dinoskip.data.sets.voc import voc_detection


def test_boxes_become_small_with_their_images(tmp_path: Path) -> None:
    settings = ["images=6", "size=64", "val_fraction=0.5", "-q"]
    assert main(["data", "scenes", str(tmp_path / "voc"), *settings]) == 0
    whole = voc_detection(tmp_path / "voc", "trainval", 2012)
    assert small_copy(tmp_path / "voc", 2012, 32, tmp_path / "small") == len(whole)
    small = coco_json(tmp_path / "small" / "boxes.json", tmp_path / "small", name="boxes")
    for number in range(len(whole)):
        np.testing.assert_allclose(
            small.boxes(number), np.asarray(whole.boxes(number)) / 2, atol=0.51
        )  # read as whole pixels


def test_a_paired_difference() -> None:
    hits, reference = np.array([1, 1, 1, 0] * 25, bool), np.array([1, 0, 1, 0] * 25, bool)
    mean, low, high = paired(hits, reference)
    assert mean == pytest.approx(25)
    assert mean - low == pytest.approx(high - mean)
    assert 16 < low < 17, "25 ± 1.98 · 43.5 / √100"


def test_lines_of_a_network() -> None:
    def found(method: str, block: str, right: int) -> Found:
        return Found(method, block, np.arange(10) < right, 0.0, 100.0)

    ways = [found("TokenCut", "1", 5), found("TokenCut", "2", 3), found("Object-DINO", "1+2", 6)]
    lines = lines_of("net", ways)
    assert [line[:3] for line in lines] == [
        ["net", "TokenCut", "2, the last"],
        ["net", "TokenCut", "1, the best shown"],
        ["net", "Object-DINO", "all"],
    ]
    assert [line[3].split()[0] for line in lines] == ["30.0", "50.0", "60.0"]
    assert [line[4].split()[0] if line[4] else "" for line in lines] == ["", "+20.0", "+30.0"]
