"""A pretraining run that takes a second: two blocks, 48 small generated images, twelve steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dinoskip.io.files import load_tensors, read_json, sha256_bytes, verify_manifest
from dinoskip.runtime.console import read_metrics
from dinoskip.settings.specs import list_checkpoints
from dinoskip.training import PretrainJob
from dinoskip.training.objectives import OBJECTIVES

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


_SMALL: dict[str, dict[str, Any]] = {
    "ibot": {"out_dim": 32, "hidden_dim": 16, "bottleneck_dim": 8, "freeze_last_layer": 0,
             "crops": {"global_size": 32, "local_size": 16, "num_local": 1}},
    "mae": {"crop_size": 32, "decoder_dim": 32, "decoder_depth": 1},
    "patch_contrast": {"crop_size": 32, "hidden_dim": 16, "out_dim": 8, "momentum_teacher": 0.9, "queue": 20},
    "distill": {"crop_size": 32, "sample": 4, "teachers": [
        {"backbone": "timm:vit_tiny_patch16_224,pretrained=false,img_size=32,depth=2", "cls": "queue_kl", "queue": 6},
        {"backbone": "timm:vit_tiny_patch16_224,pretrained=false,seed=1,img_size=32,depth=2",
         "standardise": "phi_s", "patches": "mse", "cls": "smooth_l1"}]},
}  # fmt: skip
SMALL_OBJECTIVES = {name: settings for name, settings in _SMALL.items() if name in OBJECTIVES}
"""Settings of the other installed objectives with which a step takes milliseconds; their crops are of 32 pixels."""
REQUIRED: dict[str, dict[str, Any]] = {"distill": {"teachers": _SMALL["distill"]["teachers"]}}
"""Settings without which an objective is not."""


def objective_job(objective: str, optimizer: str = "adamw", **pretrain: Any) -> PretrainJob:
    """Two epochs of four steps of four images by an objective, a row and a checkpoint a step."""
    settings = {"epochs": 2, "batch_size": 4, "warmup_epochs": 1, "log_every": 1, "checkpoint_every_steps": 1}
    model = {"name": "vit_mini_patch8", "depth": 2, "img_size": 32, "drop_path": 0.3}
    own = {"objective": objective, **SMALL_OBJECTIVES[objective], **settings, **pretrain}
    tree = {"seed": 1, "model": model, "optimizer": {"name": optimizer, "lr": 0.02}, "pretrain": own}
    return PretrainJob.model_validate(tree)


def tensor_hashes(checkpoint: Path) -> dict[str, str]:
    """sha256 of every tensor of a checkpoint."""
    return {
        f"{path.name}:{name}": sha256_bytes(tensor.numpy().tobytes())
        for path in sorted(checkpoint.glob("*.safetensors"))
        for name, tensor in load_tensors(path).items()
    }


TIMING = {"images_per_s", "data_wait"}


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl without what depends on the machine's speed."""
    return [{k: v for k, v in row.items() if k not in TIMING} for row in read_metrics(run_dir / "metrics.jsonl")]


def count_rows(run_dir: Path) -> int:
    """Rows written so far, as lines."""
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def assert_same_run(straight: Path, run_dir: Path, final: str = f"step-{STEPS:08d}") -> None:
    """Same tensors and rows, all checkpoints intact, nothing left over but checkpoints that were resumed from."""
    assert tensor_hashes(run_dir / "checkpoints" / final) == tensor_hashes(straight / "checkpoints" / final)
    assert rows_of(run_dir) == rows_of(straight)
    files = [
        {p.relative_to(top).as_posix() for p in top.rglob("*") if "checkpoints/step-" not in p.as_posix()}
        for top in (run_dir, straight)
    ]
    assert files[0] == files[1]
    assert all(verify_manifest(path) == [] for path in list_checkpoints(run_dir).values())
    assert len(list_checkpoints(run_dir)) <= 3, "the last two, and the one resumed from"
    assert read_json(run_dir / "status.json")["state"] == "done"
