"""Stores and windows of a network whose levels have grids of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dinoskip.features import ExportSettings, FeatureWindows, Transform, export
from dinoskip.models import Backbone


class _Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse, self.last = nn.Conv2d(3, 4, 4, 4), nn.Conv2d(4, 6, 2, 2), nn.Conv2d(6, 6, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.coarse(self.fine(images)))


@pytest.mark.parametrize("mode", ["square", "native"])
def test_a_store_has_the_grid_of_every_level(
    tmp_path: Path, images: Callable[[list[tuple[int, int]]], Any], mode: str
) -> None:
    photographs = images([(40, 56), (33, 47), (40, 56)])
    torch.manual_seed(0)
    backbone = Backbone.from_model(_Own(), layers=["fine", "coarse", "last"], image_size=32)
    transform = Transform(mode=mode, size=48)  # type: ignore[arg-type]
    store = export(backbone, photographs, tmp_path / "store", "all", norm="none", dtype="float32", transform=transform)
    parts = store.of_equal_grids()
    assert [(part.blocks, part.patch_size, part.dim) for part in parts] == [((1,), 4, 4), ((2, 3), 8, 6)]
    settings = ExportSettings("all", norm="none", dtype="float32", transform=transform)
    windows = FeatureWindows(backbone, photographs, settings, limit=10**9).of_equal_grids()
    for part, window in zip(parts, windows, strict=True):
        assert (part.blocks, part.patch_size) == (window.blocks, window.patch_size)
        seen: dict[str, np.ndarray] = {}
        for some in window.parts():
            for i, name in enumerate(some.ids):
                seen[name] = some.tokens(part.blocks[-1], i)
        for i, name in enumerate(part.ids):
            h, w = part.grid(i)
            sides = transform.padded_size(*part.image_size(i), backbone.size_multiple)
            assert (h * part.patch_size, w * part.patch_size) == sides
            assert np.array_equal(part.tokens(part.blocks[-1], i), seen[name])
            assert part.tokens(part.blocks[0], i).shape == (h * w, part.dim)
    described = json.loads((tmp_path / "store" / "features.json").read_text())
    assert described["levels"] == {"1": [4, 4], "2": [8, 6], "3": [8, 6]}
    assert store.verify() == []
