"""A pretraining run that takes a second: two blocks, 48 small generated images, twelve steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dinoskip.files import load_tensors, sha256_bytes
from dinoskip.training import PretrainJob

STEPS = 12
SIDE_FILES = {"teacher.safetensors", "student.safetensors", "head.safetensors", "optimizer.safetensors"}


def make_images(folder: Path, count: int = 48) -> Path:
    """Write ``count`` PNG images of blocks of random colours."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(count):
        pixels = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
        Image.fromarray(pixels).save(folder / f"image {i:02d}.png")
    return folder


def tiny_job(seed: int = 1, skip: bool = True, **pretrain: Any) -> PretrainJob:
    """Two epochs of six steps of eight images, a row a step, a checkpoint every other step."""
    settings: dict[str, Any] = {
        "epochs": 2, "batch_size": 8, "warmup_epochs": 1, "out_dim": 32, "hidden_dim": 16, "bottleneck_dim": 8,
        "log_every": 1, "checkpoint_every_steps": 4,
        "crops": {"global_size": 32, "local_size": 16, "num_local": 2},
        **pretrain,
    }  # fmt: skip
    model = {"name": "vit_tiny_patch16", "depth": 2, "img_size": 32, "skip": skip, "drop_path": 0.3}
    return PretrainJob.model_validate({"seed": seed, "model": model, "optimizer": {"lr": 0.02}, "pretrain": settings})


def tensor_hashes(checkpoint: Path) -> dict[str, str]:
    """sha256 of every tensor of a checkpoint."""
    return {
        f"{path.name}:{name}": sha256_bytes(tensor.numpy().tobytes())
        for path in sorted(checkpoint.glob("*.safetensors"))
        for name, tensor in load_tensors(path).items()
    }
