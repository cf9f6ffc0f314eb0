"""A cheap look inside while a network trains: every N steps, on the same two images, one row of ``diagnostics.jsonl``.

Attention entropy and diagonal, condition numbers, token cosine and kurtosis come from one forward pass of two images;
gradient norms are of the step's own gradients, before clipping. Nothing that training uses is changed: no random number
is drawn, modes are put back, no gradient is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dinoskip.diagnostics.activations import BlockActivations, block_activations
from dinoskip.diagnostics.attention import attention_tensors, measures_of
from dinoskip.diagnostics.gaussianity import Moments
from dinoskip.diagnostics.gradients import PARTS, part_norms
from dinoskip.diagnostics.jacobian import evenly, jacobian_of, scaled_factors
from dinoskip.diagnostics.signal import as_input
from dinoskip.errors import DataError
from dinoskip.models.attention_sites import is_plain_attention
from dinoskip.models.rank_collapse import token_cosine_on_device

COUNT = 2  # each costs a forward pass at every look, in the middle of a training
TOKENS = 12
"""Of the first image, in the Jacobian by W_Q, W_K, W_V."""
_TRIED = 20  # images: a set that begins with more bad ones than that is refused, not read through
_KAPPAS = ("kappa_attention", "kappa_weights", "kappa_weights_bound", "kappa_weights_ceiling")
Row = dict[str, list[float]]


class ImageReader(Protocol):
    """What the two images come from."""

    def read(self, index: int) -> np.ndarray:
        """Decode image ``index`` to uint8 (H, W, 3); :class:`DataError` if it cannot be."""

    def __len__(self) -> int: ...


class LiveDiagnostics:
    """Looks at a training network. The images are the first two of the set that can be read: the same in every session.

    ``size`` is their side in pixels. Nothing is read before the first look.
    """

    def __init__(self, images: ImageReader, size: int) -> None:
        self._images, self._size = images, size
        self._pixels: Tensor | None = None

    def _inputs(self, parameter: Tensor) -> Tensor:
        if self._pixels is None:
            pixels = []
            for index in range(min(len(self._images), _TRIED)):
                try:
                    pixels.append(as_input(self._images.read(index), self._size))
                except DataError:  # training itself tells of images that cannot be read
                    continue
                if len(pixels) == COUNT:
                    break
            if not pixels:
                raise DataError(f"none of the first {_TRIED} images can be read")
            self._pixels = torch.stack(pixels)
        return self._pixels.to(parameter.device, parameter.dtype, non_blocking=True)

    @torch.no_grad()
    def signals(self, backbone: VisionTransformer) -> Row:
        """``entropy``, ``diagonal``, ``token_cosine``, ``kurtosis`` and those κ of head 1 and the first image that
        :class:`dinoskip.diagnostics.BlockRow` has, too: a list over blocks each.
        """
        modes = [(module, module.training) for module in backbone.modules()]
        parameter = next(backbone.parameters())
        backbone.eval()
        try:
            looked = [_tensors(block) for block in block_activations(backbone, self._inputs(parameter))]
        finally:
            for module, mode in modes:
                module.training = mode
        return _row_of(looked)


def _tensors(block: BlockActivations) -> dict[str, list[Tensor]]:
    """What a block's values are made of, where it lies; nothing is waited for."""
    tensors = {
        "collapse": [token_cosine_on_device(block.inputs if block.normed is None else block.normed)],
        "kurtosis": [Moments.of(block.output).excess_kurtosis],
    }
    attention = attention_tensors(block, images=1, heads=1)
    if attention is not None:
        tensors["attention"] = list(attention)
    if block.attention is not None and block.normed is not None and is_plain_attention(block.attention):
        tensors["jacobian"] = [evenly(block.normed[0], TOKENS), *scaled_factors(block.attention)]
    return tensors


def _row_of(looked: Sequence[dict[str, list[Tensor]]]) -> Row:
    """The lists over blocks, from one copy to the host."""
    host = iter(_on_host([tensor for block in looked for part in block.values() for tensor in part]))
    row: Row = {name: [] for name in ("entropy", "diagonal", "token_cosine", "kurtosis", *_KAPPAS)}
    for block in looked:
        part = {name: [next(host) for _ in tensors] for name, tensors in block.items()}
        row["token_cosine"].append(float(part["collapse"][0]))
        row["kurtosis"].append(float(part["kurtosis"][0]))
        if "attention" in part:
            measures = measures_of(*part["attention"])
            row["entropy"].append(measures.entropy)
            row["diagonal"].append(measures.diagonal)
            row["kappa_attention"].append(measures.kappa_median)
        if "jacobian" in part:
            jacobian = jacobian_of(*part["jacobian"])
            row["kappa_weights"].append(jacobian.kappa)
            row["kappa_weights_bound"].append(jacobian.bound)
            row["kappa_weights_ceiling"].append(jacobian.ceiling)
    return {name: values for name, values in row.items() if values}


def _on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one device on the host, those of a GPU as float64 and by one copy."""
    if not tensors or tensors[0].device.type == "cpu":
        return list(tensors)
    packed = torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors]).cpu()
    parts = torch.split(packed, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def gradient_rows(backbone: VisionTransformer, of: Callable[[nn.Parameter], Tensor | None]) -> Row:
    """``grad_query`` ... ``grad_fc2``, a list over blocks each; ``of`` gives a parameter's whole gradient."""
    blocks: Sequence[dict[str, Tensor]] = [part_norms(block, of) for block in backbone.blocks]
    parts = [part for part in PARTS if all(part in block for block in blocks)]
    if not parts:
        return {}
    norms = torch.stack([torch.stack([block[part] for block in blocks]) for part in parts]).tolist()
    return {f"grad_{part}": values for part, values in zip(parts, norms, strict=True)}
