"""Folders of generated images of three classes that a small classifier can learn, and a run over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dinoskip.training.supervised_config import SupervisedJob

CLASSES = ("blue", "green", "red")


def make_classes(root: Path, each: int, seed: int = 0, classes: tuple[str, ...] = CLASSES) -> Path:
    """Write ``each`` PNG images of 40×48 pixels a class: noise around a colour of the class's own.

    Folders of other names hold other images, so that those of ``train`` and ``val`` are not the same.
    """
    rng = np.random.default_rng([seed, *root.name.encode()])
    for name in classes:
        (root / name).mkdir(parents=True)
        colour = np.full(3, 60.0)
        colour[2 - CLASSES.index(name)] = 190.0
        for index in range(each):
            pixels = np.clip(rng.normal(colour, 40, (40, 48, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index:02d}.png")
    return root


def supervised_job(seed: int = 1, model: dict[str, Any] | None = None, **settings: Any) -> SupervisedJob:
    """Two epochs of four steps of twelve images (of 48), a row a step, 32 pixels, two blocks."""
    own = {
        "epochs": 2, "batch_size": 12, "warmup_epochs": 1, "log_every": 1, "online_every": 1,
        "augment": {"size": 32, **settings.pop("augment", {})}, **settings,
    }  # fmt: skip
    shape = {"name": "vit_tiny_patch16", "depth": 2, "img_size": 32, **(model or {})}
    return SupervisedJob.model_validate({"seed": seed, "model": shape, "optimizer": {"lr": 2e-2}, "supervise": own})
