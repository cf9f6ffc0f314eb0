"""Clusterings of a block's patches: k-means by faiss, or STEGO's centres learnt by Adam, all blocks at once.

Shapes: N images of T patches, C channels, K clusters, L blocks. Patches are read from the store a part at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureSet, as_float
from dinoskip.features.store import STORED
from dinoskip.runtime.console import Progress
from dinoskip.runtime.randomness import numpy_rng, torch_rng
from dinoskip_dense.cluster.config import ClusteringConfig
from eval.labelled import batchnorm_statistics

PCA_POINTS = 1000  # patches a channel that components are found from: as many as faiss itself would draw
Stored = NDArray[Any]
Affine = tuple[NDArray[np.float32], NDArray[np.float32]]
"""A (C, d) and b (d,): patches x become x A + b."""


@dataclass(frozen=True, eq=False)
class Clustering:
    """A clustering of a block's patches: cluster k where ``x @ weight + bias`` is largest; x of length 1 if ``unit``.

    ``weight`` float32 (C, K), ``bias`` float32 (K,). All of them are such maps: the nearest of centres c to A x + b is
    that with the largest 2 c (A x + b) - c c.
    """

    weight: Tensor
    bias: Tensor
    unit: bool

    def scores(self, tokens: Tensor) -> Tensor:
        """Return (..., K) of patches (..., C)."""
        values = normalize(tokens, dim=-1) if self.unit else tokens
        return values @ self.weight + self.bias

    def to(self, device: torch.device) -> Clustering:
        """Return it with its map on ``device``."""
        return Clustering(self.weight.to(device), self.bias.to(device), self.unit)


def _drawn(total: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Numbers of at most ``count`` of ``total`` patches, drawn evenly, rising."""
    return np.arange(total) if count >= total else np.unique(rng.integers(0, total, count))


def draw_patches(stored: Stored, count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return at most ``count`` patches (M, C) of tokens (N, T, C), drawn evenly; :class:`DataError` if not finite."""
    total = stored.shape[0] * stored.shape[1]
    return _finite(stored.reshape(total, -1)[_drawn(total, count, rng)])


def _finite(patches: Stored) -> NDArray[np.float32]:
    values = as_float(patches)
    if not np.isfinite(values).all():
        raise DataError("features are not finite", "verify the store, or export it again")
    return values


def clustered_patches(total: int, clusters: int, config: ClusteringConfig, seed: int, block: int) -> NDArray[np.int64]:
    """Draw the patches, of ``total``, that k-means is fitted on: at most ``config.points`` · K numbers, ascending.

    A function of seed, block and numbers alone. Raises :class:`ConfigError` for more clusters than patches.
    """
    if clusters > total:
        raise ConfigError(f"clusters: {clusters} were asked of {total} patches")
    return _drawn(total, config.points * clusters, numpy_rng(seed, "clusters", block, clusters))


def kmeans_clustering(stored: Stored, clusters: int, config: ClusteringConfig, seed: int, block: int) -> Clustering:
    """Cluster patches of tokens (N, T, C) by k-means (faiss), scaled and reduced as ``config`` says.

    Held in memory: :func:`clustered_patches`, and for components ``PCA_POINTS`` · C. Raises :class:`ConfigError` for
    more clusters than patches.
    """
    total = stored.shape[0] * stored.shape[1]
    rows = clustered_patches(total, clusters, config, seed, block)
    affine = _affine(stored, config, seed, block)
    return fit_kmeans(stored.reshape(total, -1)[rows], clusters, config, seed, affine)


def kmeans_of_parts(
    features: FeatureSet, fits: Sequence[tuple[int, int]], config: ClusteringConfig
) -> dict[tuple[int, int], dict[int, Clustering]]:
    """:func:`kmeans_clustering` of every fit (K, seed) and block, in one pass over the parts of square images.

    Held in memory are the drawn patches of all of them. For settings that read no others (``config.passes_once``).
    """
    tokens = int(np.prod(features.grid(0)))
    total, channels = len(features) * tokens, features.dim
    rows = {
        (fit, block): clustered_patches(total, fit[0], config, fit[1], block)
        for fit in fits
        for block in features.blocks
    }
    drawn = {key: np.empty((len(indices), channels), STORED[features.dtype]) for key, indices in rows.items()}
    place = {name: i for i, name in enumerate(features.ids)}
    with Progress("patches", len(features), "images") as progress:
        for part in features.parts():
            first = place[part.ids[0]] * tokens  # images of one size come in order
            for (fit, block), indices in rows.items():
                start, end = np.searchsorted(indices, [first, first + len(part) * tokens])
                drawn[fit, block][start:end] = part.tokens(block).reshape(-1, channels)[indices[start:end] - first]
            progress.advance(len(part))
    affine = _identity(channels)
    return {
        fit: {block: fit_kmeans(drawn[fit, block], fit[0], config, fit[1], affine) for block in features.blocks}
        for fit in fits
    }


def fit_kmeans(patches: Stored, clusters: int, config: ClusteringConfig, seed: int, affine: Affine) -> Clustering:
    """Cluster the drawn patches (M, C), brought to x A + b where they are not of length 1."""
    unit, (matrix, shift) = config.scale == "unit", affine
    values = _finite(patches)
    values = normalize(torch.from_numpy(values), dim=-1).numpy() if unit else values @ matrix + shift
    kmeans = faiss.Kmeans(
        values.shape[1], clusters, niter=config.iterations, nredo=config.restarts, seed=seed, spherical=unit,
        min_points_per_centroid=1, max_points_per_centroid=len(values),
    )  # fmt: skip
    kmeans.train(np.ascontiguousarray(values, dtype=np.float32))
    centres = np.asarray(kmeans.centroids, dtype=np.float64)
    if unit:
        return Clustering(torch.from_numpy(centres.T.astype(np.float32)), torch.zeros(clusters), True)
    bias = 2 * centres @ shift.astype(np.float64) - (centres**2).sum(1)
    weight = 2 * matrix.astype(np.float64) @ centres.T
    return Clustering(torch.from_numpy(weight.astype(np.float32)), torch.from_numpy(bias.astype(np.float32)), False)


def _identity(channels: int) -> Affine:
    return np.eye(channels, dtype=np.float32), np.zeros(channels, dtype=np.float32)


def _affine(stored: Stored, config: ClusteringConfig, seed: int, block: int) -> Affine:
    """Return the matrix and the shift that standardise patches and reduce them to principal components."""
    channels = stored.shape[-1]
    matrix, shift = _identity(channels)
    if config.scale == "standard":
        every = np.arange(stored.shape[0])
        mean, inverse = (statistic.numpy() for statistic in batchnorm_statistics(stored, every, torch.device("cpu")))
        matrix, shift = np.diag(inverse), -mean * inverse
    if config.pca is None:
        return matrix, shift
    if config.pca > channels:
        raise ConfigError(f"pca: {config.pca} components were asked of {channels} channels")
    drawn = draw_patches(stored, PCA_POINTS * channels, numpy_rng(seed, "components", block))
    if len(drawn) < config.pca:
        raise DataError(f"pca: {config.pca} components were asked of {len(drawn)} patches", "more or larger images")
    components = faiss.PCAMatrix(channels, config.pca)
    components.train(np.ascontiguousarray(drawn @ matrix + shift, dtype=np.float32))
    rotation = faiss.vector_to_array(components.A).reshape(config.pca, channels)
    offset = faiss.vector_to_array(components.b)
    return matrix @ rotation.T, shift @ rotation.T + offset


def cosine_clusterings(
    tokens: Mapping[int, Stored], clusters: int, config: ClusteringConfig, seed: int, device: torch.device
) -> dict[int, Clustering]:
    """Learn centres by STEGO's rule, of all blocks' tokens (N, T, C) at once: the mean cosine to the nearest one rises.

    Random centres N(0, 1), Adam, batches of images in random order; held in memory is one batch of all blocks.
    """
    blocks = list(tokens)
    count, _, channels = tokens[blocks[0]].shape
    start = [torch.randn(clusters, channels, generator=torch_rng(seed, "clusters", block)) for block in blocks]
    centres = torch.stack(start).to(device).requires_grad_()
    optimizer = torch.optim.Adam([centres], lr=config.learning_rate)
    order, rng = np.zeros(0, dtype=np.int64), numpy_rng(seed, "clusters", "order", count)
    finite = torch.ones((), dtype=torch.bool, device=device)
    with Progress(f"{clusters} clusters", config.steps, "steps") as progress:
        for _ in range(config.steps):
            while len(order) < min(config.batch_size, count):
                order = np.concatenate([order, rng.permutation(count)])
            rows, order = np.sort(order[: config.batch_size]), order[config.batch_size :]
            read = [torch.from_numpy(as_float(tokens[block][rows])).flatten(0, 1) for block in blocks]
            batch = torch.stack(read).to(device, non_blocking=True)
            finite &= batch.isfinite().all()
            cosines = normalize(batch, dim=-1) @ normalize(centres, dim=-1).mT
            optimizer.zero_grad()
            torch.autograd.backward(-cosines.amax(-1).mean(-1).sum())
            optimizer.step()
            progress.advance()
    if not bool(finite):
        raise DataError("features are not finite", "verify the store, or export it again")
    learnt = normalize(centres.detach(), dim=-1).mT.cpu().contiguous()
    return {block: Clustering(fit, torch.zeros(clusters), False) for block, fit in zip(blocks, learnt, strict=True)}
