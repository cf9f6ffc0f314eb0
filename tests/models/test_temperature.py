"""The temperature as a module: the function of the folded one, other steps under Adam, kept with the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.init.build import build_model
from dinoskip.init.config import ModelConfig
from dinoskip.models import VitConfig, build_from_weights, load_backbone, save_timm_folder, save_weights
from dinoskip.models.attention_sites import head_factors, is_plain_attention
from dinoskip.models.temperature import Temperature, temper_, temperatures
from dinoskip.settings.config import dump
from dinoskip.settings.vit_config import TemperatureConfig

DEPTH, BETA = 12, 1.1
SHAPE: dict[str, Any] = {"name": "vit_mini_patch8", "depth": DEPTH, "img_size": 32, "skip": False}


def folded() -> nn.Module:
    return build_model(ModelConfig(**SHAPE, init={"name": "residual_free", "beta": BETA}), 0).double()


def as_module(**more: Any) -> nn.Module:
    temperature = TemperatureConfig(beta=BETA, **more)
    return build_model(ModelConfig(**SHAPE, init={"name": "residual_free"}, temperature=temperature), 0).double()


def images() -> Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def queries(model: nn.Module, block: int) -> nn.Parameter:
    return model.get_submodule(f"blocks.{block}.attn.qkv").get_parameter("weight")


def test_it_is_the_function_of_the_folded_temperature_with_and_without_fused_attention() -> None:
    plain, module = folded(), as_module()
    assert plain.state_dict().keys() == module.state_dict().keys()
    expected = plain(images())
    for fused in (True, False):
        for block in module.get_submodule("blocks").children():
            block.get_submodule("attn").fused_attn = fused
        torch.testing.assert_close(module(images()), expected, rtol=1e-6, atol=1e-7)
    for one, other in zip(plain.get_submodule("blocks"), module.get_submodule("blocks"), strict=True):
        torch.testing.assert_close(head_factors(one.attn), head_factors(other.attn), rtol=1e-6, atol=1e-7)


def test_folded_into_the_weights_adams_relative_steps_are_larger_by_one_over_tau() -> None:
    """Adam moves all weights by about the learning rate, and folded weights are smaller: 3.1 times at block 12."""
    models = {"folded": folded(), "module": as_module()}
    relative = {}
    for name, model in models.items():
        before = [queries(model, block)[:128].detach().clone() for block in range(DEPTH)]
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, eps=1e-30)
        torch.autograd.backward(model(images()).square().sum())
        optimizer.step()
        moved = [(queries(model, block)[:128] - old).norm() / old.norm() for block, old in enumerate(before)]
        relative[name] = torch.stack(moved).detach()
    ratio = relative["folded"] / relative["module"]
    torch.testing.assert_close(
        ratio, torch.tensor([BETA**block for block in range(1, DEPTH + 1)]).double(), rtol=1e-3, atol=0
    )
    assert 3.1 < ratio[-1] < 3.2


def test_factors_are_those_of_the_paper_or_of_the_other_reading() -> None:
    for more in ({}, {"first_layer": 0, "mode": "divide"}):
        blocks = as_module(**more).get_submodule("blocks")
        norms = [block.attn.q_norm for block in blocks]
        assert all(isinstance(norm, Temperature) for norm in norms)
        assert [norm.factor for norm in norms] == temperatures(DEPTH, BETA, **more)
        assert all(is_plain_attention(block.attn) for block in blocks)
        assert "factor=" in repr(norms[0])


def test_it_is_recorded_with_the_weights_and_applied_when_they_are_loaded(tmp_path: Path) -> None:
    config = VitConfig(**SHAPE, temperature=TemperatureConfig(beta=1.3, mode="divide"))
    bare = VitConfig(**SHAPE)
    assert "temperature" not in dump(bare)
    model = build_model(ModelConfig(**SHAPE, temperature=config.temperature), 1)
    save_weights(tmp_path / "w.safetensors", model.state_dict(), config, {})
    save_weights(tmp_path / "bare.safetensors", model.state_dict(), bare, {})
    save_timm_folder(tmp_path / "timm", model.state_dict(), config, {})
    pixels, expected = images().float(), model.eval()(images().float())
    torch.testing.assert_close(build_from_weights(tmp_path / "w.safetensors")[0].eval()(pixels), expected)
    of_timm = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    torch.testing.assert_close(of_timm(pixels), expected)
    tempered, without = (load_backbone(f"weights:{tmp_path / name}.safetensors") for name in ("w", "bare"))
    assert any("temperature" in fact for fact in tempered.beside_weights)
    assert without.beside_weights == [fact for fact in tempered.beside_weights if "temperature" not in fact]
    torch.testing.assert_close(tempered.layers(pixels, [DEPTH], norm="final")[DEPTH].cls, expected)


def test_twice_the_temperature_and_norms_of_queries_are_refused() -> None:
    with pytest.raises(ValueError, match="folds it into W"):
        ModelConfig(**SHAPE, init={"name": "residual_free", "beta": 1.1}, temperature=TemperatureConfig())
    with pytest.raises(ConfigError, match="norm of their queries"):
        temper_(timm.create_model("vit_tiny_patch16_224", depth=1, qk_norm=True).blocks, TemperatureConfig())
