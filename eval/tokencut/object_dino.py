"""Object-DINO (2603.26127): one box an image from the heads of all blocks that attend to objects, without training.

Queries, keys and values of every head say how alike tokens are. The heads of all blocks are clustered, the cluster
with most heads of the last block is taken to be that of objects, and the tokens are cut by TokenCut on what its heads
find alike. The rules are those of the released code (SamyakR99/Object-DINO), read, not run; where notes on the paper
differ the other reading is an option (docs/tokencut.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from eval.tokencut.config import ObjectDinoConfig
from eval.tokencut.cut import Grid, TokenCut, as_float32, check_tokens, cut
from eval.tokencut.graph import normalise
from eval.tokencut.memory import LARGEST_DENSE

CLUSTER_SEED, STARTS = 42, 50
"""The code's seed; its ten starts of k-means are too few for the partition to be the best one found in all images."""


@dataclass(frozen=True, eq=False)
class ObjectDino:
    """The object of one image by Object-DINO.

    Attributes
    ----------
    heads
        int64 (K, 2): the heads that were read, block and head, from 0.
    labels
        int64 (blocks * heads,): the cluster of each head, block by block.
    similarity
        float32 (N, N): how alike two tokens are to these heads; TokenCut's graph is made of it.
    cut
        TokenCut of that graph.
    """

    heads: NDArray[np.int64]
    labels: NDArray[np.int64]
    similarity: Tensor
    cut: TokenCut


def object_dino(
    query: ArrayLike | Tensor,
    key: ArrayLike | Tensor,
    value: ArrayLike | Tensor,
    grid: Grid,
    config: ObjectDinoConfig | None = None,
    *,
    eps: float = 1e-5,
    labels: ArrayLike | None = None,
) -> ObjectDino:
    """Box the object of one image.

    Parameters
    ----------
    query, key, value
        (blocks, heads, N, d), patch tokens only, row-major over ``grid``, with bias and before rotary positions;
        cast to float32, worked on where ``query`` lies.
    grid
        (rows, columns), rows * columns = N.
    config
        The reading of the method; the released code's by default.
    eps
        Affinity of tokens that are not alike.
    labels
        int (blocks * heads,): clusters of heads that are found already, instead of k-means.

    Raises
    ------
    ValueError
        Shapes that differ or do not fit the grid, fewer than 3 tokens or more than
        :data:`eval.tokencut.memory.LARGEST_DENSE`, features that are not finite, fewer heads than clusters.
    """
    config = config or ObjectDinoConfig()
    parts = [as_float32(part) for part in (query, key, value)]
    shape = parts[0].shape
    if len(shape) != 4 or any(part.shape != shape for part in parts):
        raise ValueError(
            f"query, key and value must be (blocks, heads, N, d), not {[tuple(one.shape) for one in parts]}"
        )
    if shape[2] > LARGEST_DENSE:  # its matrices are dense
        raise ValueError(f"{shape[2]:,} tokens, Object-DINO takes at most {LARGEST_DENSE:,}: use a smaller image")
    unit = torch.stack([_unit(part, grid) for part in parts], dim=1)  # (heads of all blocks, 3, N, d)
    blocks, heads = shape[:2]
    if labels is None:
        found = cluster_heads(head_features(unit, config), config)
    else:
        found = np.asarray(labels, np.int64).reshape(blocks * heads)
    read = np.flatnonzero(found == object_cluster(found.reshape(blocks, heads)))
    similarity = similarity_to_heads(unit[read], config)
    (whole,) = cut(similarity[None], [grid], config.tau, eps)
    return ObjectDino(np.stack(np.divmod(read, heads), axis=1).astype(np.int64), found, similarity, whole)


def _unit(part: Tensor, grid: Grid) -> Tensor:
    """Unit rows of (blocks, heads, N, d) as (blocks * heads, N, d)."""
    flat = part.flatten(0, 1)
    check_tokens(flat, grid)
    return normalise(flat)


def ensembles(unit: Tensor, config: ObjectDinoConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the mean of a head's three matrices of cosines, and that of their softmax over keys, both (N, N).

    ``unit`` are the unit rows of queries, keys and values (heads, 3, N, d). One head is held at a time.
    """
    scale = unit.shape[-1] ** -0.5 if config.scale is None else config.scale
    for head in unit:
        cosines = head @ head.mT
        yield cosines.mean(0), (scale * cosines).softmax(-1).mean(0)


def head_features(unit: Tensor, config: ObjectDinoConfig) -> NDArray[np.float64]:
    """Return the features by which heads are clustered, (heads, F) float64, from unit rows (heads, 3, N, d).

    ``mean``: how much attention every token gets, the mean of the head's map over queries, F = N; each column
    standardised over the heads, one that is constant only centred. ``map``: the whole map as it is, F = N * N.
    """
    if config.head_feature == "map":
        return np.stack([attention.flatten().double().cpu().numpy() for _, attention in ensembles(unit, config)])
    return standardised(mean_attention(unit, config))


def mean_attention(unit: Tensor, config: ObjectDinoConfig) -> NDArray[np.float64]:
    """The attention that every token gets, (heads, N) float64: the mean of each head's map over queries."""
    return np.stack([attention.double().mean(0).cpu().numpy() for _, attention in ensembles(unit, config)])


def standardised(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns with mean 0 and population deviation 1; one that is constant is 0."""
    centred = features - features.mean(0)
    deviation = centred.std(0)
    constant = deviation <= 10 * np.finfo(np.float64).eps * np.abs(features).max(0)  # what rounding leaves
    return np.asarray(np.where(constant, 0.0, centred / np.where(constant, 1.0, deviation)))


def cluster_heads(features: NDArray[np.float64], config: ObjectDinoConfig) -> NDArray[np.int64]:
    """The cluster (heads,) of each head by k-means, the best of :data:`STARTS` starts from one seed.

    Raises ValueError for fewer heads than clusters.
    """
    from sklearn.cluster import KMeans  # seconds of import that TokenCut itself does not need

    if len(features) < config.clusters:
        raise ValueError(f"{config.clusters} clusters of {len(features)} heads")
    means = KMeans(config.clusters, n_init=STARTS, random_state=CLUSTER_SEED).fit(features)
    return np.asarray(means.labels_, np.int64)


def object_cluster(labels: NDArray[np.int64]) -> int:
    """The cluster with most heads of the last block, of labels (blocks, heads).

    Of several the one that is met first, from the first block on, heads in order.
    """
    met = list(dict.fromkeys(labels.ravel().tolist()))
    counts = {label: int((labels[-1] == label).sum()) for label in met}
    return max(met, key=lambda label: counts[label])


def similarity_to_heads(unit: Tensor, config: ObjectDinoConfig) -> Tensor:
    """Return the similarity of tokens by the heads that are read, float32 (N, N), from unit rows (heads, 3, N, d).

    ``concatenated``: every token's cosines to all others, of all heads side by side, are its features, and their
    cosine is its likeness to another: the sum of C C' over heads, divided by the roots of its diagonal. So nothing
    larger than N x N is needed. ``mean_cosine``, ``mean_map``: the heads' mean itself.
    """
    tokens = unit.shape[2]
    total = torch.zeros(tokens, tokens, device=unit.device)
    for cosines, attention in ensembles(unit, config):
        if config.affinity == "concatenated":
            total += cosines @ cosines.mT
        else:
            total += (cosines if config.affinity == "mean_cosine" else attention) / len(unit)
    if config.affinity != "concatenated":
        return total
    length = total.diagonal().clamp_min(1e-24).sqrt()  # as the norm's floor of 1e-12 elsewhere
    return total / length / length[:, None]
