"""A small ViT of ours."""

from __future__ import annotations

import pytest
import torch

from dinoskip.models import create_model


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return create_model("vit_tiny_patch8", depth=2, img_size=16).eval()
