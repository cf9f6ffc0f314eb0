"""Masks carried from frames to the next by the similarity of patches (Jabri et al. 2020; DINO, Caron et al. 2021).

Every patch of a frame takes the mean mask of the ``top_k`` most similar patches of the frames in its context, weighted
by softmax(cosine / temperature), out of those in a square window about its own place. Only products inside windows are
made, a part of the frame at a time: no matrix of all patches with all patches.

Shapes: n frames of context, T = h·w patches, C channels, K masks (background first).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate, normalize

_SCORES = 2**24  # similarities held at once: 64 MiB

Span = tuple[int, int]  # from, to


@dataclass(frozen=True)
class PropagationRule:
    """Rule by which a patch takes its mask from other patches, with their weights; the defaults are DINO's.

    Candidates are the patches at most ``radius`` rows and columns away, or all for 0. A patch takes its mask from
    ``top_k`` of them, the most similar in all frames together, and from those as similar as the last.
    ``temperature`` is that of the softmax.
    """

    radius: int = 12
    top_k: int = 5
    temperature: float = 0.1


def propagate(target: Tensor, context: Tensor, masks: Tensor, grid: tuple[int, int], rule: PropagationRule) -> Tensor:
    """Return the soft masks float32 (T, K) of a frame.

    ``target`` (T, C) and ``context`` (n, T, C) are float32 of unit length (:func:`unit_tokens`), ``masks`` (n, T, K)
    are those of the context. A patch with fewer than ``top_k`` patches in its windows takes all of them.
    """
    (height, width), frames = grid, len(context)
    wanted = target.view(height, width, -1)
    sources, labels = (part.view(frames, height, width, -1) for part in (context, masks))
    result = masks.new_empty(height, width, masks.shape[-1])
    for rows, columns in _parts(grid, frames, rule.radius):
        down, across = (_reach(span, size, rule.radius) for span, size in ((rows, height), (columns, width)))
        seen = sources[:, slice(*down), slice(*across)].reshape(-1, sources.shape[-1])
        part = wanted[slice(*rows), slice(*columns)]
        similar = part.reshape(-1, part.shape[-1]) @ seen.T
        if rule.radius:
            window = _window(rows, columns, down, across, rule.radius, similar.device)
            similar.view(len(similar), frames, -1).add_(window[:, None])  # faster than to fill where there is a mask
        carried = _weighted(similar, labels[:, slice(*down), slice(*across)].reshape(len(seen), -1), rule)
        result[slice(*rows), slice(*columns)] = carried.view(*part.shape[:2], -1)
    return result.view(height * width, -1)


def unit_tokens(tokens: Tensor) -> Tensor:
    """Return float32 tokens of unit length, in the same order (T, C); zero tokens stay zero."""
    return normalize(tokens.float(), dim=-1)


def _parts(grid: tuple[int, int], frames: int, radius: int) -> Iterator[tuple[Span, Span]]:
    """Parts of a frame (rows, columns): about as wide as the window reaches, so that little outside it is computed."""
    height, width = grid
    wide = radius + 1 if radius else width
    high = 5 * radius // 2 if radius else height
    sources = frames * (min(height, high + 2 * radius) * min(width, wide + 2 * radius) if radius else height * width)
    high = max(1, min(high, _SCORES // (sources * min(width, wide))))
    for top in range(0, height, high):
        for left in range(0, width, wide):
            yield (top, min(height, top + high)), (left, min(width, left + wide))


def _reach(span: Span, size: int, radius: int) -> Span:
    """Rows or columns that the windows of a span cover."""
    return (max(0, span[0] - radius), min(size, span[1] + radius)) if radius else (0, size)


def _window(rows: Span, columns: Span, down: Span, across: Span, radius: int, device: torch.device) -> Tensor:
    """Return (patches of the part, patches of its reach): 0 where the one is in the other's window, else -inf."""

    def far(span: Span, reach: Span) -> Tensor:
        here, there = (torch.arange(*ends, device=device) for ends in (span, reach))
        return (here[:, None] - there).abs() > radius

    apart = far(rows, down)[:, None, :, None] | far(columns, across)[None, :, None, :]
    outside = apart.reshape((rows[1] - rows[0]) * (columns[1] - columns[0]), -1)
    return torch.zeros(outside.shape, device=device).masked_fill_(outside, -math.inf)


def _weighted(similar: Tensor, labels: Tensor, rule: PropagationRule) -> Tensor:
    """Return (m, K): the weighted mean of ``labels`` (s, K) over the most similar of s, of similarities (m, s)."""
    count = min(rule.top_k, similar.shape[1])
    values, places = similar.topk(min(count + 1, similar.shape[1]), dim=1)
    weights = (values[:, :count] / rule.temperature).softmax(1)
    carried = (weights[:, :, None] * labels[places[:, :count]]).sum(1)
    if values.shape[1] > count:
        tied = (values[:, count] == values[:, count - 1]) & values[:, count].isfinite()
        if bool(tied.any()):  # all that are as similar as the last one count
            rows = similar[tied]
            kept = rows.masked_fill(rows < values[tied, count - 1 : count], -math.inf)
            carried[tied] = (kept / rule.temperature).softmax(1) @ labels
    return carried


class VideoMemory:
    """The first frame and the last ``size`` frames of a video, of one network's block, with their soft masks."""

    def __init__(self, tokens: Tensor, masks: Tensor, size: int) -> None:
        """Begin with the first frame: unit ``tokens`` (T, C), ``masks`` (T, K)."""
        self._tokens = tokens.new_empty(size + 1, *tokens.shape)
        self._masks = masks.new_empty(size + 1, *masks.shape)
        self._tokens[0], self._masks[0] = tokens, masks
        self._size, self._seen = size, 0

    def follow(self, tokens: Tensor, grid: tuple[int, int], rule: PropagationRule) -> Tensor:
        """Return the soft masks (T, K) of the next frame, and remember it. Its tokens are (T, C), of unit length."""
        there = 1 + min(self._seen, self._size)
        masks = propagate(tokens, self._tokens[:there], self._masks[:there], grid, rule)
        if self._size:
            place = 1 + self._seen % self._size
            self._tokens[place], self._masks[place] = tokens, masks
        self._seen += 1
        return masks


def first_masks(labels: NDArray[np.uint8], grid: tuple[int, int]) -> NDArray[np.float32]:
    """Return the one-hot masks (T, K) of label map (H, W) at tokens: nearest (Pillow), up to the largest id there.

    255 is background.
    """
    # As the metric reads the truth. DINO's script has no such rule.
    small = np.asarray(Image.fromarray(np.where(labels == 255, 0, labels)).resize(grid[::-1], Image.Resampling.NEAREST))
    masks: NDArray[np.float32] = np.eye(int(small.max()) + 1, dtype=np.float32)[small.ravel()]
    return masks


def hard_labels(masks: Tensor, grid: tuple[int, int], patch: int) -> NDArray[np.uint8]:
    """Return the object of every pixel, uint8 (h·patch, w·patch), of soft masks (T, K).

    They are upsampled bilinearly, each is stretched to 0..1 over the frame (unless it is empty or the same everywhere),
    and the largest is taken, the first of equals.
    """
    maps = masks.T.reshape(1, -1, *grid)
    large = interpolate(maps, scale_factor=patch, mode="bilinear", align_corners=False)[0]
    low, high = large.amin((1, 2), keepdim=True), large.amax((1, 2), keepdim=True)
    stretched = (large - low) / (high - low).clamp(min=torch.finfo(large.dtype).tiny)
    shown = torch.where((high > 0) & (high > low), stretched, large)
    best, labels = shown[0], torch.zeros(shown.shape[1:], dtype=torch.uint8, device=shown.device)
    for number, channel in enumerate(shown[1:], 1):  # argmax over the first dimension is slow on a CPU
        labels.masked_fill_(channel > best, number)
        best = torch.maximum(best, channel)
    return np.asarray(labels.cpu().numpy())


def at_size(labels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return a label map brought to (height, width) by Pillow's nearest neighbour."""
    return np.asarray(Image.fromarray(labels).resize(size[::-1], Image.Resampling.NEAREST))
