"""torch.hub loads our models from a checkout."""

from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


def test_models_and_backbones_from_a_checkout() -> None:
    name = "skipless_vit_mini_patch16_224"
    model = torch.hub.load(str(ROOT), name, source="local", num_classes=0, depth=1)
    assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 128)
    spec = "timm:vit_tiny_patch16_224,pretrained=false,depth=1"
    assert torch.hub.load(str(ROOT), "backbone", spec, source="local").depth == 1
