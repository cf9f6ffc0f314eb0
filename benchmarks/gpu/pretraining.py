"""Part ``loop``: the command itself on JPEGs, and what its journal says of speed and of waits for data."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.kit import ROOT, Kit
from benchmarks.gpu.photographs import jpegs
from dinoskip.io.files import read_json
from dinoskip.runtime.console import read_metrics

SMALL = (
    "model.name=vit_tiny_patch16", "model.img_size=32", "model.depth=2", "pretrain.out_dim=64",
    "pretrain.crops.global_size=32", "pretrain.crops.local_size=16", "pretrain.crops.num_local=2",
)  # fmt: skip


def run(kit: Kit) -> None:
    """Run one epoch by each data path, cut by workers first."""
    count, batch = (8, 4) if kit.tiny else (3840, 64)
    with kit.scratch() as root:
        photos = jpegs(root / "jpeg", count).root
        for path in ("crops",) if kit.tiny else ("crops", "decode"):
            if kit.has(30):
                with kit.attempt(path):
                    measure(kit, photos, root / f"run-{path}", batch, path)


def measure(kit: Kit, photos: Path, out: Path, batch: int, path: str) -> None:
    """One epoch; rows of its journal and of its environment."""
    settings = [
        f"pretrain.batch_size={batch}", "pretrain.epochs=1", "pretrain.warmup_epochs=0.1", f"pretrain.data_path={path}",
        "pretrain.freeze_last_layer=0", "pretrain.warmup_teacher_temp_epochs=0", "pretrain.log_every=5",
        *(SMALL if kit.tiny else ()),
    ]  # fmt: skip
    command = kit.command("-m", "dinoskip", "pretrain", "--data", str(photos), "--out", str(out), *settings)
    limit, began = (300.0 if kit.tiny else max(20.0, kit.left() - 3)), time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, cwd=ROOT, env=dict(os.environ), check=False
        )
    except subprocess.TimeoutExpired as over:
        text = (over.stderr or b"").decode(errors="replace")[-600:]
        kit.say(f"pretrain, {path}", failed="ended at its limit", rows=_journal(out)[-3:], text=text)
        return
    took = time.perf_counter() - began
    if done.returncode:
        kit.say(f"pretrain, {path}", failed=f"exit code {done.returncode}", text=done.stderr[-1500:])
        return
    rows = _journal(out)
    environment = read_json(out / "env.json")
    kept = {key: environment[key] for key in ("compiled_graphs", "uncompiled") if key in environment}
    kit.say(f"pretrain, {path}", s=took, rows=rows[-3:], **kept)


def _journal(out: Path) -> list[dict[str, Any]]:
    """Rows of a training's journal that have a loss; none where it was not begun."""
    return [row for row in read_metrics(out / "metrics.jsonl") if "loss" in row]
