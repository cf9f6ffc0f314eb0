"""Masks of patches: blocks, as iBOT and BEiT draw them, and a random part, as MAE does."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dinoskip.runtime.randomness import numpy_rng, uniforms

TRIES = 10  # iBOT's loader.py
LOG_ASPECT = math.log(1 / 0.3)  # of a block: height by width from 0.3 to 1 / 0.3


@dataclass(frozen=True)
class BlockMasks:
    """Masks of the global views of every sample, on grids of ``grid`` × ``grid`` patches (bytedance/ibot, loader.py).

    For each view one of the ``ratios``, pairs of shares, is chosen, each with equal chance, and a share drawn between
    the two: :func:`block_mask` of it. All depends on (seed, epoch, image, view) alone.
    """

    grid: int
    ratios: tuple[tuple[float, float], ...]
    seed: int

    def __call__(self, epoch: int, indices: np.ndarray, boxes: np.ndarray, flips: np.ndarray) -> list[Tensor]:
        """``masks`` bool (V·B, N), view-major, True is masked; of the M masked patches ``tokens`` int64 (M,), counted
        over all of (V·B, N), and ``weights`` float32 (M,), 1 / (masked patches of its view · V·B).
        """
        views = boxes.shape[1]
        masks = np.empty((views, len(indices), self.grid**2), dtype=bool)
        for place, index in enumerate(indices.tolist()):
            for view in range(views):
                rng = numpy_rng(self.seed, "mask", epoch, index, view)
                low, high = self.ratios[rng.integers(len(self.ratios))]
                share = low + (high - low) * rng.random()
                masks[view, place] = block_mask(self.grid, self.grid, share, rng).flatten()
        flat = masks.reshape(-1, self.grid**2)
        weights = 1 / (np.maximum(flat.sum(1, keepdims=True), 1) * len(flat)) * np.ones(flat.shape)
        return [
            torch.from_numpy(flat),
            torch.from_numpy(np.flatnonzero(flat)),
            torch.from_numpy(weights[flat].astype(np.float32)),
        ]


def block_mask(height: int, width: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return bool (height, width), at most ``share`` of it True: blocks are added until that is reached.

    A block has an area between (the shorter side // 3)² and what is left, and must be smaller than the grid on both
    sides; it is taken if it adds between one patch and what is left. After ten in a row that are not it is enough.
    """
    mask = np.zeros((height, width), dtype=bool)
    wanted, least = share * height * width, (min(height, width) // 3) ** 2
    count = 0
    while count < wanted:
        for _ in range(TRIES):
            area = rng.uniform(least, wanted - count) if wanted - count > least else rng.uniform(wanted - count, least)
            aspect = math.exp(rng.uniform(-LOG_ASPECT, LOG_ASPECT))
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if h >= height or w >= width:
                continue
            top, left = rng.integers(height - h, endpoint=True), rng.integers(width - w, endpoint=True)
            block = mask[top : top + h, left : left + w]
            added = h * w - int(block.sum())
            if 0 < added <= wanted - count:
                block[:] = True
                count += added
                break
        else:
            break
    return mask


@dataclass(frozen=True)
class VisiblePatches:
    """Draw of the patches that MAE's encoder sees of every sample's view.

    They are ``int(N · visible)`` of N, and every set of them is equally likely. All depends on (seed, epoch, image)
    alone.
    """

    grid: int
    visible: float
    seed: int

    def __call__(self, epoch: int, indices: np.ndarray, boxes: np.ndarray, flips: np.ndarray) -> list[Tensor]:
        """``kept`` int64 (B, K) and ``removed`` int64 (B, N - K), numbers of patches in raster order, ascending."""
        total = self.grid**2
        order = uniforms(self.seed, "mask", epoch, numbers=indices, count=total).argsort(axis=1)
        kept = int(total * self.visible)
        return [torch.from_numpy(np.sort(part, axis=1)) for part in (order[:, :kept], order[:, kept:])]
