"""Memory that the graph of one image takes: the rule that cuts follow, and that plans state (neither needs torch).

N tokens have N² pairs. Up to :data:`LARGEST_DENSE` tokens a graph is a matrix of float64. Beyond, no matrix of N x N
numbers exists: similarities are made in tiles of :data:`TILE` x :data:`TILE`, of which one bit a pair is kept
(:mod:`eval.tokencut.tiles`) while that fits in the share of memory that graphs may take
(:func:`dinoskip.runtime.memory.memory_share`); in larger graphs, and on a GPU, every product makes them again.
"""

from __future__ import annotations

from dinoskip.runtime.cores import available_cores
from dinoskip.runtime.memory import memory_share

LARGEST_DENSE = 2**13
"""Tokens up to which a graph is a dense matrix, .87 GB of it: all images of the published protocols (VOC at patches of
8 pixels: 2,900) with room to spare, so their numbers stay the same to the last bit."""
TILE = 2**11  # tokens a side: 16 MB of float32, large enough for the full speed of a matrix product
LARGEST_DRAWN = 2**14
"""Tokens of an image up to which pages show a block: 128 x 128, more than are told apart by eye. A cut of so many takes
some seconds; of the 65,536 that a stem of stride 2 has, a minute, for each image and block."""
MAX_PASSES = 160  # products with a graph that the search for its vector takes at most
SECOND_PASSES = 40  # of a search for a second eigenvector of the same eigenvalue
_DENSE_PAIR = 4 + 1 + 8  # similarity float32, comparison bool, edge float64
_TILE_PAIR = 4 + 1 + 8  # the same, of one tile
_COPIES = 4  # of the features, float32: as read, treated, normalised, padded


def packs(tokens: int, share: int | None = None) -> bool:
    """Whether one bit for each pair of tokens fits in ``share`` bytes, or in the share that graphs may take."""
    return tokens**2 // 8 <= (memory_share() if share is None else share)


def graph_bytes(tokens: int, channels: int, share: int | None = None) -> int:
    """Peak bytes on a CPU of cutting one image of so many tokens, its features included.

    ``share`` is what graphs may take in bytes; by default that of this machine.
    """
    features = 4 * _COPIES * tokens * channels
    basis = 8 * tokens * (MAX_PASSES + SECOND_PASSES + 2)
    if tokens <= LARGEST_DENSE:
        return features + basis + _DENSE_PAIR * tokens**2
    kept = tokens**2 // 8 if packs(tokens, share) else 0
    return features + basis + kept + _TILE_PAIR * TILE**2


def images_at_once(tokens: int, channels: int, workers: int = 0, share: int | None = None) -> int:
    """Return how many images of at most ``tokens`` tokens to cut at once, at least one.

    ``workers`` limits them (0: one a core), and so does the ``share`` of memory, in bytes.
    """
    share = memory_share() if share is None else share
    return max(1, min(workers or available_cores(), share // max(1, graph_bytes(tokens, channels, share))))


def peak_bytes(tokens: int, channels: int, workers: int = 0) -> int:
    """Peak bytes on this machine of cutting images of at most so many tokens, as many at once as it does."""
    return images_at_once(tokens, channels, workers) * graph_bytes(tokens, channels)


def drawn_bytes(channels: int) -> int:
    """Peak bytes of the cuts of a page, one image after the other, of at most :data:`LARGEST_DRAWN` tokens."""
    return max(graph_bytes(tokens, channels) for tokens in (LARGEST_DENSE, LARGEST_DRAWN))
