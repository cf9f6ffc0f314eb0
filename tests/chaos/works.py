"""Work that is disturbed: a study of every stage that trains or measures, commands that stand alone, and two ranks.

Words of a command line name places in braces: ``{config}``, the study's YAML; ``{data}``, labelled photographs outside
the disturbed disk; ``{disk}``; ``{out}``, where the command writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np
from PIL import Image

from tests.helpers.study import TINY

SECTIONS = """
sweep: {lr: [1e-3, 2e-3], extend: 0}
online: {knn: {dataset: scenes, k: [3]}}
"""
_PLUGINS_DATA = """
  rooms: {kind: rooms, images: 4, size: 32, val_fraction: 0.5}
  videos: {kind: scenes_video, videos: 2, frames: 4, size: 48}
  pairs: {kind: scenes_pairs, classes: 2, objects: 1, views: 2, size: 64}"""
_PLUGINS_TASKS = """
  depth: {datasets: [rooms], iterations: 2, batch_size: 2, crop: [32, 32], bins: 4, upsample: 1}
  normals: {datasets: [rooms], epochs: 1, batch_size: 2, upsample: 1}
  video: {datasets: [videos], short_side: 48, memory: 2}
  correspondence: {datasets: [pairs], size: 48, alphas: [0.1]}"""


def _config() -> str:
    """The smallest study with photographs, a sweep and online k-NN; and with plug-ins' parts where all are there."""
    there = all(find_spec(f"dinoskip_{name}") for name in ("dense", "video"))
    data, tasks = (_PLUGINS_DATA, _PLUGINS_TASKS) if there else ("", "")
    text = TINY.replace("data:", "data:\n  photos: {kind: folder, root: DATA}" + data, 1)
    text = text.replace("knn: {datasets: [scenes]", "knn: {datasets: [scenes, photos]")
    return text.replace("evaluate:", "evaluate:" + tasks, 1) + SECTIONS


CONFIG = _config()
_NETWORK = ("timm:vit_tiny_patch16_224,pretrained=false,img_size=64", "--out", "{out}")
_TRAINING = (
    "pretrain", "--data", "{data}/train", "--out", "{out}", "model.name=vit_tiny_patch16", "model.depth=2",
    "model.img_size=32", "pretrain.epochs=4", "pretrain.batch_size=4", "pretrain.warmup_epochs=0",
    "pretrain.checkpoint_every_steps=1", "pretrain.out_dim=32", "pretrain.hidden_dim=32", "pretrain.bottleneck_dim=16",
    "pretrain.warmup_teacher_temp_epochs=0", "pretrain.crops={global_size: 32, local_size: 16, num_local: 1}",
    "pretrain.rank_timeout=20", "pretrain.rank_patience=20",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """A command line, by how many processes at once it is run, and the part of the time that it gets."""

    words: tuple[str, ...]
    ranks: int = 1
    share: float = 0.1


WORKS: Mapping[str, Work] = MappingProxyType(
    {
        "study": Work(
            ("run", "{config}", "output={disk}", "pretrain.checkpoint_every_steps=1", "pretrain.epochs=3"), share=0.6
        ),
        "knn": Work(("eval", "knn", "--data", "{data}", *_NETWORK, "evaluate.knn.k=[1]", "evaluate.knn.size=64")),
        "export": Work(("features", "export", "--data", "{data}/train", *_NETWORK, "--size", "64", "--batch", "1")),
        "pretrain": Work(_TRAINING),
        "ranks": Work(_TRAINING, ranks=2),
    }
)


def write_photographs(folder: Path) -> None:
    """Two classes of noise, 16 images for training and 8 for validation."""
    rng = np.random.default_rng(0)
    for number in range(24):
        path = folder / ("train" if number < 16 else "val") / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(path)
