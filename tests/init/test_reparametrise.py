"""The function stays, the weights are larger."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from dinoskip.errors import ConfigError
from dinoskip.init import ModelConfig, build_model, reparametrise_
from dinoskip.init.config import ResidualFreeInit, SkiplessInit
from dinoskip.settings.config import RawConfig, validate
from dinoskip.settings.keys import settings_for_key
from tests.helpers.photographs import photographs

TINY: dict[str, Any] = {"name": "vit_mini_patch8", "depth": 3, "img_size": 32}
FACTORS = {"k1": 3.0, "k2": 3.0, "c1": 2.0, "c2": 10.0}


@torch.no_grad()
@pytest.mark.parametrize("init", [SkiplessInit(), ResidualFreeInit()])
def test_the_function_stays(init: Any) -> None:
    images = photographs(32)
    plain = build_model(ModelConfig(**TINY, skip=False, init=init), 0).double().eval()
    for block in plain.blocks:
        for norm in (block.norm1, block.norm2):
            norm.bias.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    scaled = reparametrise_(copy.deepcopy(plain), **FACTORS)
    before, after = plain(images), scaled(images)
    assert float((after - before).norm() / before.norm()) < 1e-5
    first, second = plain.blocks[1], scaled.get_submodule("blocks.1")
    for name, factor in (("attn.qkv", 3), ("mlp.fc1", 3), ("attn.proj", 2), ("mlp.fc2", 10), ("norm2", 1 / 3)):
        one, other = first.get_submodule(name).weight, second.get_submodule(name).weight
        assert torch.allclose(other, factor * one, rtol=1e-6), name


def test_any_initialisation_takes_it_from_its_settings() -> None:
    config = validate(ModelConfig, RawConfig({**TINY, "skip": False, "reparametrise": FACTORS}))
    scaled = build_model(config, 0).state_dict()
    plain = reparametrise_(build_model(ModelConfig(**TINY, skip=False), 0), **FACTORS).state_dict()
    assert all(torch.equal(tensor, scaled[name]) for name, tensor in plain.items())


def test_an_output_stays_beside_a_skip_and_is_refused_within_it() -> None:
    model = build_model(ModelConfig(**TINY), 0).double().eval()
    images = photographs(32)
    with torch.no_grad():
        before = model(images)
        assert torch.allclose(reparametrise_(model, 2.0, 5.0)(images), before, rtol=1e-9)
    with pytest.raises(ConfigError, match=r"c2=10 changes the function where the skip"):
        reparametrise_(model, c2=10.0)
    with pytest.raises(ConfigError, match="above 0"):
        reparametrise_(model, k1=0.0)
    for skip, name in (("attention", "c1"), ("mlp", "c2"), (True, "c1")):
        with pytest.raises(ConfigError, match=rf"reparametrise\.{name}: changes the function"):
            validate(ModelConfig, RawConfig({**TINY, "skip": skip, "reparametrise": {name: 2.0}}))


def test_off_is_no_part_of_a_key() -> None:
    assert "reparametrise" not in settings_for_key(ModelConfig())
    scaled = ModelConfig.model_validate({"skip": False, "reparametrise": {"k1": 3}})
    assert settings_for_key(scaled)["reparametrise"] == {"k1": 3.0}
