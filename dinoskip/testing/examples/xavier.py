"""Uniform Xavier matrices in every block (Glorot and Bengio, 2010), as in Dosovitskiy et al. 2021."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import nn

from dinoskip.init.assign import Assignments, plain_blocks
from dinoskip.runtime.randomness import torch_rng
from dinoskip.settings.config import Config


class XavierInit(Config):
    """Uniform Xavier weights in attention and MLP, biases of zero."""

    name: Literal["xavier"] = "xavier"
    gain: float = Field(1.0, gt=0)

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """Yield name and value of each tensor that this method assigns."""
        for block in plain_blocks(model, "xavier", layer_scale=True):
            for layer, linear in block.layers.items():
                name = f"{block.prefix}.{layer}.weight"
                empty = torch.empty(linear.weight.shape, dtype=torch.float64)
                yield name, nn.init.xavier_uniform_(empty, self.gain, generator=torch_rng(seed, "init", name))
                yield from block.zero_biases(layer)
