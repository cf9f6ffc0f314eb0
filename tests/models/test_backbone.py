"""The interface; what every backbone must do is in tests/conformance/test_backbones.py."""

from __future__ import annotations

import pytest
import torch

from dinoskip.errors import ConfigError
from dinoskip.models import Backbone, create_model

IMAGES = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))


def test_no_final_norm() -> None:
    model = create_model("vit_tiny_patch8", depth=1, img_size=16, final_norm=False)
    with pytest.raises(ValueError, match="no final norm"):
        Backbone.from_model(model).layers(IMAGES, [1], norm="final")


def test_other_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="model: it does not take an image of 224×224 pixels"):
        Backbone.from_model(torch.nn.Linear(2, 2))


def test_the_hash_is_of_the_weights_before_a_change_of_dtype() -> None:
    models = [create_model("vit_tiny_patch8", depth=1, img_size=16) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    first, second = (Backbone.from_model(model) for model in models)
    assert second.to("cpu", torch.float64).weights_hash == first.weights_hash
    assert Backbone.from_model(models[1]).weights_hash != first.weights_hash
