"""The memory of dense retrieval: which training patches are remembered, with which labels, and how they vote.

Shapes: N images of T = h·w patches, C channels, K classes, M remembered patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.errors import DataError
from dinoskip.features import FeatureSet, as_float
from dinoskip.features.store import STORED
from dinoskip.runtime.console import Progress
from dinoskip.runtime.randomness import numpy_rng
from eval.labelled import LabelledTokens

BATCH_VALUES = 2**24  # features read, and label mixes gathered, at once: 64 MiB of float32


@dataclass(frozen=True)
class Memory:
    """Training patches in memory: image and patch number int64 (M,), in ascending order of images, and their classes.

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
    areas = np.zeros((num_classes, *grid), dtype=np.float32)
    for value in present:
        areas[value] = rows @ (label == value).astype(np.float32) @ columns.T
    area = areas.sum(0)
    mixes: NDArray[np.float32] = np.divide(areas, area, out=np.zeros_like(areas), where=area > 0)
    return mixes.reshape(num_classes, -1).T


def choose_patches(mixes: NDArray[np.float32], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the numbers of at most ``count`` labelled patches of an image with ``mixes`` (T, K), ascending.

    Balanced as in the open implementation (Pariza et al. 2024): a patch's score is, summed over its classes, the number
    of the image's patches that have the class, times a uniform number; the smallest are taken, so that rare classes
    are not lost.
    """
    has = mixes > 0
    scores = (has @ has.sum(0).astype(np.float64)) * rng.random(len(mixes))
    # The open implementation stores patches without a labelled pixel as background, which would teach that what nobody
    # labelled is background; here they are not stored.
    labelled = np.flatnonzero(has.any(1))
    order = np.argsort(scores[labelled], kind="stable")
    return np.sort(labelled[order[:count]])


def remember(
    data: LabelledTokens, ids: Sequence[str], size: int, seed: int, drawn: NDArray[np.int64] | None = None
) -> Memory:
    """Choose at most ``size`` patches of the training images, spread evenly over them; reads every label map once.

    Of all images, or of those at the positions ``drawn``, which ascend.

    What is taken of an image depends on its labels, its id, ``seed`` and the number to take alone, and is the same for
    all blocks. An image with fewer labelled patches gives what it has. :class:`DataError` if nothing is labelled.
    """
    images, patches, labels = [], [], []
    where = range(data.count) if drawn is None else drawn.tolist()
    with Progress("memory", len(where), "images") as progress:
        for at, i in enumerate(where):
            mixes = patch_labels(data.checked_label(i), data.grid, data.num_classes)
            # Evenly over images, each once. The paper augments images for its larger memories; without that, a memory
            # is a function of labels and seed, and features are exported once.
            share = size * (at + 1) // len(where) - size * at // len(where)
            chosen = choose_patches(mixes, share, numpy_rng(seed, "retrieval", ids[i]))
            images.append(np.full(len(chosen), i))
            patches.append(chosen)
            labels.append(mixes[chosen])
            progress.advance()
    memory = Memory(np.concatenate(images), np.concatenate(patches), np.concatenate(labels))
    if not len(memory.images):
        raise DataError("no training image has a labelled pixel")
    return memory


def unit_rows(stored: NDArray[Any]) -> NDArray[np.float32]:
    """Return stored features (..., C) as unit vectors (n, C); :class:`DataError` if they are not finite."""
    values = as_float(stored).reshape(-1, stored.shape[-1])
    if not np.isfinite(values).all():
        raise DataError("features are not finite", "verify the store, or export it again")
    return torch.nn.functional.normalize(torch.from_numpy(values), dim=-1).numpy()


def together(memories: Sequence[Memory]) -> tuple[Memory, list[NDArray[np.int64]]]:
    """Return the patches of any of ``memories``, each once, and where those of every memory are among them."""
    images, patches, labels = (
        np.concatenate([getattr(memory, name) for memory in memories]) for name in ("images", "patches", "labels")
    )
    _, first, where = np.unique(images * (patches.max() + 1) + patches, return_index=True, return_inverse=True)
    ends = np.cumsum([len(memory.images) for memory in memories])[:-1]
    return Memory(images[first], patches[first], labels[first]), np.split(where, ends)


def remembered_tokens(train: FeatureSet, memory: Memory, folder: Path) -> dict[int, NDArray[Any]]:
    """Return of every block the remembered patches (M, C) as stored, in files below ``folder``.

    One pass over the parts of ``train``, which holds no more than one of them.
    """
    dtype, shape = STORED[train.dtype], (len(memory.images), train.dim)
    kept: dict[int, NDArray[Any]] = {
        block: np.lib.format.open_memmap(folder / f"block{block}.npy", "w+", dtype, shape) for block in train.blocks
    }
    place = {name: i for i, name in enumerate(train.ids)}
    with Progress("memory", len(train), "images") as progress:
        for part in train.parts():
            for local, name in enumerate(part.ids):
                start, end = np.searchsorted(memory.images, [place[name], place[name] + 1])
                for block in train.blocks:
                    kept[block][start:end] = part.tokens(block)[local][memory.patches[start:end]]
                progress.advance()
    return kept


def write_remembered(train: FeatureSet, memory: Memory, folder: Path) -> None:
    """Write the files of :func:`remembered_tokens`, for other processes to read."""
    for stored in remembered_tokens(train, memory, folder).values():
        if isinstance(stored, np.memmap):
            stored.flush()


def remembered_features(stored: NDArray[Any], memory: Memory) -> NDArray[np.float32]:
    """Return unit vectors (M, C) of the remembered patches, read image by image.

    ``stored`` are one block's tokens (N, T, C), or of these the remembered ones alone (M, C).
    """
    features = np.empty((len(memory.images), stored.shape[-1]), dtype=np.float32)
    there, starts = np.unique(memory.images, return_index=True)
    for image, start, end in zip(there, starts, [*starts[1:], len(features)], strict=True):
        rows = stored[image][memory.patches[start:end]] if stored.ndim == 3 else stored[start:end]
        features[start:end] = unit_rows(rows)
    return features


def mix_labels(
    similar: NDArray[np.float32], where: NDArray[np.int64], labels: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return (Q, K) on the device of ``labels`` (M, K): their mean over each query's neighbours (Q, k).

    Weighted by softmax(similarity / temperature).
    """
    weights = torch.softmax(torch.from_numpy(similar).to(labels.device, non_blocking=True) / temperature, -1)
    rows = torch.from_numpy(where).to(labels.device, non_blocking=True)
    step = max(1, BATCH_VALUES // (where.shape[1] * labels.shape[1]))
    parts = zip(torch.split(weights, step), torch.split(rows, step), strict=True)
    return torch.cat([torch.einsum("qk,qkc->qc", weights, labels[chosen]) for weights, chosen in parts])
