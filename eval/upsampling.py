"""Bilinear upsampling of token maps to pixels, and the best class of a pixel without logits of full size.

Shapes: h·w tokens, H·W pixels, K classes, L maps of logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import interpolate

_BLOCK = 8  # pixels along a side, about, of the blocks in which classes are decided together
_CORNERS = 2**18  # logits of block corners held at once, on a CPU
_CONTEST = 2**17  # pixels compared at once: a CPU wants them in its cache
_PIXELS = 2**28  # logits of pixels held at once, on a GPU: 1 GiB


def pixel_centres(size: int, cells: int) -> torch.Tensor:
    """Return float64 (size,): where pixels lie among cells 0..cells-1, edges repeated (align_corners=False)."""
    return ((torch.arange(size, dtype=torch.float64) + 0.5) * cells / size - 0.5).clamp(0, cells - 1)


def interpolation(positions: torch.Tensor, cells: int) -> torch.Tensor:
    """Return float32 (len(positions), cells): the matrix that interpolates values at 0..cells-1 linearly there."""
    below = positions.floor().long().clamp(max=max(cells - 2, 0))
    part = positions - below
    matrix = torch.zeros(len(positions), cells, dtype=torch.float64)
    matrix.scatter_(1, below[:, None], (1 - part)[:, None])
    matrix.scatter_add_(1, (below + 1).clamp(max=cells - 1)[:, None], part[:, None])
    return matrix.float()


def bilinear(size: int, cells: int) -> torch.Tensor:
    """Return float32 (size, cells): ``bilinear(H, h) @ x @ bilinear(W, w).T`` is x (h, w) upsampled to (H, W).

    It equals ``torch.nn.functional.interpolate(..., mode="bilinear", align_corners=False)``.
    """
    return interpolation(pixel_centres(size, cells), cells)


@dataclass(frozen=True)
class _Blocks:
    """The pixels of one axis in short blocks that no token centre cuts: in them interpolation is linear.

    ``ends`` (count + 1, cells) interpolates from tokens to where blocks end; ``part`` (count, width) is where between
    its two ends each pixel of a block lies, padded; ``place`` (size,) is each pixel's place in the padded order.
    """

    ends: torch.Tensor
    part: torch.Tensor
    place: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Number of blocks, and pixels in the widest."""
        return self.part.shape[0], self.part.shape[1]


@lru_cache(maxsize=256)
def _blocks(size: int, cells: int, device: torch.device) -> _Blocks:
    fine = max(1, round(size / cells / _BLOCK))  # blocks between two token centres
    at = ((torch.arange(size, dtype=torch.float64) + 0.5) * cells / size - 0.5) * fine
    first = int(at[0].floor())
    block = at.floor().long() - first
    count = int(block[-1]) + 1
    rank = torch.arange(size) - torch.searchsorted(block, torch.arange(count))[block]
    width = int(rank.max()) + 1
    part = torch.zeros(count, width)
    part[block, rank] = (at - at.floor()).float()
    ends = ((torch.arange(count + 1, dtype=torch.float64) + first) / fine).clamp(0, cells - 1)
    return _Blocks(interpolation(ends, cells).to(device), part.to(device), (block * width + rank).to(device))


def _contenders(ends: torch.Tensor, winners: torch.Tensor) -> torch.Tensor:
    """Return bool (L, K, blocks, blocks): classes that may win somewhere in a block.

    ``ends`` (L, K, blocks + 1, blocks + 1) are logits at the blocks' corners and ``winners`` (L, 1, ...) the first of
    the best classes there. In a block logits are convex combinations of its corners': a class that another one exceeds
    at all four cannot win. The others tried are the winners of two opposite corners. As no pixel is without part in
    the first corner, where its winner exceeds all classes before it, this one need only equal the others elsewhere.
    """
    down, across = ends.shape[2] - 1, ends.shape[3] - 1
    corners = [ends[..., y : y + down, x : x + across] for y in (0, 1) for x in (0, 1)]
    first, last = winners[..., :-1, :-1], winners[..., 1:, 1:]
    beaten = corners[0] <= corners[0].gather(1, first)
    for at in corners[1:]:
        beaten &= at <= at.gather(1, first)
    beaten.scatter_(1, first, value=False)
    less = corners[0] < corners[0].gather(1, last)
    for at in corners[1:]:
        less &= at < at.gather(1, last)
    beaten |= less
    return beaten.logical_not_()


def _contest(corners: torch.Tensor, classes: torch.Tensor, counts: torch.Tensor, parts: Sequence[torch.Tensor]) -> Any:
    """Return the best class (n, height, width) of each pixel of n blocks: a running maximum over contenders.

    ``counts`` (n,), falling, says how many contenders a block has; ``corners`` (4, sum) and ``classes`` (sum,) are
    theirs, block after block; ``parts`` (n, height) and (n, width) say where the pixels lie. The first of equals wins.
    """
    down, across = parts[0][:, :, None], parts[1]
    starts = counts.cumsum(0) - counts
    alive = (counts[:, None] > torch.arange(int(counts[0]), device=counts.device)).sum(0).tolist()
    for rank, n in enumerate(alive):
        start = starts[:n] + rank
        top, top_right, low, low_right = corners[:, start, None]
        top = torch.addcmul(top, across[:n], top_right - top)
        low = torch.addcmul(low, across[:n], low_right - low)
        value = torch.addcmul(top[:, None], down[:n], (low - top)[:, None])
        name = classes[start, None, None]
        if rank == 0:
            best, winner = value, name.expand(value.shape).contiguous()
        else:
            winner[:n] = torch.where(value > best[:n], name, winner[:n])
            best[:n] = torch.maximum(value, best[:n])
    return winner


def _few_classes(logits: torch.Tensor, rows: _Blocks, columns: _Blocks, kind: torch.dtype) -> torch.Tensor:
    """:func:`upsampled_classes` of heads whose logits at all block corners may be held at once."""
    (down, height), (across, width) = rows.shape, columns.shape
    ends = rows.ends @ (logits @ columns.ends.T)
    winners = ends.max(1, keepdim=True).indices
    contenders = _contenders(ends, winners)
    counts = contenders.sum(1).flatten()
    best = winners[:, 0, :-1, :-1].to(kind).reshape(-1, 1, 1).repeat(1, height, width)
    contested = (counts > 1).nonzero()[:, 0]
    contested = contested[counts[contested].argsort(descending=True)]  # so that those still open are a stretch
    counts = counts[contested]
    owner, classes = contenders.movedim(1, -1).flatten(0, 2)[contested].nonzero().unbind(1)
    head, y, x = contested // (down * across), contested // across % down, contested % across
    per_row, per_class = across + 1, (down + 1) * (across + 1)
    at = (head * ends.shape[1] * per_class + y * per_row + x)[owner] + classes * per_class
    corners = torch.stack([ends.flatten()[at + step] for step in (0, 1, per_row, per_row + 1)])
    step = max(1, _CONTEST // (height * width))
    stops = [0, *counts.cumsum(0)[step - 1 :: step].tolist(), len(classes)]
    for i, begin in enumerate(range(0, len(contested), step)):
        part, pairs = slice(begin, begin + step), slice(stops[i], stops[i + 1])
        inside = rows.part[y[part]], columns.part[x[part]]
        best[contested[part]] = _contest(corners[:, pairs], classes[pairs].to(kind), counts[part], inside)
    padded = best.view(-1, down, across, height, width).transpose(2, 3).reshape(-1, down * height, across * width)
    return padded.index_select(1, rows.place).index_select(2, columns.place)


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether reading a value of ``tensor`` makes the host wait for the device."""
    return tensor.is_cuda


def _all_pixels(logits: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """:func:`upsampled_classes` by the logits of all pixels."""
    kind = torch.uint8 if logits.shape[1] <= 256 else torch.int32
    step = max(1, _PIXELS // (logits.shape[1] * size[0] * size[1]))
    parts = (interpolate(part, size=size, mode="bilinear") for part in torch.split(logits, step))
    return torch.cat([part.argmax(1).to(kind) for part in parts])


def upsampled_classes(logits: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return the best class (L, H, W) of logits (L, K, h, w) upsampled bilinearly to ``size``; uint8 up to 256 classes.

    It equals ``interpolate(..., mode="bilinear").argmax(1)``, ties to rounding aside. A GPU does that, a few maps at a
    time, as nothing must be read back from it. On a CPU that tensor never exists: logits are interpolated to the
    corners of blocks of about 8 × 8 pixels, where most blocks are decided; in the others the classes that can win are
    compared pixel by pixel.
    """
    if on_gpu(logits):
        return _all_pixels(logits, size)
    rows, columns = (_blocks(n, cells, logits.device) for n, cells in zip(size, logits.shape[-2:], strict=True))
    kind = torch.uint8 if logits.shape[1] <= 256 else torch.int32
    values = logits.shape[1] * len(rows.ends) * len(columns.ends)
    step = max(1, _CORNERS // values)
    return torch.cat([_few_classes(part, rows, columns, kind) for part in torch.split(logits, step)])
