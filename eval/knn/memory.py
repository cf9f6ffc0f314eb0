"""Memory that the features of all images take in k-NN: the rule that it follows, and that plans state (no torch)."""

from __future__ import annotations

from collections.abc import Sequence

from dinoskip.runtime.environment import memory_limit

_COPIES = 3  # of float32 features at once: as read, stacked, as unit vectors


def blocks_together(images: int, channels: int) -> int:
    """Return how many blocks' class tokens of ``images`` training and validation images are held at once, at least one.

    They fit in half of :func:`dinoskip.runtime.environment.memory_limit`.
    """
    return max(1, memory_limit() // 2 // (_COPIES * 4 * channels * max(1, images)))


def held_bytes(reads: Sequence[tuple[int, int, int, int]]) -> int:
    """Peak bytes by (images, tokens, channels, blocks) of the splits that are read."""
    if not reads:
        return 0
    images, (_, _, channels, blocks) = sum(read[0] for read in reads), reads[0]
    return min(blocks, blocks_together(images, channels)) * _COPIES * 4 * channels * images
