"""Dense retrieval: patches labelled by the training patches nearest to them (Hummingbird, Balažević et al. 2023).

A memory holds L2-normalised patch features of the training set with the mix of classes in each patch. A patch of the
validation set attends to its k nearest there, softmax(cosine / temperature), and takes the mean of their mixes; these
are upsampled bilinearly to the label and the largest is the class. Nothing is trained (docs/retrieval.md).

Shapes: N images of T = h·w patches, C channels, K classes, M remembered patches.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.errors import ConfigError
from dinoskip.features import FeatureSet
from dinoskip.io.arrays import map_array, read_arrays, write_arrays
from dinoskip.io.parts import IMAGES
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
    write_remembered,
)
from eval.rows import log_best, mean_row, miou_row, row_like, segmentation_rows
from eval.upsampling import upsampled_classes


class BlockMemory:
    """One block's remembered training patches, in whose neighbourhoods validation patches find their classes.

    The tokens of ``train`` are all (N, T, C), or those remembered (M, C). What is held is the memory (M·C values) and
    its index.
    """

    def __init__(
        self, train: LabelledTokens, memory: Memory, block: int, config: RetrievalConfig, device: torch.device
    ) -> None:
        self._index = Neighbours(remembered_features(train.tokens[block], memory), device, config.index)
        self._labels = torch.from_numpy(memory.labels).to(device, non_blocking=True)
        self._block, self._config = block, config

    def areas(self, val: LabelledTokens, images: range, progress: Progress) -> NDArray[np.int64]:
        """Return areas (n, 3, K) of some validation images (``ConfusionMatrix.areas``), scored at full label size.

        Their tokens are read a few images at a time (:func:`images_together`).
        """
        stored, (h, w), config = val.tokens[self._block], val.grid, self._config
        areas = np.zeros((len(images), 3, val.num_classes), dtype=np.int64)
        step = images_together(val, self._block)
        for at in range(images.start, images.stop, step):
            read = stored[at : min(at + step, images.stop)]
            similar, where = self._index.search(unit_rows(read), config.k)
            mixes = mix_labels(similar, where, self._labels, config.temperature).view(-1, h, w, val.num_classes)
            truth = [val.checked_label(i) for i in range(at, at + len(mixes))]
            maps = zip(mixes.permute(0, 3, 1, 2), truth, strict=True)
            predicted = [upsampled_classes(mix[None], (mask.shape[0], mask.shape[1])).flatten() for mix, mask in maps]
            host = np.split(torch.cat(predicted).cpu().numpy(), np.cumsum([mask.size for mask in truth])[:-1])
            for i, (classes, mask) in enumerate(zip(host, truth, strict=True), at - images.start):
                matrix = ConfusionMatrix(val.num_classes)
                matrix.update(classes.reshape(mask.shape), mask)
                areas[i] = matrix.areas
                progress.advance()
        return areas


def images_together(val: LabelledTokens, block: int) -> int:
    """Number of validation images whose tokens are read and searched for at once."""
    return max(1, BATCH_VALUES // int(np.prod(val.tokens[block].shape[1:])))


def retrieve(
    train: LabelledTokens,
    val: LabelledTokens,
    memory: Memory,
    block: int,
    config: RetrievalConfig,
    device: torch.device,
) -> NDArray[np.int64]:
    """Return areas (n, 3, K) of every validation image at a block, with one memory (:class:`BlockMemory`)."""
    with Progress(f"retrieval, block {block}", val.count, "images") as progress:
        return BlockMemory(train, memory, block, config, device).areas(val, range(val.count), progress)


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
    memories = _memories(given, train, ids, (of_all, *few))
    if config.k > (least := min(len(memory.images) for memory in memories.values())):
        raise ConfigError(f"k: {config.k} neighbours were asked of {least} remembered patches")
    rows = _rows_of_draws(train, val, stores["train"], memories, template, given)
    recorded = [row for of_block in rows.pop(of_all) for row in of_block]
    log_best(recorded, "mIoU")
    recorded += _means(rows)
    areas = majority_areas(train.pixels_per_image(), val.pixels_per_image())
    recorded.append(miou_row(recorded[0].row.baseline("majority class", 0.0), areas))
    return write_recorded_rows(given.out, stores["val"].ids, recorded)


def _memories(
    given: TaskInputs, train: LabelledTokens, ids: Sequence[str], subsets: Sequence[Draw]
) -> dict[Draw, Memory]:
    """The patches that each draw of training images remembers; those who make parts of the work find them chosen."""

    def choose(draw: Draw) -> Memory:
        return remember(train, ids, given.settings.memory, given.seed, draw.images)

    def write(folder: Path) -> None:
        for number, draw in enumerate(subsets):
            write_arrays(folder / f"{number}.npz", vars(choose(draw)))

    if given.parts.folder is None:
        return {draw: choose(draw) for draw in subsets}
    folder = given.parts.once("memory", write)
    chosen = (read_arrays(folder / f"{number}.npz", limit=sys.maxsize) for number in range(len(subsets)))
    return {draw: Memory(**arrays) for draw, arrays in zip(subsets, chosen, strict=True)}


@contextmanager
def _remembered(
    given: TaskInputs, train: LabelledTokens, train_store: FeatureSet, every: Memory
) -> Iterator[Mapping[int, NDArray[Any]]]:
    """Of training features in windows every block's remembered patches, after one pass; {} where a store has all."""
    if train.tokens:
        yield {}
    elif given.parts.folder is None:
        given.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=given.out, ignore_cleanup_errors=True) as scratch:
            yield remembered_tokens(train_store, every, Path(scratch))
    else:
        folder = given.parts.once("tokens", lambda folder: write_remembered(train_store, every, folder))
        yield {block: map_array(folder / f"block{block}.npy") for block in train_store.blocks}


def _rows_of_draws(
    train: LabelledTokens,
    val: LabelledTokens,
    train_store: FeatureSet,
    memories: Mapping[Draw, Memory],
    template: EvalResult,
    given: TaskInputs,
) -> dict[Draw, list[list[RecordedRow]]]:
    """The rows of every block, otherwise as ``template``, with each memory; of windows one pass serves all of them.

    Parts of the work are some :data:`dinoskip.io.parts.IMAGES` images of the validation set, with one memory.
    """
    rows: dict[Draw, list[list[RecordedRow]]] = {draw: [] for draw in memories}
    device, blocks = choose_device(given.device), list(val.tokens)
    every, places_of = together(list(memories.values()))
    step = max(1, IMAGES // (read := images_together(val, blocks[0]))) * read
    chunks = [range(at, min(at + step, val.count)) for at in range(0, val.count, step)]
    work = [(block, draw, chunk) for block in blocks for draw in range(len(memories)) for chunk in chunks]
    held: dict[tuple[int, int], BlockMemory] = {}
    with (
        _remembered(given, train, train_store, every) as kept,
        Progress("retrieval", len(blocks) * len(memories) * val.count, "images") as progress,
    ):

        def areas_of(number: int, _: Path) -> dict[str, NDArray[np.int64]]:
            block, draw, chunk = work[number]
            if (block, draw) not in held:
                held.clear()
                memory = list(memories.values())[draw]
                tokens = replace(train, tokens={block: kept[block][places_of[draw]]}) if kept else train
                held[block, draw] = BlockMemory(tokens, memory, block, given.settings, device)
            return {"areas": held[block, draw].areas(val, chunk, progress)}

        found = given.parts.each("queries", len(work), areas_of, given.out)
        for block in blocks:
            about = replace(template, block=str(block), token_cosine=token_cosine(val.tokens[block], device))
            for draw in memories:
                areas = np.concatenate([next(found)["areas"] for _ in chunks])
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
