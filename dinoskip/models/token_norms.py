"""LayerNorms of which the CLS token (and registers) and the patches each have gains and biases of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TokenNorm(nn.LayerNorm):
    """A LayerNorm of tokens (B, ``prefix`` + N, C): ``cls_weight`` and ``cls_bias`` are of the first ``prefix``.

    ``weight`` and ``bias`` are of the patches. With equal gains and biases it is a LayerNorm, bit for bit.
    """

    def __init__(self, width: int, eps: float = 1e-6, *, prefix: int = 1, **place: Any) -> None:
        super().__init__(width, eps=eps, **place)
        self.prefix = prefix
        self.cls_weight = nn.Parameter(torch.ones(width, **place))
        self.cls_bias = nn.Parameter(torch.zeros(width, **place))

    def forward(self, tokens: Tensor) -> Tensor:
        """Normalise all tokens of images together; ValueError for anything else."""
        if tokens.ndim != 3 or tokens.shape[1] <= self.prefix:
            raise ValueError(f"tokens {tuple(tokens.shape)}: all of an image, (B, {self.prefix} + N, C), are needed")
        prefix_tokens = F.layer_norm(
            tokens[:, : self.prefix], self.normalized_shape, self.cls_weight, self.cls_bias, self.eps
        )
        patches = F.layer_norm(tokens[:, self.prefix :], self.normalized_shape, self.weight, self.bias, self.eps)
        return torch.cat([prefix_tokens, patches], dim=1)
