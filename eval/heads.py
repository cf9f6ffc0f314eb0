"""Linear segmentation heads: logits of patch tokens, upsampled predictions, and their file.

Shapes: T = h·w tokens, C channels, K classes. BatchNorm is folded in: logits = tokens · Wᵀ + b on tokens as stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.errors import DataError
from dinoskip.files import load_tensors, save_tensors, tensors_metadata

_BAND = {"cpu": 2**20, "cuda": 2**26}  # upsampled logits held at once: a CPU wants them in its cache


@dataclass(frozen=True)
class LinearHead:
    """A 1×1 convolution on one block's tokens, or on several blocks' concatenated channels (multiscale).

    ``weights[block]`` is float32 (K, C), the columns of that block; ``bias`` float32 (K,). The concatenation is never
    made: a head of several blocks is the sum of their products.
    """

    weights: dict[int, torch.Tensor]
    bias: torch.Tensor

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks it reads."""
        return tuple(self.weights)

    def logits(self, tokens: Mapping[int, Any]) -> torch.Tensor:
        """Return float32 (..., T, K) for tokens (..., T, C) of each of its blocks."""
        total = self.bias
        for block, weight in self.weights.items():
            total = total + torch.as_tensor(tokens[block], dtype=torch.float32, device=weight.device) @ weight.T
        return total


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


def _contenders(logits: torch.Tensor) -> torch.Tensor:
    """Return bool (L, K): classes that may win somewhere between the tokens of logits (L, K, h, w).

    Bilinear interpolation is a convex combination of four corners: a class that another one exceeds at all four
    cannot win in that cell.
    """
    h, w = logits.shape[-2:]
    padded = torch.nn.functional.pad(logits, (0, 1, 0, 1), mode="replicate")
    corners = [padded[..., y : y + h, x : x + w] for y in (0, 1) for x in (0, 1)]
    beaten = torch.zeros_like(logits, dtype=torch.bool)
    for at in corners:
        winner = at.max(1, keepdim=True).indices
        less = torch.ones_like(beaten)
        for other in corners:
            less &= other < other.gather(1, winner)
        beaten |= less
    return ~beaten.flatten(2).all(2)


def upsampled_classes(logits: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return the classes int64 (L, H, W) of logits (L, K, h, w) upsampled bilinearly to ``size``.

    Only classes that can win are upsampled, all L with as many as the one that has most; the result is the same.
    """
    contenders = _contenders(logits)
    most = int(contenders.sum(1).max())
    chosen = contenders.byte().argsort(dim=1, descending=True, stable=True)[:, :most].sort(dim=1).values
    few = logits.gather(1, chosen[..., None, None].expand(-1, -1, *logits.shape[-2:]))
    wide = few @ bilinear(size[1], logits.shape[-1]).to(logits.device).T
    rows = bilinear(size[0], logits.shape[-2]).to(logits.device)
    band = max(1, _BAND[logits.device.type] * logits.shape[-2] // wide.numel())
    # max is several times faster than argmax over a dimension that is not the last
    found = [(rows[at : at + band] @ wide).max(1).indices for at in range(0, size[0], band)]
    return chosen.gather(1, torch.cat(found, 1).flatten(1)).view(-1, *size)


def predict(
    head: LinearHead, tokens: Any | Mapping[int, Any], grid: tuple[int, int], size: tuple[int, int]
) -> NDArray[np.uint8]:
    """Return the predicted classes uint8 (H, W) of one image at ``size``.

    ``tokens`` are (h·w, C), or a mapping block -> (h·w, C) for a head of several blocks.
    """
    given = tokens if isinstance(tokens, Mapping) else {head.blocks[0]: tokens}
    logits = head.logits(given)
    maps = logits.T.reshape(1, -1, *grid)
    return np.asarray(upsampled_classes(maps, size)[0].to(torch.uint8).cpu().numpy())


def _prefix(head: LinearHead) -> str:
    return "multiscale." if len(head.blocks) > 1 else ""


def save_heads(path: Path, heads: Sequence[LinearHead], info: Mapping[str, Any]) -> None:
    """Write heads as safetensors, atomically.

    A head of one block is ``block{b}.weight`` (K, C) and ``block{b}.bias`` (K,); one of several blocks is
    ``multiscale.block{b}.weight`` for each and ``multiscale.bias``. ``info`` goes into the metadata as JSON.
    """
    tensors: dict[str, torch.Tensor] = {}
    for head in heads:
        several = len(head.blocks) > 1
        for block, weight in head.weights.items():
            tensors[f"{_prefix(head)}block{block}.weight"] = weight
        tensors["multiscale.bias" if several else f"block{head.blocks[0]}.bias"] = head.bias
    save_tensors(path, tensors, {"dinoskip_heads": json.dumps(dict(info), sort_keys=True)})


def load_heads(path: Path) -> tuple[list[LinearHead], dict[str, Any]]:
    """Read what :func:`save_heads` wrote: heads by block, the multiscale one last, and the info."""
    metadata = tensors_metadata(path).get("dinoskip_heads")
    if metadata is None:
        raise DataError(f"{path}: holds no linear heads")
    tensors = load_tensors(path)
    single: dict[int, LinearHead] = {}
    several: dict[int, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(".weight"):
            block = int(name.removesuffix(".weight").rpartition("block")[2])
            if name.startswith("multiscale."):
                several[block] = tensor
            else:
                single[block] = LinearHead({block: tensor}, tensors[f"block{block}.bias"])
    heads = [single[block] for block in sorted(single)]
    if several:
        heads.append(LinearHead(dict(sorted(several.items())), tensors["multiscale.bias"]))
    return heads, json.loads(metadata)
