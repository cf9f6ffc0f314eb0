"""Registers in what objectives read: the class token is the first of the prefix, and registers are dropped."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dinoskip.init.build import build_model
from dinoskip.init.config import ModelConfig
from dinoskip_objectives.distill import DistilledNetwork
from dinoskip_objectives.extended import TokensMultiCrop
from dinoskip_objectives.ibot import IbotNetwork
from dinoskip_objectives.masked import visible_blocks, visible_tokens

SMALL: dict[str, Any] = {"name": "vit_mini_patch8", "depth": 2, "img_size": 32, "drop_path": 0.0}


def images(size: int = 32) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_visible_tokens_are_those_of_the_whole_pass_without_registers() -> None:
    """In MAE's visible tokens, and in those of every so many blocks."""
    model = build_model(ModelConfig(**SMALL, registers=3), 3).eval()
    every = torch.arange(model.patch_embed.num_patches).expand(2, -1)
    whole = model.forward_features(images())
    found = visible_tokens(model, images(), every)
    torch.testing.assert_close(found[:, 0], whole[:, 0])
    torch.testing.assert_close(found[:, 1:], whole[:, 4:])
    torch.testing.assert_close(model.norm(visible_blocks(model, images(), every, 1)[-1]), found)


class Seen(nn.Module):
    """A head that gives back what it is given."""

    mask_token = None

    def forward(self, *given: Tensor) -> Any:
        return given if len(given) > 1 else given[0]

    unit = score = score_patches = forward


@torch.no_grad()
def test_heads_of_objectives_are_given_the_class_token_not_a_register() -> None:
    model = build_model(ModelConfig(**SMALL, registers=3), 3).eval()
    whole, seen = model.forward_features(images()), Seen()
    mapped = DistilledNetwork(model, seen)(images()).tokens  # type: ignore[arg-type]
    torch.testing.assert_close(list(mapped), [whole[:, 4:], whole[:, 0]])
    scores = IbotNetwork(model, seen)(images(), torch.arange(2))  # type: ignore[arg-type]
    torch.testing.assert_close(scores.cls, whole[:, 0])
    torch.testing.assert_close(scores.patches, whole[0, 4:6])
    outputs = TokensMultiCrop(model, seen)(images())  # type: ignore[arg-type]
    torch.testing.assert_close(outputs.compared, whole[:, 0])
    torch.testing.assert_close(outputs.cls, whole[:, 0])
    torch.testing.assert_close(outputs.patches, whole[:, 4:])
