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
from dinoskip.io.files import load_tensors, read_tensor_header, save_tensors
from eval.upsampling import upsampled_classes


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
    info = _info(path)
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
    return heads, info


def head_classes(path: Path) -> tuple[str, ...]:
    """The names of the classes that heads of a file tell apart; () where it has none, or there is no file."""
    return tuple(_info(path).get("classes", ())) if path.is_file() else ()


def _info(path: Path) -> dict[str, Any]:
    metadata = read_tensor_header(path).metadata.get("dinoskip_heads")
    if metadata is None:
        raise DataError(f"{path}: holds no linear heads")
    info: dict[str, Any] = json.loads(metadata)
    return info
