from __future__ import annotations

import pytest
import torch
from torch import nn

from dinoskip.models import create_model
from dinoskip.models.heads import DINOHead
from dinoskip.optim import AdamWConfig, build_optimizer, param_groups, set_rates


def _student() -> nn.Module:
    return nn.ModuleDict({"backbone": create_model("vit_tiny_patch16", depth=2, img_size=32), "head": DINOHead(192, 8)})


def test_every_trainable_parameter_is_in_exactly_one_group() -> None:
    model = _student()
    model["backbone"].norm.requires_grad_(False)
    groups = param_groups(model)
    grouped = [name for group in groups for name in group["names"]]
    assert sorted(grouped) == sorted(name for name, p in model.named_parameters() if p.requires_grad)
    own = dict(model.named_parameters())
    for group in groups:
        assert all(own[name] is p for name, p in zip(group["names"], group["params"], strict=True))


def test_decay_is_the_references_choice() -> None:
    decayed, plain = param_groups(_student())
    assert {"backbone.pos_embed", "backbone.cls_token", "backbone.patch_embed.proj.weight", "head.last_v"} <= set(
        decayed["names"]
    )
    assert "backbone.blocks.0.attn.qkv.weight" in decayed["names"]
    assert all(name.endswith("bias") or "norm" in name for name in plain["names"])
    assert all(p.ndim > 1 for p in decayed["params"])


def test_a_bias_with_two_dimensions_is_not_decayed() -> None:
    (group,) = param_groups([("a.bias", nn.Parameter(torch.zeros(2, 2)))])
    assert group["decayed"] is False


def test_shared_repeated_and_missing_parameters_are_refused() -> None:
    shared = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"b\.weight and a\.weight are the same"):
        param_groups(nn.ModuleDict({"a": shared, "b": shared}))
    with pytest.raises(ValueError, match="two parameters of this name"):
        param_groups([("x", nn.Parameter(torch.zeros(1))), ("x", nn.Parameter(torch.zeros(1)))])
    with pytest.raises(ValueError, match="no trainable"):
        param_groups(nn.Linear(1, 1).requires_grad_(False))


def test_rates_reach_the_groups_they_are_for() -> None:
    optimizer = build_optimizer(_student(), AdamWConfig(weight_decay=0.04))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.04, 0.0]
    set_rates(optimizer, 0.125, 0.3)
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.125, 0.3), (0.125, 0.0)]


def test_a_parameter_without_gradient_is_neither_updated_nor_decayed() -> None:
    model = nn.Linear(3, 3)
    optimizer = build_optimizer(model, AdamWConfig(lr=0.1, weight_decay=0.5))
    before = model.weight.detach().clone()
    model.bias.grad = torch.ones(3)
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before, rtol=0, atol=0)
    assert model.weight not in optimizer.state


def test_a_layers_rate_is_maes() -> None:
    """facebookresearch/mae, util/lr_decay.py: scales decay^(n - i) for i = 0..n, n = blocks + 1."""
    model, decay, depth = _student(), 0.65, 2
    optimizer = build_optimizer(model, AdamWConfig(lr=1.0, weight_decay=0.05, layer_decay=decay))
    set_rates(optimizer, 2.0, 0.05)
    own, seen = dict(model.named_parameters()), {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            assert own[name] is parameter
            assert group["weight_decay"] == (0.05 if parameter.ndim > 1 and not name.endswith("bias") else 0.0)
            seen[name] = group["lr"]
    assert seen.keys() == own.keys()
    top = depth + 1
    for name, layer in {
        "backbone.patch_embed.proj.bias": 0, "backbone.pos_embed": 0, "backbone.cls_token": 0,
        "backbone.blocks.0.attn.qkv.weight": 1, "backbone.blocks.1.norm1.bias": 2, "backbone.norm.weight": top,
        "head.last_v": top,
    }.items():  # fmt: skip
        assert seen[name] == pytest.approx(2.0 * decay ** (top - layer)), name
    with pytest.raises(ValueError, match="no parameter belongs to a block"):
        build_optimizer(nn.Linear(2, 2), AdamWConfig(layer_decay=decay))
    assert len(build_optimizer(model, AdamWConfig()).param_groups) == 2
