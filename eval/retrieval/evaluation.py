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
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.console import Progress, log
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.distributed import choose_device
from dinoskip.errors import ConfigError
from dinoskip.features import FeatureSet, FeatureStore
from dinoskip.records import RecordedRow, areas_record, write_recorded_rows
from dinoskip.results import EvalResult
from eval.baselines import segmentation_baselines
from eval.intervals import miou_interval
from eval.labelled import LabelledTokens, row_like, token_cosine
from eval.means import mean_row
from eval.metrics import ConfusionMatrix, scores_of_areas
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
            predicted = [upsampled_classes(mix[None], (one.shape[0], one.shape[1])).flatten() for mix, one in maps]
            host = np.split(torch.cat(predicted).cpu().numpy(), np.cumsum([one.size for one in truth])[:-1])
            for i, (classes, one) in enumerate(zip(host, truth, strict=True), at):
                matrix = ConfusionMatrix(val.num_classes)
                matrix.update(classes.reshape(one.shape), one)
                areas[i] = matrix.areas
                progress.advance()
    return areas


def evaluate(
    train_store: FeatureSet,
    val_store: FeatureStore,
    train_set: SegmentationDataset,
    val_set: SegmentationDataset,
    out: Path,
    config: RetrievalConfig,
    context: Mapping[str, Any],
    *,
    seed: int = 0,
    device: str = "auto",
    lists: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[EvalResult]:
    """Label the validation set by every block of the stores; write ``rows.json`` and ``records.npz`` into ``out``.

    ``seed`` chooses the patches that are remembered; of training features in windows they alone are kept, in files in
    ``out`` while it runs. Rows: mIoU with its interval, mAcc and aAcc in percent of each
    block; then the mIoU of the majority class. Raises :class:`DataError` for stores that do not belong together,
    :class:`ConfigError` if k exceeds what is remembered.
    """
    train, val = LabelledTokens.pair(train_store, val_store, train_set, val_set)
    like = row_like(
        val_store, val_set, task="retrieve", metric="mIoU", protocol=config.label,
        resolution=f"{val_store.transform.label}, scored at label size", classes=val_set.num_classes, seed=seed,
    ).with_context(context)  # fmt: skip
    of_all = Draw(train_set.list_name, np.arange(train.count), like.seed, "")
    few = draws(config, train_set, train_store.ids, train.pixels_per_image(), lists) if config.few or lists else []
    memories = {one: remember(train, train_store.ids, config.memory, seed, one.images) for one in (of_all, *few)}
    if config.k > (least := min(len(one.images) for one in memories.values())):
        raise ConfigError(f"k: {config.k} neighbours were asked of {least} remembered patches")
    rows = _rows_of_draws(train, val, train_store, memories, like, config, out, choose_device(device))
    recorded = [row for of_block in rows.pop(of_all) for row in of_block]
    best = max((one.row for one in recorded if one.row.metric == "mIoU"), key=lambda row: row.value)
    log.debug("retrieval: best is block %s with %.1f mIoU", best.block, best.value)
    recorded += _means(rows)
    recorded += segmentation_baselines(train.pixels_per_image(), val.pixels_per_image(), recorded[0].row)
    return write_recorded_rows(Path(out), val_store.ids, recorded)


def _rows_of_draws(
    train: LabelledTokens,
    val: LabelledTokens,
    train_store: FeatureSet,
    memories: Mapping[Draw, Memory],
    like: EvalResult,
    config: RetrievalConfig,
    out: Path,
    device: torch.device,
) -> dict[Draw, list[list[RecordedRow]]]:
    """The rows of every block, otherwise as ``like``, with each memory; of windows one pass serves all of them."""
    rows: dict[Draw, list[list[RecordedRow]]] = {draw: [] for draw in memories}
    Path(out).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=out, ignore_cleanup_errors=True) as scratch:
        every, places_of = together(list(memories.values()))
        kept = {} if train.tokens else remembered_tokens(train_store, every, Path(scratch))
        for block in val.tokens:
            about = replace(like, block=str(block), token_cosine=token_cosine(val.tokens[block], device))
            for (draw, memory), where in zip(memories.items(), places_of, strict=True):
                read = replace(train, tokens={block: kept[block][where]}) if kept else train
                areas = retrieve(read, val, memory, block, config, device)
                protocol = f"{like.protocol}, of {draw.part}"
                own = replace(about, protocol=protocol, seed=draw.seed, note=draw.note)
                rows[draw].append(_scored(own, areas))
    return rows


def _means(rows: Mapping[Draw, Sequence[Sequence[RecordedRow]]]) -> list[RecordedRow]:
    """mIoU of the mean over the draws of each part, block by block, then of every draw; of a single one, its own."""
    means, each = list[RecordedRow](), list[RecordedRow]()
    for part in dict.fromkeys(draw.part for draw in rows):
        own = [[of_block[0] for of_block in blocks] for draw, blocks in rows.items() if draw.part == part]
        if len(own) == 1:
            means += [replace(one, row=replace(one.row, note="")) for one in own[0]]
            continue
        means += [RecordedRow(replace(mean_row([one.row for one in same]), note="")) for same in zip(*own, strict=True)]
        each += [row for blocks in own for row in blocks]
    return [*means, *each]


def _scored(like: EvalResult, areas: NDArray[np.int64]) -> list[RecordedRow]:
    """Return the rows of mIoU, mAcc and aAcc, otherwise as ``like``, of areas (n, 3, K)."""
    scores, (low, high) = scores_of_areas(areas.sum(0)), miou_interval(areas)
    miou = replace(like, value=100 * scores.miou, low=100 * low, high=100 * high)
    others = (("mAcc", scores.macc), ("aAcc", scores.aacc))
    rows = [RecordedRow(replace(like, metric=name, value=100 * value)) for name, value in others]
    return [RecordedRow(miou, areas_record(areas)), *rows]
