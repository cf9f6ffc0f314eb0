"""The floors of scenes, and what a network reaches on them: a line a kind of scenes and measure, at a tiny size."""

from __future__ import annotations

import pytest
import torch

from dinoskip.models import load_backbone
from studies.task_floors import table


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def cells(lines: list[str]) -> list[list[str]]:
    """The table's cells, without its rule."""
    return [[cell.strip() for cell in line.strip("| \n").split("|")] for line in lines if "---" not in line]


def test_a_line_each_and_the_block_of_a_network() -> None:
    backbone = load_backbone("timm:vit_tiny_patch16_224,pretrained=false,depth=2,patch_size=8")
    head, *rows = (row for row in cells(table(12, [64], 1, 1, backbone)) if row[0])
    assert head == ["scenes", "trivial rule", "colours", "random patch", "network"]
    assert [row[0] for row in rows] == [
        f"{objects}, 64 px, {measure}" for objects in ("cutouts", "shapes") for measure in ("mIoU", "CorLoc")
    ]
    for row in rows:
        assert all(0 <= float(value) <= 100 for value in row[1:4])
        value, _, block = row[4].partition(" ") if row[0].endswith("mIoU") else ("0", "", "(block 1)")
        assert 0 <= float(value) <= 100
        assert block in {"(block 1)", "(block 2)"}


@pytest.mark.slow
def test_more_objects_hide_more_of_the_centre() -> None:
    def centre_box(most: int) -> float:
        rows = cells(table(60, [64], most, 1, None))
        return float(next(row[1] for row in rows if row[0] == "shapes, 64 px, CorLoc"))

    assert centre_box(1) != centre_box(3)
