"""Made-up slots: rows and records of every arm on every measure, at levels that are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dinoskip.results.records import RecordedRow
from dinoskip.results.rows import EvalResult
from studies.slots_arms import ARMS
from studies.slots_rows import Slot

IMAGES = 60
EPOCHS = 90
TOKENCUT = "tokencut tau=0.2 eps=1e-05"


def network(arm: str, slot: int) -> str:
    return f"{ARMS[arm]}-adamw0.0005-s{slot}"


def hits(level: float, rng: np.random.Generator) -> np.ndarray:
    """Hits of images, as many as ``level`` (0..1) says."""
    values = np.zeros(IMAGES, np.uint8)
    values[rng.permutation(IMAGES)[: round(level * IMAGES)]] = 1
    return values


def areas(level: float, rng: np.random.Generator) -> np.ndarray:
    """Areas of three classes whose mIoU is about ``level``."""
    union = rng.integers(80, 120, (IMAGES, 3))
    inside = np.clip(np.rint(union * (level + 0.02 * rng.standard_normal((IMAGES, 3)))), 0, union).astype(np.int64)
    return np.stack([inside, union], -1)


def entries(model: str, epoch: int, level: Mapping[str, float], rng: np.random.Generator) -> list[RecordedRow]:
    """Rows of a network; block b of 12 scores what ``level`` says less a hundredth for each block below 12."""
    found = []
    for block in range(1, 13):
        less = (12 - block) / 100
        base = EvalResult("CorLoc", 0.0, "tokencut", str(block), "boxed", "trainval", IMAGES, model=model, epoch=epoch)
        base = replace(base, facet="key", protocol=TOKENCUT, complete=0.1, degenerate=0.2)
        values = hits(level["P1"] - less, rng)
        found.append(RecordedRow(replace(base, value=100 * float(values.mean())), values))
        moved = f"{TOKENCUT}, positions mean"
        found.append(RecordedRow(replace(base, value=90.0, protocol=moved), hits(0.9, rng)))
        found.append(RecordedRow(replace(base, value=40.0, facet="out"), hits(0.4, rng)))
        for dataset in ("voc_mini", "scenes"):
            values = areas(level["P2"] - less, rng)
            score = 100 * float((values[..., 0].sum(0) / values[..., 1].sum(0)).mean())
            row = replace(
                base, metric="mIoU", task="probe", dataset=dataset, facet="out", norm="final", protocol="paper"
            )
            row = replace(row, value=score, heldout=score, complete=None, degenerate=None)
            found.append(RecordedRow(row, values))
            found.append(RecordedRow(replace(row, value=99.0, heldout=None, note="best on validation")))
        row = replace(base, metric="accuracy", task="knn", dataset="imagenette", facet="", value=50.0, complete=None)
        found.append(RecordedRow(row, hits(0.5, rng)))
    return found


def slot(
    number: int, levels: Mapping[str, Mapping[str, float]], *, floor: float = 0.05, start: float = 0.02, **card: Any
) -> Slot:
    """A slot whose arms score ``levels`` (by arm and primary measure, 0..1), their starts ``start``."""
    rng = np.random.default_rng(number)
    recorded: list[RecordedRow] = []
    for arm in ARMS:
        luck = 0.01 * rng.standard_normal(2)
        own = {name: level + add for (name, level), add in zip(levels[arm].items(), luck, strict=True)}
        recorded += entries(network(arm, number), EPOCHS, own, rng)
        recorded += entries(network(arm, number), 0, {"P1": start + 0.12, "P2": start + 0.12}, rng)
    about = {("CorLoc", "tokencut", "boxed"), ("mIoU", "probe", "voc_mini")}
    for metric, task, dataset in sorted(about):
        row = EvalResult(metric, 0.0, task, "", dataset, "val", IMAGES)
        recorded.append(RecordedRow(row.baseline("random patch", 100 * floor)))
    whole: dict[str, Any] = {
        "slot": number, "epochs": EPOCHS, "networks": {arm: network(arm, number) for arm in ARMS}, "unresolved": [],
        "pieces": {"evaluate": {"state": "done", "seconds": 80.0}}, "machine": {"GPUs": "H100"}, "day": "2026-12-01",
    }  # fmt: skip
    return Slot(number, recorded, {**whole, **card})
