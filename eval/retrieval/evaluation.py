"""Dense retrieval: patches labelled by the training patches nearest to them (Hummingbird, Balažević et al. 2023).

A memory holds L2-normalised patch features of the training set with the mix of classes in each patch. A patch of the
validation set attends to its k nearest there, softmax(cosine / temperature), and takes the mean of their mixes; these
are upsampled bilinearly to the label and the largest is the class. Nothing is trained (docs/retrieval.md).

Shapes: N images of T = h·w patches, C channels, K classes, M remembered patches.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.errors import ConfigError
from dinoskip.features import FeatureSet
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult
from dinoskip.runtime.console import Progress
from dinoskip.runtime.distributed import choose_device
from dinoskip.settings.tasks import TaskInputs
from eval.baselines import majority_areas
from eval.labelled import LabelledTokens, token_cosine
from eval.metrics import ConfusionMatrix
from eval.neighbours import Neighbours
from eval.retrieval.config import RetrievalConfig
from eval.retrieval.few import Draw, draws
from eval.retrieval.memory import (
    BATCH_VALUES,
    Memory,
    mix_labels,
    remember,
    remembered_features,
    remembered_tokens,
    together,
    unit_rows,
)
from eval.rows import log_best, mean_row, miou_row, row_like, segmentation_rows
from eval.upsampling import upsampled_classes


def retrieve(
    train: LabelledTokens,
    val: LabelledTokens,
    memory: Memory,
    block: int,
    config: RetrievalConfig,
    device: torch.device,
) -> NDArray[np.int64]:
    """Return areas (n, 3, K) of every validation image (``ConfusionMatrix.areas``), scored at full label size.

    The tokens of ``train`` are all (N, T, C), or those remembered (M, C). Validation tokens are read a few images at a
    time; what is held is the memory (M·C values) and its index.
    """
    index = Neighbours(remembered_features(train.tokens[block], memory), device, config.index)
    labels = torch.from_numpy(memory.labels).to(device, non_blocking=True)
    stored, (h, w) = val.tokens[block], val.grid
    areas = np.zeros((val.count, 3, val.num_classes), dtype=np.int64)
    step = max(1, BATCH_VALUES // int(np.prod(stored.shape[1:])))
    with Progress(f"retrieval, block {block}", val.count, "images") as progress:
        for at in range(0, val.count, step):
            similar, where = index.search(unit_rows(stored[at : at + step]), config.k)
            mixes = mix_labels(similar, where, labels, config.temperature).view(-1, h, w, val.num_classes)
            truth = [val.checked_label(i) for i in range(at, at + len(mixes))]
            maps = zip(mixes.permute(0, 3, 1, 2), truth, strict=True)
            predicted = [upsampled_classes(mix[None], (mask.shape[0], mask.shape[1])).flatten() for mix, mask in maps]
            host = np.split(torch.cat(predicted).cpu().numpy(), np.cumsum([mask.size for mask in truth])[:-1])
            for i, (classes, mask) in enumerate(zip(host, truth, strict=True), at):
                matrix = ConfusionMatrix(val.num_classes)
                matrix.update(classes.reshape(mask.shape), mask)
                areas[i] = matrix.areas
                progress.advance()
    return areas


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Label the validation set by every block; write ``rows.json`` and ``records.npz``.

    Features and labels (:class:`SegmentationDataset`) are ``train`` and ``val``; labels of other names are lists of
    training images. ``seed`` chooses the patches that are remembered; of training features in windows they alone are
    kept, in files in ``out`` while it runs. Rows: mIoU with its interval, mAcc and aAcc in percent of each block; then
    the mIoU of the majority class. Raises :class:`DataError` for features that do not belong together,
    :class:`ConfigError` if k exceeds what is remembered.
    """
    config: RetrievalConfig = given.settings
    stores, sets = given.features, given.labels
    train, val = LabelledTokens.pair(stores["train"], stores["val"], sets["train"], sets["val"])
    template = row_like(
        given, "retrieve", "mIoU", protocol=config.label, classes=val.num_classes,
        resolution=f"{stores['val'].transform.label}, scored at label size",
    )  # fmt: skip
    ids, lists = stores["train"].ids, {name: draw.ids for name, draw in sets.items() if name not in {"train", "val"}}
    of_all = Draw(sets["train"].list_name, np.arange(train.count), template.seed, "")
    few = draws(config, sets["train"], ids, train.pixels_per_image(), lists) if config.few or lists else []
    memories = {subset: remember(train, ids, config.memory, given.seed, subset.images) for subset in (of_all, *few)}
    if config.k > (least := min(len(memory.images) for memory in memories.values())):
        raise ConfigError(f"k: {config.k} neighbours were asked of {least} remembered patches")
    rows = _rows_of_draws(train, val, stores["train"], memories, template, given)
    recorded = [row for of_block in rows.pop(of_all) for row in of_block]
    log_best(recorded, "mIoU")
    recorded += _means(rows)
    areas = majority_areas(train.pixels_per_image(), val.pixels_per_image())
    recorded.append(miou_row(recorded[0].row.baseline("majority class", 0.0), areas))
    return write_recorded_rows(given.out, stores["val"].ids, recorded)


def _rows_of_draws(
    train: LabelledTokens,
    val: LabelledTokens,
    train_store: FeatureSet,
    memories: Mapping[Draw, Memory],
    template: EvalResult,
    given: TaskInputs,
) -> dict[Draw, list[list[RecordedRow]]]:
    """The rows of every block, otherwise as ``template``, with each memory; of windows one pass serves all of them."""
    rows: dict[Draw, list[list[RecordedRow]]] = {draw: [] for draw in memories}
    device = choose_device(given.device)
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=given.out, ignore_cleanup_errors=True) as scratch:
        every, places_of = together(list(memories.values()))
        kept = {} if train.tokens else remembered_tokens(train_store, every, Path(scratch))
        for block in val.tokens:
            about = replace(template, block=str(block), token_cosine=token_cosine(val.tokens[block], device))
            for (draw, memory), where in zip(memories.items(), places_of, strict=True):
                read = replace(train, tokens={block: kept[block][where]}) if kept else train
                areas = retrieve(read, val, memory, block, given.settings, device)
                protocol = f"{template.protocol}, of {draw.part}"
                of_draw = replace(about, protocol=protocol, seed=draw.seed, note=draw.note)
                rows[draw].append(segmentation_rows(of_draw, areas))
    return rows


def _means(rows: Mapping[Draw, Sequence[Sequence[RecordedRow]]]) -> list[RecordedRow]:
    """mIoU of the mean over the draws of each part, block by block, then of every draw; of a single one, its own."""
    means, each = list[RecordedRow](), list[RecordedRow]()
    for part in dict.fromkeys(draw.part for draw in rows):
        of_part = [[of_block[0] for of_block in blocks] for draw, blocks in rows.items() if draw.part == part]
        if len(of_part) == 1:
            means += [replace(rec, row=replace(rec.row, note="")) for rec in of_part[0]]
            continue
        means += [
            RecordedRow(replace(mean_row([rec.row for rec in same]), note="")) for same in zip(*of_part, strict=True)
        ]
        each += [row for blocks in of_part for row in blocks]
    return [*means, *each]
