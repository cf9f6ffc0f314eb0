"""k-NN on a data set: the CLS token of every block of a feature store, and its result rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from dinoskip.errors import ConfigError
from dinoskip.features import FeatureSet, FeatureStore
from dinoskip.results.records import write_recorded_rows
from dinoskip.results.rows import EvalResult
from dinoskip.runtime.distributed import choose_device
from dinoskip.settings.tasks import TaskInputs
from eval.baselines import classification_baselines
from eval.knn.classify import knn_of_parts, knn_predictions, queries_together
from eval.knn.config import QUERIES, KnnConfig
from eval.knn.memory import blocks_together
from eval.knn.pictures import NEIGHBOURS, write_neighbours
from eval.knn.tokens import class_tokens
from eval.rows import hits_row, row_like

_Part = tuple[torch.Tensor, NDArray[np.int64]]
_PART_VALUES = 2**26  # of training features compared at once, from windows: 256 MiB of float32


def _predicted(
    train: FeatureStore, val: FeatureStore, labels: ArrayLike, given: TaskInputs, device: torch.device
) -> dict[int, NDArray[np.int64]]:
    """Return for every k the classes (blocks, n), as many blocks at once as fit in half of the memory limit.

    Parts of the work are :data:`QUERIES` images each, at as many blocks.
    """
    config: KnnConfig = given.settings
    together = blocks_together(len(train) + len(val), train.dim)
    groups = [val.blocks[at : at + together] for at in range(0, len(val.blocks), together)]
    chunks = []
    for blocks in groups:
        step = queries_together(len(blocks), len(train), device)
        images = max(1, QUERIES // step) * step  # whole products: their sums round as those of all images
        chunks += [(blocks, slice(at, at + images)) for at in range(0, len(val), images)]
    memory: dict[tuple[int, ...], torch.Tensor] = {}

    def predict(number: int, _: Path) -> dict[str, NDArray[np.int64]]:
        blocks, queries = chunks[number]
        if blocks not in memory:
            memory.clear()
            memory[blocks] = class_tokens(train, blocks).to(device)
        tested = class_tokens(val, blocks, queries).to(device)
        found = knn_predictions(memory[blocks], labels, tested, config.k, config.temperature, backend=config.backend)
        return {str(k): classes for k, classes in found.items()}

    predicted = {k: np.empty((len(val.blocks), len(val)), np.int64) for k in config.k}
    for (blocks, queries), found in zip(
        chunks, given.parts.each("queries", len(chunks), predict, given.out), strict=True
    ):
        at = val.blocks.index(blocks[0])
        for k, classes in predicted.items():
            classes[at : at + len(blocks), queries] = found[str(k)]
    return predicted


def _in_parts(train: FeatureSet, labels: NDArray[np.int64], device: torch.device) -> Iterator[_Part]:
    """Class tokens (blocks, n, C) of some training images after others, and their labels."""
    place = {name: i for i, name in enumerate(train.ids)}
    step = max(1, _PART_VALUES // (len(train.blocks) * train.dim))
    for part in train.parts():
        of = labels[[place[name] for name in part.ids]]
        for at in range(0, len(of), step):
            chunk = slice(at, at + step)
            yield class_tokens(part, part.blocks, chunk).to(device), of[chunk]


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Classify the CLS token of every block and write ``rows.json``, ``records.npz`` and pictures of neighbours.

    Features and labels (:class:`LabelledFolder`) are ``train`` and ``val``; the data set's name is in the context. Of
    training features in windows the nearest so far are kept, and no pictures are written. One row a block and k,
    metric ``accuracy_k{k}`` in percent, with its interval; then the majority class and chance, for each k.
    """
    config: KnnConfig = given.settings
    train, val, folders = given.features["train"], given.features["val"], given.labels
    labels, truth = folders["train"].labels_of(train.ids), folders["val"].labels_of(val.ids)
    if train.blocks != val.blocks:
        raise ConfigError(f"blocks differ: {train.blocks} in training, {val.blocks} in validation")
    device, classes = choose_device(given.device), len(folders["train"].class_names)
    if isinstance(train, FeatureStore):
        predicted = _predicted(train, val, labels, given, device)
    else:
        parts, tested = _in_parts(train, labels, device), class_tokens(val, val.blocks).to(device)
        predicted = knn_of_parts(parts, classes, tested, config.k, config.temperature, config.backend)
    protocol = f"dino k-NN, temperature {config.temperature:g}" + (", ivf index" if config.backend == "ivf" else "")
    template = row_like(given, "knn", split="val", protocol=protocol, classes=classes)
    recorded = [
        hits_row(replace(template, metric=f"accuracy_k{k}", block=str(block)), predicted[k][i] == truth)
        for i, block in enumerate(val.blocks)
        for k in config.k
    ]
    for record in recorded[: len(config.k)]:
        recorded += classification_baselines(labels, truth, classes, record.row)
    rows = write_recorded_rows(given.out, val.ids, recorded)
    if isinstance(train, FeatureStore):
        write_neighbours((train, folders["train"]), (val, folders["val"]), given.out / NEIGHBOURS)
    return rows
