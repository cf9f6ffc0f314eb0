"""Registers, and LayerNorms of the CLS token's own: timm's function, float64 by hand, files, positions, training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor
from torch.nn import functional as F

from dinoskip.errors import ConfigError
from dinoskip.init import build_model
from dinoskip.init.config import ModelConfig
from dinoskip.models import load_backbone, save_weights
from dinoskip.models.levels import TimmLevels
from dinoskip.models.timm_registry import timm_config
from dinoskip.models.token_norms import TokenNorm
from dinoskip.models.transformers_layout import save_transformers_folder
from dinoskip.models.vit import dino_positions
from dinoskip.optim.groups import is_decayed
from dinoskip.settings.config import dump
from dinoskip.settings.flops import block_flops, vit_flops, vit_parameters
from dinoskip.settings.vit_config import VitConfig
from dinoskip.training import pretrain
from dinoskip.training.objectives import PretrainJob
from tests.helpers.tiny import SMALL_OBJECTIVES, objective_job, rows_of, tensor_hashes
from tests.training.test_resume import folder, killed_before

SMALL: dict[str, Any] = {"name": "vit_mini_patch8", "depth": 2, "img_size": 32, "drop_path": 0.0}
BOTH = {"registers": 3, "cls_norms": True}


def images(size: int = 32) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_registers_are_timms_and_stand_between_the_cls_token_and_the_patches() -> None:
    model = build_model(ModelConfig(**SMALL, registers=3), 0).eval()
    theirs = timm.create_model(
        "vit_tiny_patch16_224", embed_dim=128, num_heads=2, depth=2, patch_size=8, img_size=32, num_classes=0,
        reg_tokens=3, no_embed_class=True, dynamic_img_size=True,
    ).eval()  # fmt: skip
    theirs.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(model.forward_features(images()), theirs.forward_features(images()), rtol=0, atol=0)
        tokens = model._pos_embed(model.patch_embed(images()))
    assert tokens.shape == (2, 1 + 3 + 16, 128)
    torch.testing.assert_close(tokens[:, 1:4], model.get_parameter("reg_token").expand(2, -1, -1))
    assert 0 < model.get_parameter("reg_token").std() < 1e-5
    assert model.get_parameter("pos_embed").shape == (1, 16, 128), "registers and the CLS token have no position"


def test_positions_of_another_size_count_patches_alone() -> None:
    model = build_model(ModelConfig(**SMALL, registers=3), 0).eval()
    assert model.position_resize == "dino"
    with torch.no_grad():
        tokens = model._pos_embed(model.patch_embed(images(48)))
        placed = tokens[:, 4:] - model.patch_embed(images(48)).flatten(1, 2)
    with_cls = torch.cat([torch.zeros(1, 1, 128), model.get_parameter("pos_embed")], 1)
    torch.testing.assert_close(placed[0], dino_positions(with_cls, (6, 6))[0, 1:].detach(), rtol=1e-4, atol=1e-5)


def test_equal_norms_are_one_norm_bit_for_bit_and_others_are_not() -> None:
    norm, shared, tokens = TokenNorm(8, prefix=2), torch.nn.LayerNorm(8, eps=1e-6), torch.randn(2, 7, 8)
    torch.testing.assert_close(norm(tokens), shared(tokens), rtol=0, atol=0)
    with torch.no_grad():
        norm.cls_weight.fill_(2.0)
        norm.cls_bias.fill_(1.0)
    plain = F.layer_norm(tokens.double(), (8,), eps=1e-6)
    torch.testing.assert_close(norm(tokens)[:, :2].double(), 2 * plain[:, :2] + 1, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(norm(tokens)[:, 2:], shared(tokens)[:, 2:], rtol=0, atol=0)
    for wrong in (tokens[0], tokens[:, :2]):
        with pytest.raises(ValueError, match="all of an image"):
            norm(wrong)


def test_a_network_with_equal_norms_is_the_one_that_shares_them() -> None:
    own, shared = (build_model(ModelConfig(**SMALL, cls_norms=one), 0).eval() for one in (True, False))
    extra = {name for name in own.state_dict() if name.split(".")[-1].startswith("cls_") and "." in name}
    assert len(extra) == 2 * (2 * 2 + 1)
    assert not any(is_decayed(name, own.get_parameter(name)) for name in extra)
    shared.load_state_dict({name: value for name, value in own.state_dict().items() if name not in extra})
    with torch.no_grad():
        torch.testing.assert_close(own.forward_features(images()), shared.forward_features(images()), rtol=0, atol=0)


@pytest.mark.parametrize("settings", [{"registers": 3}, {"cls_norms": True}, BOTH])
@pytest.mark.parametrize("skip", [True, False])
def test_weights_files_hold_them(settings: dict[str, Any], skip: bool, tmp_path: Path) -> None:
    config = ModelConfig(**SMALL, **settings, skip=skip)
    model = build_model(config, 3).eval()
    save_weights(tmp_path / "own.safetensors", model.state_dict(), config, {})
    backbone = load_backbone(f"weights:{tmp_path / 'own.safetensors'}")
    found = backbone.layers(images(), [1, 2], norm="final")[2]
    with torch.no_grad():
        tokens = model.forward_features(images())
    prefix = 1 + settings.get("registers", 0)
    assert backbone.num_prefix_tokens == prefix
    torch.testing.assert_close(found.tokens, tokens[:, prefix:])
    torch.testing.assert_close(found.cls, tokens[:, 0])
    assert config.computes_as_timm == (skip and "cls_norms" not in settings)
    assert sum(value.numel() for value in model.state_dict().values()) == vit_parameters(config)


def test_files_without_them_are_written_as_before_and_transformers_has_no_such_network(tmp_path: Path) -> None:
    assert not {"registers", "cls_norms"} & set(dump(VitConfig()))
    assert dump(VitConfig(registers=2))["registers"] == 2
    config = ModelConfig(**SMALL, **BOTH)
    with pytest.raises(ConfigError, match="registers, cls_norms"):
        save_transformers_folder(tmp_path, build_model(config, 0).state_dict(), config)


@pytest.mark.parametrize("settings", [{"registers": 2}, {"cls_norms": True, "skip": False}])
def test_timm_builds_them_from_its_folder(settings: dict[str, Any]) -> None:
    config = ModelConfig(**SMALL, **settings)
    model, about = build_model(config, 0), timm_config(config)
    theirs = timm.create_model(about["architecture"], num_classes=0, **about["model_args"])
    assert {n: v.shape for n, v in theirs.state_dict().items()} == {n: v.shape for n, v in model.state_dict().items()}


def test_registers_cost_their_tokens() -> None:
    plain, more = VitConfig(name="vit_mini_patch8"), VitConfig(name="vit_mini_patch8", registers=4)
    difference = 12 * (block_flops(28**2 + 5, 128) - block_flops(28**2 + 1, 128))
    assert vit_flops(more) - vit_flops(plain) == difference


@pytest.mark.parametrize("objective", SMALL_OBJECTIVES)
def test_every_objective_trains_them(objective: str, tmp_path: Path) -> None:
    tree = dump(objective_job(objective, epochs=1, warmup_epochs=0))
    tree["model"] |= BOTH
    pretrain(PretrainJob.model_validate(tree), folder(), tmp_path, device="cpu")
    rows = rows_of(tmp_path)
    assert rows[-1]["loss"] == rows[-1]["loss"] != rows[0]["loss"]
    state = load_backbone(f"run:{tmp_path}").model.state_dict()
    assert state["reg_token"].std() > 2e-6, "registers are trained"
    assert state["blocks.0.norm1.cls_weight"].std() > 0


def test_a_killed_run_with_them_ends_with_the_bits_of_a_straight_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = dump(objective_job("patch_contrast"))
    tree["model"] |= {**BOTH, "skip_weight": {"end": 0, "fraction": 0.6}}
    job = PretrainJob.model_validate(tree)
    straight = pretrain(job, folder(), tmp_path / "straight", device="cpu")
    killed_before(3, job, tmp_path / "run", monkeypatch)  # in the middle of the ramp, too
    assert tensor_hashes(pretrain(job, folder(), tmp_path / "run", device="cpu")) == tensor_hashes(straight)


@torch.no_grad()
def test_the_class_token_is_the_first_of_the_prefix_in_a_network_that_is_read_level_by_level() -> None:
    model = build_model(ModelConfig(**SMALL, registers=3), 3).eval()
    whole, side = model.forward_features(images()), images().shape[-1]
    last = len(TimmLevels(model, "registers", side).levels) - 1
    level = TimmLevels(model, "registers", side).read(images(), [last])[last]
    assert level.cls is not None
    torch.testing.assert_close(model.norm(level.cls), whole[:, 0])
    torch.testing.assert_close(model.norm(level.tokens), whole[:, 4:])
