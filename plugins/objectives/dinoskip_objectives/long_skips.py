"""MAE's decoder with long skips (*Decayed Identity Shortcuts*, arXiv:2404.10947; xiao7199/decayed_Identity_shortcuts).

The encoder's last tokens do not enter the decoder: it begins with positions alone, and each of its first blocks is
given the tokens of one encoder block, the last first. So the encoder's late blocks need not carry what early ones know.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from dinoskip.models.positions import sincos_positions
from dinoskip.runtime.randomness import torch_rng
from dinoskip_objectives.mae_config import HEAD_DIM


@torch.no_grad()
def draw_(decoder: nn.Module, seed: int, zero: tuple[str, ...] = ()) -> None:
    """Xavier uniform matrices, zero biases, norms 1 and 0, tokens normal 0.02, in place; from ``seed`` and names alone.

    Matrices whose name ends as one of ``zero`` are zero.
    """
    for name, parameter in decoder.named_parameters():
        rng = torch_rng(seed, "init", "head", name)
        if name.endswith("_token"):
            parameter.normal_(0.0, 0.02, generator=rng)  # the mask token of MAE's decoder
        elif parameter.ndim == 2 and not name.endswith(zero):
            nn.init.xavier_uniform_(parameter, generator=rng)
        else:
            parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)


class LongSkip(nn.Module):
    """Adds to a decoder's stream (B, 1 + N, dim) what an MLP makes of it and of an encoder block's tokens.

    ``mask_token`` stands for the patches that the encoder has not seen. The MLP's last layer starts at zero.
    """

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        self.join = nn.Linear(width + dim, dim)
        self.act = nn.SiLU()
        self.out = nn.Linear(dim, dim)

    def forward(self, stream: Tensor, tokens: Tensor) -> Tensor:
        """Add ``tokens`` (B, 1 + K, width), K ≤ N, to the stream; the K patches are the first of the stream."""
        hidden = self.mask_token.to(tokens.dtype).expand(len(tokens), stream.shape[1] - tokens.shape[1], -1)
        both = torch.cat([torch.cat([tokens, hidden], dim=1), stream], dim=-1)
        added: Tensor = self.out(self.act(self.join(both)))
        return stream + added


class LongSkipDecoder(nn.Module):
    """A ViT with skips on positions and its own CLS token, which sees the encoder through long skips alone.

    Branches, long skips and pixels start at zero, all else as :func:`draw_` says. Positions are sines and cosines, not
    trained and no part of the state.
    """

    positions: Tensor

    def __init__(self, width: int, dim: int, depth: int, kept: int, patch: int, grid: int, *, seed: int = 0) -> None:
        super().__init__()
        norm: Any = partial(nn.LayerNorm, eps=1e-6)  # that of timm's ViTs, which the blocks are
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.embed = nn.Linear(dim, dim)
        self.long = nn.ModuleList([LongSkip(width, dim) for _ in range(min(kept, depth))])
        heads = dim // HEAD_DIM
        self.blocks = nn.Sequential(*(Block(dim, heads, qkv_bias=True, norm_layer=norm) for _ in range(depth)))
        self.norm = norm(dim)
        self.pixels = nn.Linear(dim, 3 * patch**2)
        self.register_buffer("positions", sincos_positions((grid, grid), dim).float(), persistent=False)
        draw_(self, seed, ("attn.proj.weight", "mlp.fc2.weight", "out.weight", "pixels.weight"))

    def forward(self, tokens: Sequence[Tensor], kept: Tensor, removed: Tensor) -> Tensor:
        """Pixels (B, R, 3·patch²) of the patches ``removed`` (B, R), from tokens (B, 1 + K, width) of those ``kept``.

        ``tokens`` are those of the encoder's blocks 2, 4, ...; the last ones enter first.
        """
        places = self.positions[0, torch.cat([kept, removed], dim=1) + 1]
        x = self.embed(torch.cat([self.cls_token.expand(len(kept), -1, -1), places], dim=1))
        for index, block in enumerate(self.blocks):
            if index < len(self.long):
                x = self.long[index](x, tokens[-1 - index])
            x = block(x)
        pixels: Tensor = self.pixels(self.norm(x)[:, -removed.shape[1] :])
        return pixels
