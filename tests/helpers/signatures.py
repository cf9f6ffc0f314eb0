"""Verdicts on the labels of a set that a test has written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dinoskip.data.sets import open_labels
from dinoskip.data.sets.labels import LABELS
from dinoskip.data.sets.meaning import has_rules, label_verdicts
from dinoskip.data.verdicts import DataVerdict
from dinoskip.pipeline.stages.inputs import OneDataset
from dinoskip.settings.config import RawConfig, validate

SIZE = (40, 48)


def dataset(**settings: Any) -> Any:
    return validate(OneDataset, RawConfig({"dataset": settings})).dataset


def judged(label: str, splits: Sequence[str], **settings: Any) -> list[DataVerdict]:
    config = dataset(**settings)
    return label_verdicts("set", config, label, [open_labels(LABELS[label], config, split) for split in splits])


def stopping(found: Sequence[DataVerdict]) -> list[tuple[str, str]]:
    """State and check of what stops a command."""
    return [(one.state, one.check) for one in found if one.state != "said"]


def save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def blocks(values: Sequence[int], seed: int) -> np.ndarray:
    """A label map uint8 of ``SIZE``: squares of 8 pixels, each of one of these values, all of which occur."""
    rows, columns = SIZE[0] // 8, SIZE[1] // 8
    drawn = np.resize(np.random.default_rng(seed).permutation(values), rows * columns).reshape(rows, columns)
    return np.kron(drawn, np.ones((8, 8))).astype(np.uint8)


def composed_and_judged(out: Path, **settings: Any) -> list[tuple[str, str]]:
    """Return what would stop a command of an embedded set, made below a folder, with each of its labels and splits."""
    config = dataset(**settings)
    root = config.generate(out)
    found, counted = list[tuple[str, str]](), 0
    for label, split, _ in config.checked_splits(root):
        if has_rules(label):
            counted += 1
            opened = open_labels(LABELS[label], config, split, root)
            found += stopping(label_verdicts("set", config, label, [opened]))
    assert counted
    return found
