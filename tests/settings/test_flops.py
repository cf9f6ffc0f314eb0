"""Closed forms against torch's operation counter on real models."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from dinoskip.models import DINOHead, create_model
from dinoskip.models.export import model_shapes
from dinoskip.settings.flops import dino_step_flops, supervised_step_flops, vit_flops, vit_parameters
from dinoskip.settings.vit_config import VitConfig


def counted(action: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        action()
    return int(counter.get_total_flops())


def model(config: VitConfig, num_classes: int = 0) -> nn.Module:
    """The model, with attention as plain products: fused attention is counted with what it computes twice."""
    made = create_model(
        config.name, skip=config.skip, depth=config.depth, img_size=config.img_size, num_classes=num_classes
    )
    for module in made.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    return made


@pytest.mark.parametrize("name", ["vit_tiny_patch16", "vit_small_patch16", "vit_base_patch14", "vit_giant_patch14"])
@pytest.mark.parametrize("depth", [1, 3])
def test_forward_pass(name: str, depth: int) -> None:
    config = VitConfig.model_validate({"name": name, "depth": depth, "img_size": 112, "skip": depth == 1})
    backbone = model(config)
    for size in (112, 112 - 2 * config.patch_size):
        with torch.no_grad():
            assert counted(lambda size=size: backbone(torch.zeros(2, 3, size, size))) == 2 * vit_flops(config, size)


@pytest.mark.skipif(
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu not in flop_registry,
    reason="this version of torch does not count fused attention on a CPU",
)
def test_fused_attention_counts_the_same_forward() -> None:
    config = VitConfig(depth=2)
    with torch.no_grad():
        found = counted(lambda: create_model(config.name, depth=2)(torch.zeros(1, 3, 224, 224)))
    assert found == vit_flops(config)


def test_published_size_of_vit_small() -> None:
    published = 4.6e9  # multiply-adds of DeiT-S in arXiv:2103.14030, table 1
    assert vit_flops(VitConfig()) / 2 == pytest.approx(published, rel=0.01)


def test_supervised_step() -> None:
    config = VitConfig(name="vit_tiny_patch16", depth=2, img_size=64)
    classifier = model(config, num_classes=10)
    found = counted(lambda: classifier(torch.zeros(3, 3, 64, 64)).sum().backward())
    assert found == 3 * supervised_step_flops(config, 10)


def test_dino_step() -> None:
    config = VitConfig(name="vit_tiny_patch16", depth=2, img_size=64)
    sizes = {"hidden_dim": 48, "bottleneck_dim": 24}
    student, teacher, batch = model(config), model(config), 2
    heads = [DINOHead(192, 100, **sizes) for _ in range(2)]

    def step() -> None:
        big, small = torch.zeros(2 * batch, 3, 64, 64), torch.zeros(5 * batch, 3, 32, 32)
        with torch.no_grad():
            heads[1](teacher(big))
        scores: Tensor = heads[0](torch.cat([student(big), student(small)]))
        scores.sum().backward()

    expected = dino_step_flops(config, head=(100, 48, 24), global_size=64, local_size=32, num_local=5)
    assert counted(step) == batch * expected


@pytest.mark.parametrize("name", ["vit_mini_patch8", "vit_small_patch14", "vit_giant_patch14"])
@pytest.mark.parametrize("layer_scale", [None, 1e-5])
def test_parameters_are_those_of_the_model(name: str, layer_scale: float | None) -> None:
    config = VitConfig(name=name, depth=2, layer_scale=layer_scale)  # type: ignore[arg-type]
    assert vit_parameters(config) == sum(math.prod(shape) for shape in model_shapes(config).values())
