"""A study to start from, fitted to a folder: its data set, the measures that its labels allow, batches of its size."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from dinoskip.data import sets as datasets
from dinoskip.data.sets.labels import CLASSES, DETECTION, LABELS, SEGMENTATION
from dinoskip.errors import DataError
from dinoskip.pipeline.look.study import IMAGES, FolderLabels, dataset_of, labels_of, name_of
from eval.knn.config import KnnConfig

LEAST = 2  # photographs: a contrast needs another one
NEIGHBOURS = max(KnnConfig().k)  # by default, among more images than that
NEEDS = {label.short: label for label in (SEGMENTATION, DETECTION, CLASSES)}
"""Kinds of labels by the words with which templates say that a line needs them."""
PLAIN = frozenset({"kind", "year"})
"""Settings whose values need no quotes in YAML."""
_SAMPLED = 50  # images whose sizes are read


def fitted(template: str, folder: Path) -> tuple[str, str]:
    """A template's text for the data in ``folder``, and what was seen there.

    A template's section ``data`` is replaced. Of ``evaluate``, lines that say "needs masks", boxes or classes stay
    where the folder has such labels, also if they are comments. ``dataset`` is set, and ``batch_size`` if there are
    fewer images.
    Raises :class:`DataError` for a folder without images or with fewer than two.
    """
    labels = labels_of(folder)
    name = name_of(labels)
    images = datasets.open_training_images(dataset_of(labels.images or labels.data))
    if len(images) < LEAST:
        raise DataError(f"{folder}: has {len(images)} image", "give a folder of 20 photographs or more")
    seen = _seen(labels, images)
    neighbours = "" if len(images) > NEIGHBOURS else f", k: [{len(images) // 2}]"
    fitting = {"boxes": f", split: {labels.found.get(DETECTION.name, ('',))[-1]}", "classes": neighbours}
    lines, in_data = [], False
    for line in template.splitlines():
        if in_data and line.startswith(" "):
            continue
        needs = re.search(r"needs (masks|boxes|classes)", line)
        if needs is not None:
            if NEEDS[needs[1]].name not in labels.found:
                continue
            bare = line.replace("  # ", "  ", 1) if line.startswith("  #") else line
            line = re.sub(r"datasets: \[\w+\]", f"datasets: [{name}]{fitting.get(needs[1], '')}", bare)
        line = re.sub(r"\bdataset: \w+", f"dataset: {IMAGES if labels.images else name}", line)
        line = re.sub(r"batch_size: (\d+)", lambda found: f"batch_size: {min(int(found[1]), len(images))}", line)
        lines.append(line)
        in_data = line == "data:"
        if in_data:
            lines += [f"  # {seen}", f"  {name}: {_flow(labels.data)}"]
            lines += [f"  {IMAGES}: {_flow(labels.images)}"] if labels.images else []
    return "\n".join(lines) + "\n", seen


def _flow(settings: dict[str, Any]) -> str:
    """Settings as a mapping of YAML in one line."""
    return (
        "{"
        + ", ".join(f"{key}: {json.dumps(value) if key not in PLAIN else value}" for key, value in settings.items())
        + "}"
    )


def _seen(labels: FolderLabels, images: Any) -> str:
    """Return a line on the number of images, their sizes and their labels."""
    chosen = {int(index) for index in np.linspace(0, len(images) - 1, _SAMPLED)}
    sides = np.array([images.size(index) for index in chosen])
    (low, narrow), (high, wide) = sides.min(0), sides.max(0)
    size = f"{narrow} x {low}" + (f" to {wide} x {high}" if (low, narrow) != (high, wide) else "")
    config = dataset_of(labels.data)
    parts = [
        f"{len(images)} images of {size} pixels"
        + ("" if labels.images or labels.data["kind"] == "images" else " to train on")
    ]
    for name, splits in labels.found.items():
        counts = (f"{split} {len(datasets.open_labels(LABELS[name], config, split))}" for split in splits)
        parts.append(f"{LABELS[name].short}: {', '.join(counts)}")
    return "; ".join(parts if len(parts) > 1 else [*parts, "no labels"])
