"""All dense tasks on networks whose levels have grids of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.stages.test_levels import FAST, tasks_and_gallery_on_a_cnn_and_a_swin

DATA = """
  videos: {kind: scenes_video, videos: 2, frames: 4, size: 64}
  pairs: {kind: scenes_pairs, classes: 2, objects: 1, views: 3, size: 64}
  rooms: {kind: rooms, images: 20, size: 64}
"""
PAIRS = {"correspondence": "{datasets: [pairs], size: 64}"}
OTHERS = {
    "cluster": "{datasets: [scenes], size: 64}",
    "saliency": "{datasets: [scenes], split: val}",
    "objects": "{datasets: [scenes], split: val, size: 64}",
    "linear": "{datasets: [scenes], size: 64, epochs: 2, batch_size: 20, learning_rates: [0.1]}",
    "depth": "{datasets: [rooms], iterations: 10, batch_size: 4, crop: [56, 56], bins: 16, upsample: 1,"
    " learning_rates: [1e-2]}",
    "normals": "{datasets: [rooms], epochs: 1, upsample: 1, learning_rates: [5e-3]}",
    "video": "{datasets: [videos], short_side: 64}",
    "detection": "{datasets: [scenes], short_side: 64, long_side: 64, epochs: 0.2, batch_size: 2, channels: 8,"
    " trained: each}",
}


def test_pairs(tmp_path: Path) -> None:
    tasks_and_gallery_on_a_cnn_and_a_swin(tmp_path, PAIRS, DATA.lstrip("\n"))


@pytest.mark.slow
def test_all(tmp_path: Path) -> None:
    tasks_and_gallery_on_a_cnn_and_a_swin(tmp_path, FAST | PAIRS | OTHERS, DATA.lstrip("\n"))
