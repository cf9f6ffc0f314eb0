"""MAE: ten steps beside a plain re-implementation, what the encoder sees, ranks, the published settings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dinoskip.models.positions import sincos_positions
from dinoskip.runtime.distributed import World
from dinoskip.settings.config import dump
from dinoskip.settings.vit_config import VitConfig
from dinoskip_objectives.mae import MaeDecoder
from dinoskip_objectives.mae_config import MaeConfig
from dinoskip_objectives.masks import VisiblePatches
from tests.helpers.dino_reference import Values, vit_blocks
from tests.helpers.plain_training import Driver, PlainTraining, job_of
from tests.helpers.ranks import assert_two_ranks_equal_one

SIZE, GRID, IMAGES, DEPTH, STEPS, EPOCH = 32, 4, 3, 3, 10, 4
SETTINGS = {"objective": "mae", "crop_size": SIZE, "epochs": 3, "warmup_epochs": 1, "batch_size": 64}


def job(skip: bool = True, **settings: Any) -> Any:
    init = {"name": "trunc_normal"} if skip else {"name": "skipless"}
    model = {"name": "vit_mini_patch8", "depth": DEPTH, "img_size": SIZE, "skip": skip, "init": init, "drop_path": 0}
    optimizer = {"lr": 4e-3, "betas": [0.9, 0.95], "min_lr": 0, "weight_decay": 0.05, "weight_decay_end": 0.05}
    return job_of(model=model, optimizer=optimizer, pretrain={**SETTINGS, **settings})


def views(step: int, images: slice = slice(None), count: int = IMAGES) -> list[Tensor]:
    """Crops of some of the images, and the numbers of their visible and removed patches."""
    rng = torch.Generator().manual_seed(step)
    pixels = torch.randn(count, 3, SIZE, SIZE, generator=rng, dtype=torch.float64)[images]
    nothing = np.zeros((len(pixels), 1, 4)), np.zeros((len(pixels), 1))
    return [pixels, *VisiblePatches(GRID, 0.25, 0)(step, np.arange(count)[images], *nothing)]


def plain_loss(values: Values, images: Tensor, kept: Tensor, skip: bool, norm_pix: bool) -> Tensor:
    """models_mae.py: encoder on visible patches, decoder on the whole grid with mask tokens, loss over removed ones."""
    encoder, decoder = (
        {name.removeprefix(f"{part}."): value for name, value in values.items() if name.startswith(part)}
        for part in ("backbone", "head")
    )
    x = F.conv2d(images, encoder["patch_embed.proj.weight"], encoder["patch_embed.proj.bias"], stride=8)
    x = x.flatten(2).transpose(1, 2) + encoder["pos_embed"][:, 1:]
    x = torch.stack([patches[which] for patches, which in zip(x, kept, strict=True)])
    x = torch.cat([(encoder["cls_token"] + encoder["pos_embed"][:, :1]).expand(len(x), -1, -1), x], 1)
    x = vit_blocks(encoder, x, DEPTH, 2, skip) @ decoder["embed.weight"].T + decoder["embed.bias"]
    dim = x.shape[-1]
    grid = decoder["mask_token"].expand(len(x), GRID**2, -1).clone()
    mask = torch.ones(len(x), GRID**2, dtype=torch.float64)
    for image, which in enumerate(kept):
        grid[image, which] = x[image, 1:]
        mask[image, which] = 0
    y = torch.cat([x[:, :1], grid], 1) + sincos_positions((GRID, GRID), dim).float().double()
    depth = len({name.split(".")[1] for name in decoder if name.startswith("blocks")})
    y = vit_blocks(decoder, y, depth, dim // 32, True)[:, 1:] @ decoder["pixels.weight"].T + decoder["pixels.bias"]
    target = images.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
    if norm_pix:
        target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6) ** 0.5
    return (((y - target) ** 2).mean(-1) * mask).sum() / mask.sum()


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("settings", [{}, {"norm_pix": False, "positions": "learned", "clip_grad": 0.01}])
def test_ten_steps_are_those_of_a_plain_loop(settings: dict[str, Any], skip: bool) -> None:
    driver = Driver(job(skip, **settings), EPOCH)

    def loss(values: Values, step: int) -> Tensor:
        images, kept, _ = views(step)
        return plain_loss(values, images, kept, skip, settings.get("norm_pix", True))

    clip = settings.get("clip_grad", 0.0)
    plain = PlainTraining(
        driver.values(), loss, 1e-3, 0, (0.05, 0.05), EPOCH, 3 * EPOCH, clip, (0.9, 0.95),
        frozenset() if settings else frozenset({"backbone.pos_embed"}),
    )  # fmt: skip
    for step in range(STEPS):
        taken = driver.step(step, views(step))
        assert float(taken.means["loss"]) == pytest.approx(plain.step(step), rel=1e-5), step
    for name, value in plain.values.items():
        torch.testing.assert_close(driver.values()[name], value, rtol=1e-5, atol=1e-7, msg=name)
    fixed = torch.equal(driver.values()["backbone.pos_embed"].float(), sincos_positions((GRID, GRID), 128).float())
    assert fixed == (not settings)


def test_the_encoder_computes_the_visible_patches_alone() -> None:
    student = Driver(job(), EPOCH).student
    seen = []
    student.get_submodule("backbone.blocks.0").register_forward_hook(lambda *call: seen.append(call[1][0].shape))
    images, kept, removed = views(0)
    first = student(images, kept, removed)
    hidden = images.clone().unflatten(2, (GRID, 8)).unflatten(4, (GRID, 8))  # (B, 3, row, y, column, x)
    for image, which in enumerate(removed.tolist()):
        for patch in which:
            hidden[image, :, patch // GRID, :, patch % GRID] = 7
    assert torch.equal(student(hidden.view_as(images), kept, removed), first)
    assert seen == [(IMAGES, 1 + GRID**2 // 4, 128)] * 2


def test_the_defaults_are_the_published_run_and_the_decoder_scales_with_the_encoder() -> None:
    config = dump(MaeConfig())
    published = {
        "epochs": 800, "batch_size": 4096, "warmup_epochs": 40.0, "crop_scale": [0.2, 1.0], "flip": 0.5,
        "mask_ratio": 0.75, "norm_pix": True, "positions": "sincos", "clip_grad": 0.0,
    }  # fmt: skip
    assert {key: config[key] for key in published} == published
    shapes = {name: MaeConfig().decoder_shape(VitConfig(name=f"vit_{name}_patch16")) for name in ("base", "small")}
    assert shapes == {"base": (512, 8), "small": (256, 8)}
    assert MaeConfig().decoder_shape(VitConfig(name="vit_tiny_patch16", depth=4)) == (128, 3)
    assert MaeConfig(decoder_dim=64, decoder_depth=1).decoder_shape(VitConfig()) == (64, 1)


def test_the_decoders_weights_are_xaviers() -> None:
    decoder = MaeDecoder(48, 64, 2, 8, 4, seed=5)
    again, other = (MaeDecoder(48, 64, 2, 8, 4, seed=seed) for seed in (5, 6))
    for name, value in decoder.named_parameters():
        assert torch.equal(value, again.get_parameter(name))
        if value.ndim == 2:
            bound = (6 / sum(value.shape)) ** 0.5
            assert 0.95 * bound < value.abs().max() <= bound
            assert not torch.equal(value, other.get_parameter(name))
        elif name != "mask_token":
            assert set(value.tolist()) == ({1.0} if "norm" in name and "weight" in name else {0.0})
    assert 0.01 < decoder.mask_token.std() < 0.03


TOGETHER = 6  # images of a step on all ranks


def steps_on_ranks(here: World, out: str, strategy: str) -> None:
    Driver(job(parallel=strategy), EPOCH, here).write_steps(out, TOGETHER, partial(views, count=TOGETHER))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_together_take_the_steps_of_one(strategy: str, tmp_path: Path) -> None:
    assert_two_ranks_equal_one(tmp_path, steps_on_ranks, strategy)
