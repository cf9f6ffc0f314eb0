"""A float64 ViT of two blocks, and images for it."""

from __future__ import annotations

import torch

from dinoskip.models import Backbone, create_model
from dinoskip.randomness import torch_rng


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch_rng(seed, "instruments"))


def network(skip: bool = True, **kw: object) -> Backbone:
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16", skip=skip, depth=2, img_size=48, embed_dim=24, num_heads=3, **kw)
    return Backbone.from_model(model.double())


IMAGES = randn(2, 3, 48, 48, seed=9)
