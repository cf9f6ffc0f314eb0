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

from dinoskip.diagnostics.activations import block_activations
from dinoskip.diagnostics.attention import attention_measures
from dinoskip.diagnostics.gaussianity import excess_kurtosis
from dinoskip.diagnostics.gradients import PARTS, part_norms
from dinoskip.diagnostics.jacobian import evenly, weight_jacobian
from dinoskip.diagnostics.signal import as_input
from dinoskip.errors import DataError
from dinoskip.models.vit import is_plain_attention
from dinoskip.rank_collapse import token_cosine

COUNT = 2
TOKENS = 12
"""Of the first image, in the Jacobian by W_Q, W_K, W_V."""
_TRIED = 20
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

    def _inputs(self, like: Tensor) -> Tensor:
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
        return self._pixels.to(like.device, like.dtype)

    @torch.no_grad()
    def signals(self, backbone: VisionTransformer) -> Row:
        """``entropy``, ``diagonal``, ``token_cosine``, ``kurtosis`` and those κ of head 1 and the first image that
        :class:`dinoskip.diagnostics.BlockRow` has, too: a list over blocks each.
        """
        modes = [(module, module.training) for module in backbone.modules()]
        backbone.eval()
        try:
            row: Row = {name: [] for name in ("entropy", "diagonal", "token_cosine", "kurtosis", *_KAPPAS)}
            for block in block_activations(backbone, self._inputs(next(backbone.parameters()))):
                measures = attention_measures(block, images=1, heads=1)
                if measures is not None:
                    row["entropy"].append(measures.entropy)
                    row["diagonal"].append(measures.diagonal)
                    row["kappa_attention"].append(measures.kappa_median)
                if block.attention is not None and block.normed is not None and is_plain_attention(block.attention):
                    jacobian = weight_jacobian(block.attention, evenly(block.normed[0], TOKENS))
                    row["kappa_weights"].append(jacobian.kappa)
                    row["kappa_weights_bound"].append(jacobian.bound)
                    row["kappa_weights_ceiling"].append(jacobian.ceiling)
                row["token_cosine"].append(token_cosine(block.inputs if block.normed is None else block.normed))
                row["kurtosis"].append(excess_kurtosis(block.output))
            return {name: values for name, values in row.items() if values}
        finally:
            for module, mode in modes:
                module.training = mode


def gradient_rows(backbone: VisionTransformer, of: Callable[[nn.Parameter], Tensor | None]) -> Row:
    """``grad_query`` ... ``grad_fc2``, a list over blocks each; ``of`` gives a parameter's whole gradient."""
    blocks: Sequence[dict[str, Tensor]] = [part_norms(block, of) for block in backbone.blocks]
    parts = [part for part in PARTS if all(part in block for block in blocks)]
    if not parts:
        return {}
    norms = torch.stack([torch.stack([block[part] for block in blocks]) for part in parts]).tolist()
    return {f"grad_{part}": values for part, values in zip(parts, norms, strict=True)}
