"""Weighted k-nearest-neighbour classification of frozen CLS features, as in DINO, for all blocks at once.

Features are L2-normalised; the k training images of largest cosine vote for their class with weight
exp(cosine / temperature) (Wu et al. 2018; DINO eval_knn.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from dinoskip.errors import ConfigError, DataError
from eval.knn.config import Backend
from eval.neighbours import Neighbours
from eval.retrieval.config import IndexName

_CHUNK_ELEMENTS = 2**24  # similarities held at once: 64 MiB of float32
_ON_GPU = 16  # times as many there, 1 GiB: a product of few queries takes as long as reading all training features
_QUERIES = 64  # a chunk, at least: of fewer, fewer blocks are searched at once
Search = Callable[[slice, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def _too_many(ks: Sequence[int], count: int) -> ConfigError:
    asked = max(ks) if min(ks) >= 1 else min(ks)
    return ConfigError(
        f"k: {asked} neighbours were asked of {count} training images", f"set evaluate.knn.k to 1 to {count}"
    )


def _check(train_x: torch.Tensor, labels: NDArray[np.int64], test_x: torch.Tensor, ks: Sequence[int]) -> None:
    if train_x.shape[1] != len(labels):
        raise ValueError(f"{train_x.shape[1]} training features but {len(labels)} labels")
    if train_x.shape[0] != test_x.shape[0] or train_x.shape[2] != test_x.shape[2]:
        raise ValueError(f"training features {tuple(train_x.shape)} do not fit test features {tuple(test_x.shape)}")
    if len(labels) and labels.min() < 0:
        raise ValueError("class labels must not be negative")
    if min(ks) < 1 or max(ks) > len(labels):
        raise _too_many(ks, len(labels))
    if not bool(train_x.isfinite().all() & test_x.isfinite().all()):
        raise DataError("features are not finite", "verify the store, or export it again")


def knn_predictions(
    train_x: torch.Tensor,
    train_y: ArrayLike,
    test_x: torch.Tensor,
    ks: Sequence[int],
    temperature: float = 0.07,
    backend: Backend = "torch",
) -> dict[int, NDArray[np.int64]]:
    """Classify ``test_x`` (blocks, n, D) by ``train_x`` (blocks, N, D), each block by itself, for several k.

    ``train_y`` (N,) are integer classes. Returns, for every k, int64 classes (blocks, n). Every feature is
    normalised here; a zero vector is similar to nothing. ``torch`` multiplies all blocks at once, ``faiss`` searches
    the vectors of one block after the other, ``ivf`` an index of them that is not exact. Raises :class:`ConfigError` if
    a k exceeds N, :class:`DataError` for features that are not finite.
    """
    labels = np.asarray(train_y, dtype=np.int64)
    _check(train_x, labels, test_x, ks)
    blocks, count, _ = test_x.shape
    classes = torch.from_numpy(labels).to(train_x.device, non_blocking=True)
    nearest = _searcher(torch.nn.functional.normalize(train_x.float(), dim=-1), max(ks), backend)
    predicted = {k: np.empty((blocks, count), dtype=np.int64) for k in ks}
    for of, chunk in _chunks(blocks, count, len(labels), train_x.device):
        queries = torch.nn.functional.normalize(test_x[of, chunk].float(), dim=-1)
        similar, where = nearest(of, queries)
        for k, best in _winners(similar, classes[where], ks, temperature, int(labels.max()) + 1).items():
            predicted[k][of, chunk] = best
    return predicted


def _chunks(blocks: int, count: int, memory: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Blocks and queries that are searched at once among ``memory`` training features, so that similarities are few."""
    together, step = _blocks_together(blocks, memory, device), queries_together(blocks, memory, device)
    for block in range(0, blocks, together):
        for start in range(0, count, step):
            yield slice(block, block + together), slice(start, start + step)


def _held(device: torch.device) -> int:
    return _CHUNK_ELEMENTS * (_ON_GPU if device.type == "cuda" else 1)


def _blocks_together(blocks: int, memory: int, device: torch.device) -> int:
    return min(blocks, max(1, _held(device) // (_QUERIES * memory)))


def queries_together(blocks: int, memory: int, device: torch.device) -> int:
    """Number of queries that are compared at once with ``memory`` training features of so many blocks."""
    return max(1, _held(device) // (_blocks_together(blocks, memory, device) * memory))


def _winners(
    similar: torch.Tensor, votes_for: torch.Tensor, ks: Sequence[int], temperature: float, classes: int
) -> dict[int, NDArray[np.int64]]:
    """Return for every k the class (blocks, n) with most votes, from cosines (blocks, n, most), falling."""
    weights = torch.exp(similar / temperature)
    votes = weights.new_zeros((*weights.shape[:2], classes))
    done, winners, rising = 0, [], sorted(set(ks))
    for k in rising:  # they are sorted, so a larger k only adds votes
        votes.scatter_add_(-1, votes_for[..., done:k], weights[..., done:k])
        done = k
        winners.append(votes.argmax(-1))
    return dict(zip(rising, torch.stack(winners).cpu().numpy(), strict=True))


def knn_of_parts(
    parts: Iterable[tuple[torch.Tensor, NDArray[np.int64]]],
    classes: int,
    test_x: torch.Tensor,
    ks: Sequence[int],
    temperature: float = 0.07,
    backend: Backend = "torch",
) -> dict[int, NDArray[np.int64]]:
    """:func:`knn_predictions` by training features in parts: (blocks, n, D) and their labels, below ``classes``.

    Held are a part, the test features, and the nearest so far of each. Cosines are rounded as a part's product is.
    Raises :class:`ConfigError` for ``ivf``, which needs all at once, and else as :func:`knn_predictions`.
    """
    if backend == "ivf":
        raise ConfigError("backend: ivf needs the features of all training images at once", "choose torch or faiss")
    queries = torch.nn.functional.normalize(test_x.float(), dim=-1)
    shape, most, seen = (*queries.shape[:2], max(ks)), max(ks), 0
    similar = torch.full(shape, -torch.inf, device=queries.device)
    votes_for = torch.zeros(shape, dtype=torch.int64, device=queries.device)
    for train_x, labels in parts:
        seen += len(labels)
        _check(train_x, labels, test_x, [1])
        nearest = _searcher(torch.nn.functional.normalize(train_x.float(), dim=-1), min(most, len(labels)), backend)
        classes_of = torch.from_numpy(labels).to(queries.device)
        for of, chunk in _chunks(shape[0], shape[1], len(labels), queries.device):
            cosines, where = nearest(of, queries[of, chunk])
            similar[of, chunk], chosen = torch.cat([similar[of, chunk], cosines], -1).topk(most, dim=-1)
            votes_for[of, chunk] = torch.cat([votes_for[of, chunk], classes_of[where]], -1).gather(-1, chosen)
    if not 1 <= min(ks) <= most <= seen:
        raise _too_many(ks, seen)
    return _winners(similar, votes_for, ks, temperature, classes)


def _searcher(memory: torch.Tensor, k: int, backend: Backend) -> Search:
    """Make a search from unit queries (blocks, n, D) to the k largest cosines, falling, and where they are.

    ``memory`` (all blocks, N, D) are the unit vectors that are searched; each search names its queries' blocks.
    """
    if backend == "torch":
        transposed = memory.transpose(1, 2)

        def by_torch(of: slice, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            similar, where = torch.bmm(queries, transposed[of]).topk(k, dim=-1)
            return similar, where

        return by_torch
    kind: IndexName = "ivf" if backend == "ivf" else "flat"
    indexes = [Neighbours(block.cpu().numpy(), memory.device, kind) for block in memory]

    def by_faiss(of: slice, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        results = [index.search(block.cpu().numpy(), k) for index, block in zip(indexes[of], queries, strict=True)]
        similar, where = (torch.from_numpy(np.stack(part)).to(memory.device) for part in zip(*results, strict=True))
        return similar, where

    return by_faiss
