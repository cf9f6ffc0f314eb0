"""Small networks: a float64 ViT of two blocks and images for it, one of any settings with random weights."""

from __future__ import annotations

from typing import Any

import torch

from dinoskip.models import Backbone, VitConfig, create_model
from dinoskip.models.build import from_config
from dinoskip.runtime.randomness import torch_rng


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch_rng(seed, "instruments"))


def network(skip: bool = True, **kw: object) -> Backbone:
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16", skip=skip, depth=2, img_size=48, embed_dim=24, num_heads=3, **kw)
    return Backbone.from_model(model.double())


IMAGES = randn(2, 3, 48, 48, seed=9)


def equal_to(backbone: Backbone, model: Any) -> bool:
    """Whether a backbone computes what ``model`` does, at the size of its positions, 16 pixels."""
    square = randn(2, 3, 16, 16).float()
    return torch.equal(backbone.layers(square, [2], norm="final")[2].tokens, model.forward_features(square)[:, 1:])


def random_vit(**settings: Any) -> tuple[Any, VitConfig]:
    """A network of two blocks with random weights, and its configuration."""
    config = VitConfig(**({"name": "vit_tiny_patch16", "depth": 2, "img_size": 64} | settings))
    torch.manual_seed(0)
    model = from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    return model, config
