"""Dense retrieval: patches labelled by the training patches nearest to them (Hummingbird, Balažević et al. 2023).

A memory holds L2-normalised patch features of the training set with the mix of classes in each patch. A patch of the
validation set attends to its k nearest there, softmax(cosine / temperature), and takes the mean of their mixes; these
are upsampled bilinearly to the label and the largest is the class. Nothing is trained (docs/retrieval.md).

Shapes: N images of T = h·w patches, C channels, K classes, M remembered patches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from dinoskip.config import Config
from dinoskip.console import Progress, log
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.distributed import choose_device
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureStore, as_float
from dinoskip.randomness import numpy_rng
from dinoskip.results import EvalResult, write_rows
from eval.baselines import segmentation_baselines
from eval.bootstrap import miou_intervals
from eval.heads import upsampled_classes
from eval.labelled import LabelledTokens
from eval.metrics import ConfusionMatrix, scores_of_areas
from eval.neighbours import IndexName, Neighbours

_BATCH_VALUES = 2**24  # features read, and label mixes gathered, at once: 64 MiB of float32


class RetrievalConfig(Config):
    """Settings of dense retrieval. ``memory``: patches remembered of the training set, at most."""

    memory: int = Field(default=102_400, ge=1)
    k: int = Field(default=30, ge=1)
    temperature: float = Field(default=0.02, gt=0)
    index: IndexName = "flat"
    seed: int = 0

    @property
    def label(self) -> str:
        """What result rows say about the protocol."""
        kind = "" if self.index == "flat" else f", {self.index} index"
        return f"hummingbird, memory {self.memory}, k {self.k}, temperature {self.temperature:g}{kind}"


@dataclass(frozen=True)
class Memory:
    """Which training patches are remembered: image and patch number int64 (M,), images ascending, and their classes.

    ``labels`` float32 (M, K): the part of each class in a patch's labelled pixels; rows add up to 1.
    """

    images: NDArray[np.int64]
    patches: NDArray[np.int64]
    labels: NDArray[np.float32]


def _overlap(size: int, cells: int) -> NDArray[np.float32]:
    """Return (cells, size): how much of each pixel lies in each of ``cells`` equal parts of the axis."""
    edges = np.arange(cells + 1) * (size / cells)
    pixels = np.arange(size)
    shared = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    parts: NDArray[np.float32] = np.clip(shared, 0, None).astype(np.float32)
    return parts


def patch_labels(label: NDArray[np.uint8], grid: tuple[int, int], num_classes: int) -> NDArray[np.float32]:
    """Return (T, K): the part of each class in the labelled pixels of every patch of a label map (H, W) of any size.

    Patches divide the map evenly and pixels on a border count by area. A patch without a labelled pixel is all zero.
    """
    present = np.unique(label)
    present = present[present < num_classes]
    rows, columns = (_overlap(size, cells) for size, cells in zip(label.shape, grid, strict=True))
    found = np.zeros((num_classes, *grid), dtype=np.float32)
    for value in present:
        found[value] = rows @ (label == value).astype(np.float32) @ columns.T
    area = found.sum(0)
    mixes: NDArray[np.float32] = np.divide(found, area, out=np.zeros_like(found), where=area > 0)
    return mixes.reshape(num_classes, -1).T


def choose_patches(mixes: NDArray[np.float32], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the numbers of at most ``count`` labelled patches of an image with ``mixes`` (T, K), ascending.

    Balanced as in the open implementation (Pariza et al. 2024): a patch's score is, summed over its classes, the number
    of the image's patches that have the class, times a uniform number; the smallest are taken, so that rare classes
    are not lost.
    """
    has = mixes > 0
    scores = (has @ has.sum(0).astype(np.float64)) * rng.random(len(mixes))
    labelled = np.flatnonzero(has.any(1))
    order = np.argsort(scores[labelled], kind="stable")
    return np.sort(labelled[order[:count]])


def remember(data: LabelledTokens, ids: Sequence[str], size: int, seed: int) -> Memory:
    """Choose at most ``size`` patches of the training images, spread evenly over them; reads every label map once.

    What is taken of an image depends on its labels, its id, ``seed`` and the number to take alone, and is the same for
    all blocks. An image with fewer labelled patches gives what it has. :class:`DataError` if nothing is labelled.
    """
    images, patches, labels = [], [], []
    with Progress("memory", data.count, "images") as progress:
        for i, name in enumerate(ids):
            mixes = patch_labels(data.checked_label(i), data.grid, data.num_classes)
            share = size * (i + 1) // data.count - size * i // data.count
            chosen = choose_patches(mixes, share, numpy_rng(seed, "retrieval", name))
            images.append(np.full(len(chosen), i))
            patches.append(chosen)
            labels.append(mixes[chosen])
            progress.advance()
    memory = Memory(np.concatenate(images), np.concatenate(patches), np.concatenate(labels))
    if not len(memory.images):
        raise DataError("no training image has a labelled pixel")
    return memory


def _unit(stored: NDArray[Any]) -> NDArray[np.float32]:
    values = as_float(stored).reshape(-1, stored.shape[-1])
    if not np.isfinite(values).all():
        raise DataError("features are not finite", "verify the store, or export it again")
    return torch.nn.functional.normalize(torch.from_numpy(values), dim=-1).numpy()


def remembered_features(stored: NDArray[Any], memory: Memory) -> NDArray[np.float32]:
    """Return unit vectors (M, C) of the remembered patches of one block's tokens (N, T, C), read image by image."""
    found = np.empty((len(memory.images), stored.shape[-1]), dtype=np.float32)
    there, starts = np.unique(memory.images, return_index=True)
    for image, start, end in zip(there, starts, [*starts[1:], len(found)], strict=True):
        found[start:end] = _unit(stored[image][memory.patches[start:end]])
    return found


def mix_labels(
    similar: NDArray[np.float32], where: NDArray[np.int64], labels: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return (Q, K) on the device of ``labels`` (M, K): their mean over each query's neighbours (Q, k).

    Weighted by softmax(similarity / temperature).
    """
    weights = torch.softmax(torch.from_numpy(similar).to(labels.device) / temperature, -1)
    rows = torch.from_numpy(where).to(labels.device)
    step = max(1, _BATCH_VALUES // (where.shape[1] * labels.shape[1]))
    parts = zip(torch.split(weights, step), torch.split(rows, step), strict=True)
    return torch.cat([torch.einsum("qk,qkc->qc", some, labels[chosen]) for some, chosen in parts])


def retrieve(
    train: LabelledTokens,
    val: LabelledTokens,
    memory: Memory,
    block: int,
    config: RetrievalConfig,
    device: torch.device,
) -> NDArray[np.int64]:
    """Return areas (n, 3, K) of every validation image (``ConfusionMatrix.areas``), scored at full label size.

    Validation tokens are read a few images at a time; what is held is the memory (M·C values) and its index.
    """
    index = Neighbours(remembered_features(train.tokens[block], memory), device, config.index)
    labels = torch.from_numpy(memory.labels).to(device)
    stored, (h, w) = val.tokens[block], val.grid
    areas = np.zeros((val.count, 3, val.num_classes), dtype=np.int64)
    step = max(1, _BATCH_VALUES // int(np.prod(stored.shape[1:])))
    with Progress(f"retrieval, block {block}", val.count, "images") as progress:
        for at in range(0, val.count, step):
            similar, where = index.search(_unit(stored[at : at + step]), config.k)
            mixes = mix_labels(similar, where, labels, config.temperature).view(-1, h, w, val.num_classes)
            for i, mix in enumerate(mixes.permute(0, 3, 1, 2), at):
                label = val.checked_label(i)
                found = upsampled_classes(mix[None], (label.shape[0], label.shape[1]))[0]
                matrix = ConfusionMatrix(val.num_classes)
                matrix.update(found, label)
                areas[i] = matrix.areas
                progress.advance()
    return areas


def evaluate(
    train_store: FeatureStore,
    val_store: FeatureStore,
    train_set: SegmentationDataset,
    val_set: SegmentationDataset,
    out: Path,
    config: RetrievalConfig,
    context: Mapping[str, Any],
    *,
    device: str = "auto",
) -> list[EvalResult]:
    """Label the validation set by every block of the stores and write ``out/rows.json``.

    Rows: mIoU with its interval, mAcc and aAcc in percent of each block; then the mIoU of the majority class. Raises
    :class:`DataError` for stores that do not belong together, :class:`ConfigError` if k exceeds what is remembered.
    """
    train, val = LabelledTokens.pair(train_store, val_store, train_set, val_set)
    memory = remember(train, train_store.ids, config.memory, config.seed)
    if config.k > len(memory.images):
        raise ConfigError(f"k: {config.k} neighbours were asked of {len(memory.images)} remembered patches")
    where = choose_device(device)
    areas = [retrieve(train, val, memory, block, config, where) for block in val_store.blocks]
    context = {"protocol": f"{config.label}, of {train_set.list_name}", **context}
    rows = []
    for block, found, interval in zip(val_store.blocks, areas, miou_intervals(areas, config.seed), strict=True):
        rows += [row.with_context(context) for row in _rows(str(block), found, interval, val_store, val_set, config)]
    best = max((row for row in rows if row.metric == "mIoU"), key=lambda row: row.value)
    log.info("retrieval: best is block %s with %.1f mIoU", best.block, best.value)
    rows += segmentation_baselines(train.pixels_per_image(), val.pixels_per_image(), rows[0])
    write_rows(Path(out) / "rows.json", rows)
    return rows


def _rows(
    block: str,
    areas: NDArray[np.int64],
    interval: tuple[float, float],
    store: FeatureStore,
    dataset: SegmentationDataset,
    config: RetrievalConfig,
) -> list[EvalResult]:
    scores, (low, high) = scores_of_areas(areas.sum(0)), interval
    ends: dict[str, tuple[float | None, float | None]] = {"mIoU": (100 * low, 100 * high)}
    return [
        EvalResult(
            metric=metric,
            value=100 * value,
            task="retrieve",
            block=block,
            dataset=dataset.name,
            split=dataset.split,
            n=len(store.ids),
            facet=store.facet,
            norm=store.norm,
            resolution=f"{store.transform.label}, scored at label size",
            classes=dataset.num_classes,
            seed=config.seed,
            weights=store.weights_hash,
            low=ends.get(metric, (None, None))[0],
            high=ends.get(metric, (None, None))[1],
        )
        for metric, value in (("mIoU", scores.miou), ("mAcc", scores.macc), ("aAcc", scores.aacc))
    ]
