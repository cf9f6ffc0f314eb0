"""A ViT-Tiny of a few blocks with random weights, the same every time."""

from __future__ import annotations

import torch

from dinoskip.models import Backbone, create_model


def tiny_vit(patch: int = 16, size: int = 32, depth: int = 2, **options: object) -> Backbone:
    """``depth`` blocks with patches of ``patch`` pixels, for images of ``size``; ``options`` of ``create_model``."""
    torch.manual_seed(0)
    return Backbone.from_model(create_model(f"vit_tiny_patch{patch}", depth=depth, img_size=size, **options))
