"""MAE with long skips: steps beside a plain re-implementation, the zero start, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dinoskip.errors import ConfigError
from dinoskip.models.positions import sincos_positions
from dinoskip.training import pretrain
from dinoskip.training.objectives import PretrainJob
from plugins.objectives.tests.test_mae import GRID, SIZE, views
from tests.helpers.plain_training import Driver, job_of
from tests.helpers.tiny import objective_job
from tests.training.test_resume import folder

BLOCKS = 4
Values = dict[str, Tensor]


def job(decoder_depth: int = 3, depth: int = BLOCKS, **model: Any) -> PretrainJob:
    settings = {"objective": "mae", "crop_size": SIZE, "epochs": 3, "warmup_epochs": 1, "batch_size": 64,
                "long_skips": True, "decoder_dim": 64, "decoder_depth": decoder_depth}  # fmt: skip
    network = {"name": "vit_mini_patch8", "depth": depth, "img_size": SIZE, "drop_path": 0,
               "skip_weight": {"end": 0.6, "sublayers": "linear"},
               "init": {"name": "mae", "zero_branches": True}}  # fmt: skip
    return job_of(model=network | model, optimizer={"lr": 4e-3, "min_lr": 0}, pretrain=settings)


def weighted_block(v: Values, x: Tensor, heads: int, first: float, second: float) -> Tensor:
    """x <- a1 x + attn(norm1 x); x <- a2 x + mlp(norm2 x), from timm's names, written out."""
    width = x.shape[-1]
    normed = F.layer_norm(x, (width,), v["norm1.weight"], v["norm1.bias"], 1e-6)
    qkv = normed @ v["attn.qkv.weight"].T + v["attn.qkv.bias"]
    q, k, value = qkv.view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
    mixed = ((q @ k.mT / (width // heads) ** 0.5).softmax(-1) @ value).transpose(1, 2).flatten(2)
    x = first * x + mixed @ v["attn.proj.weight"].T + v["attn.proj.bias"]
    normed = F.layer_norm(x, (width,), v["norm2.weight"], v["norm2.bias"], 1e-6)
    hidden = F.gelu(normed @ v["mlp.fc1.weight"].T + v["mlp.fc1.bias"])
    return second * x + hidden @ v["mlp.fc2.weight"].T + v["mlp.fc2.bias"]


def under(values: Values, prefix: str) -> Values:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def plain_loss(values: Values, images: Tensor, kept: Tensor, decoder_depth: int) -> Tensor:
    """models_mae.py of decayed_Identity_shortcuts: the whole grid in raster order, mask tokens put back in place."""
    encoder, decoder = under(values, "backbone."), under(values, "head.")
    x = F.conv2d(images, encoder["patch_embed.proj.weight"], encoder["patch_embed.proj.bias"], stride=8)
    x = x.flatten(2).transpose(1, 2) + encoder["pos_embed"][:, 1:]
    x = torch.stack([patches[which] for patches, which in zip(x, kept, strict=True)])
    x = torch.cat([(encoder["cls_token"] + encoder["pos_embed"][:, :1]).expand(len(x), -1, -1), x], 1)
    skips = []
    for index in range(BLOCKS):
        weights = [1 - place / (2 * BLOCKS - 1) * (1 - 0.6) for place in (2 * index, 2 * index + 1)]
        x = weighted_block(under(encoder, f"blocks.{index}."), x, 2, *weights)
        if index % 2 == 1:
            skips.append(x)
    positions = sincos_positions((GRID, GRID), 64).float().double()
    y = torch.cat([decoder["cls_token"], positions[:, 1:]], 1).expand(len(images), -1, -1)
    y = y @ decoder["embed.weight"].T + decoder["embed.bias"]
    for index in range(decoder_depth):
        if skips:
            tokens, own = skips.pop(), under(decoder, f"long.{index}.")
            grid = own["mask_token"].expand(len(x), GRID**2, -1).clone()
            for image, which in enumerate(kept):
                grid[image, which] = tokens[image, 1:]
            both = torch.cat([torch.cat([tokens[:, :1], grid], 1), y], -1)
            hidden = F.silu(both @ own["join.weight"].T + own["join.bias"])
            y = y + hidden @ own["out.weight"].T + own["out.bias"]
        y = weighted_block(under(decoder, f"blocks.{index}."), y, 2, 1, 1)
    y = F.layer_norm(y, (64,), decoder["norm.weight"], decoder["norm.bias"], 1e-6)[:, 1:]
    y = y @ decoder["pixels.weight"].T + decoder["pixels.bias"]
    target = images.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
    target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6) ** 0.5
    mask = torch.ones(len(x), GRID**2, dtype=torch.float64)
    for image, which in enumerate(kept):
        mask[image, which] = 0
    return (((y - target) ** 2).mean(-1) * mask).sum() / mask.sum()


@pytest.mark.parametrize("decoder_depth", [1, 3])
def test_loss_and_gradients_are_those_of_the_plain_formulas(decoder_depth: int) -> None:
    """Away from the zero start, where most gradients vanish."""
    driver = Driver(job(decoder_depth), 4)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in driver.student.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
    values = {name: value.clone().requires_grad_() for name, value in driver.values().items()}
    images, kept, removed = views(0)
    loss = plain_loss(values, images, kept, decoder_depth)
    loss.backward()
    taken = driver.step(0, [images, kept, removed])
    assert float(taken.means["loss"]) == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in driver.student.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, values[name].grad, rtol=1e-5, atol=1e-8, msg=name)
    assert not driver.student.get_parameter("backbone.norm.weight").requires_grad


def test_at_the_start_nothing_is_painted_and_the_decoder_wakes_up() -> None:
    driver = Driver(job(), 4)
    images, kept, removed = views(0)
    assert not driver.student(images, kept, removed).any()
    assert not any(driver.student.get_parameter(f"head.blocks.{i}.mlp.fc2.weight").any() for i in range(3))
    first = [float(driver.step(step, views(step)).means["loss"]) for step in range(4, 7)]
    assert driver.student(images, kept, removed).any()
    assert len(set(first)) == 3


def test_a_run_by_the_public_recipe_and_its_cost(tmp_path: Any) -> None:
    made = objective_job("mae", long_skips=True, epochs=1, warmup_epochs=0)
    pretrain(made, folder(), tmp_path / "run", device="cpu")
    head = Driver(job(), 4).student.get_submodule("head")
    matrices = sum(parameter.numel() for parameter in head.parameters() if parameter.ndim == 2)
    config = job()
    assert config.pretrain.cost(config.model).head == matrices
    assert config.pretrain.cost(config.model).flops > 0


def test_an_odd_number_of_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pretrain.long_skips: .*even depth"):
        job(depth=3)
