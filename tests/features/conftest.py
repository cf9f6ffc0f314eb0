"""A tiny backbone and tiny images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dinoskip.models import Backbone, create_model


@dataclass
class Images:
    ids: tuple[str, ...]
    root: Path

    def path(self, i: int) -> Path:
        return self.root / f"{self.ids[i]}.png"


def tiny_backbone() -> Backbone:
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch8", depth=2, img_size=32)
    with torch.no_grad():  # weights large enough for the blocks to matter
        for parameter in model.parameters():
            parameter.normal_(0, 0.05)
    return Backbone.from_model(model)


def make_images(root: Path, sizes: list[tuple[int, int]]) -> Images:
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    images = Images(tuple(f"image{i:02d}" for i in range(len(sizes))), root)
    for i, (height, width) in enumerate(sizes):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(images.path(i))
    return images


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    return tiny_backbone()


@pytest.fixture
def images(tmp_path: Path) -> Callable[[list[tuple[int, int]]], Images]:
    return lambda sizes: make_images(tmp_path / "images", sizes)
