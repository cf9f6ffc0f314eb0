"""MAE's first values: bounds of Xavier's matrices, what is zero, what is left to the default."""

from __future__ import annotations

import math

import torch

from dinoskip.init.build import build_model
from dinoskip.init.config import MaeInit, ModelConfig, TruncNormalInit
from dinoskip.models.vit import embed
from dinoskip.settings.vit_config import SkipWeight


def test_matrices_are_xaviers_and_the_patch_embedding_and_qkv_are_one_each() -> None:
    config = ModelConfig(name="vit_tiny_patch16", depth=2, img_size=32, init=MaeInit())
    model = build_model(config, 3)
    default = build_model(config.model_copy(update={"init": TruncNormalInit()}), 3)
    shapes = {"patch_embed.proj.weight": (192, 768), "blocks.0.attn.qkv.weight": (576, 192)}
    shapes |= {"blocks.1.mlp.fc1.weight": (768, 192), "blocks.1.mlp.fc2.weight": (192, 768)}
    for name, shape in shapes.items():
        bound = math.sqrt(6 / sum(shape))
        weight = model.get_parameter(name).detach().flatten(1)
        assert weight.shape == shape
        assert 0.99 * bound < weight.abs().max() <= bound
        assert abs(weight.std() / (bound / math.sqrt(3)) - 1) < 0.02
    assert not any(p.any() for name, p in model.named_parameters() if "blocks" in name and name.endswith("bias"))
    assert 0.015 < model.get_parameter("cls_token").std() < 0.025
    for name in ("pos_embed", "norm.weight", "patch_embed.proj.bias"):
        assert torch.equal(model.get_parameter(name), default.get_parameter(name))


def test_branches_of_zero_leave_the_embedding_times_the_weights_of_the_skips() -> None:
    """The public recipe: at the start the encoder is a product of constants."""
    model = build_model(
        ModelConfig(
            name="vit_mini_patch8", depth=3, img_size=16, init=MaeInit(zero_branches=True),
            skip_weight=SkipWeight(end=0.6, sublayers="linear"),
        ),
        3,
    ).double()  # fmt: skip
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    wanted = embed(model, images) * 0.23962982399999994  # golden case zero_start_end06
    torch.testing.assert_close(model.blocks(embed(model, images)), wanted, rtol=1e-12, atol=1e-14)
    assert model.get_parameter("blocks.0.mlp.fc1.weight").any()
