"""Requirements on every initialisation, on models with and without skips."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from dinoskip.errors import ConfigError
from dinoskip.init import ModelConfig, build_model
from dinoskip.init.build import initialise, tensors_of
from dinoskip.init.config import (
    CalibratedInit,
    ConditionedInit,
    MaeInit,
    MimeticInit,
    ResidualFreeInit,
    SkiplessInit,
    TruncNormalInit,
    WeightSelectionInit,
    needs_images,
)
from dinoskip.init.default import default_tensors
from dinoskip.models import create_model
from tests.helpers.photographs import photographs

INITS: dict[str, Any] = {
    "trunc_normal": TruncNormalInit(),
    "skipless": SkiplessInit(),
    "skipless split": SkiplessInit(heads="split", mlp="orthogonal"),
    "skipless uniform": SkiplessInit(noise="uniform", mlp="default", c=(1.0, 2.0)),
    "skipless svd": SkiplessInit(draw="svd"),
    "skipless by width": SkiplessInit(scale="width"),
    "mimetic": MimeticInit(),
    "conditioned": ConditionedInit(v="blocked"),
    "residual_free": ResidualFreeInit(beta=1.1),
    "residual_free factor": ResidualFreeInit(reading="factor", mode="divide", first_layer=0),
    "weight_selection": WeightSelectionInit(teacher="timm:vit_small_patch16_224,pretrained=false,depth=3,img_size=32"),
    "mae": MaeInit(),
    "calibrated": CalibratedInit(),
    "calibrated fully": CalibratedInit(centring=1.0, gain=2.0, diagonal=0.3),
    "calibrated, mixing": CalibratedInit(mixing_heads=1, mixing_every=1),
}


@pytest.fixture(params=[True, False], ids=["skip", "skipless"])
def config(request: pytest.FixtureRequest, init: Any) -> ModelConfig:
    return ModelConfig(name="vit_tiny_patch16", depth=2, img_size=32, skip=request.param, init=init)


@pytest.fixture(params=INITS)
def init(request: pytest.FixtureRequest) -> Any:
    return INITS[request.param]


def images_for(init: Any) -> Tensor | None:
    return photographs(32) if needs_images(init) else None


@functools.cache
def state_of(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    return dict(build_model(config, seed, images=images_for(config.init)).state_dict())


def test_every_parameter_is_assigned_exactly_once(config: ModelConfig) -> None:
    model = create_model("vit_tiny_patch16", skip=config.skip, depth=2, img_size=32)
    own = [name for name, _ in tensors_of(config.init, model, 0, images_for(config.init))]
    rest = [name for name, _ in default_tensors(model, 0, without=own)]
    assert Counter(own + rest) == Counter(name for name, _ in model.named_parameters())


def test_what_was_there_before_does_not_matter(config: ModelConfig) -> None:
    model = create_model("vit_tiny_patch16", skip=config.skip, depth=2, img_size=32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    initialise(model, config.init, 0, images_for(config.init))
    from_nan = state_of(config, 0)
    assert all(torch.equal(tensor, from_nan[name]) for name, tensor in model.state_dict().items())


def test_seeds_and_layers_differ(config: ModelConfig) -> None:
    first, other = state_of(config, 0), state_of(config, 1)
    random = config.init.name != "weight_selection"
    for part in ("attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"):
        assert torch.equal(first[f"blocks.0.{part}"], other[f"blocks.0.{part}"]) is not random
        assert not torch.equal(first[f"blocks.0.{part}"], first[f"blocks.1.{part}"])


def test_the_global_generator_is_left_alone(config: ModelConfig) -> None:
    first = state_of(config, 0)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    again = build_model(config, 0, images=images_for(config.init)).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())


def test_names_shapes_and_finite_outputs(config: ModelConfig) -> None:
    model = create_model("vit_tiny_patch16", skip=config.skip, depth=2, img_size=32).eval()
    model.load_state_dict(state_of(config, 0), strict=True)
    output = model(torch.randn(2, 3, 32, 48))
    assert output.isfinite().all()
    assert not torch.allclose(output[0], output[1], atol=1e-4)


def test_biases_are_zero_or_measured_on_images(config: ModelConfig) -> None:
    if needs_images(config.init):
        with pytest.raises(ConfigError, match="is measured on images, and there are none"):
            build_model(config, 0)
        return
    for name, tensor in state_of(config, 0).items():
        if name.endswith("bias") and (".attn." in name or ".mlp." in name):
            assert (tensor == 0).all(), name
