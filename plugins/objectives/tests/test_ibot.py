"""iBOT: its loss on patches, ten steps beside a plain re-implementation, ranks."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dinoskip.runtime.distributed import World
from dinoskip.settings.config import dump
from dinoskip_objectives import ibot as module
from dinoskip_objectives.ibot import IbotHead, patch_loss
from dinoskip_objectives.ibot_config import IbotConfig
from dinoskip_objectives.masks import BlockMasks
from tests.helpers.dino_reference import Values, double_loop, resized_positions, vit_blocks
from tests.helpers.plain_training import Driver, PlainTraining, job_of
from tests.helpers.ranks import assert_two_ranks_equal_one

SIZE, LOCAL, GRID, IMAGES, DEPTH, STEPS, EPOCH = 32, 16, 4, 3, 2, 10, 4
SETTINGS = {"objective": "ibot", "epochs": 4, "warmup_epochs": 1, "batch_size": 64, "out_dim": 18, "hidden_dim": 20,
            "bottleneck_dim": 8, "crops": {"global_size": SIZE, "local_size": LOCAL, "num_local": 2},
            "warmup_teacher_temp_epochs": 3, "freeze_last_layer": 1}  # fmt: skip
OWN_LAYER = {"patch_out_dim": 11, "norm_last_layer": True, "teacher_patch_temp": 0.06, "patch_weight": 0.5}


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_the_patch_loss_has_autograds_gradient_whatever_the_rows_at_a_time(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(13, 7, generator=rng, dtype=torch.float64) for _ in range(2))
    center, weights = torch.randn(7, generator=rng).double(), torch.rand(13, generator=rng)
    student.requires_grad_()
    monkeypatch.setattr(module, "CHUNK_CPU", rows * 7)
    loss = patch_loss(student, teacher, center, weights, 0.1, 0.05)
    targets = torch.softmax((teacher - center) / 0.05, -1)
    expected = -(weights * (targets * torch.log_softmax(student / 0.1, -1)).sum(-1)).sum()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(loss * 2, student, retain_graph=True), torch.autograd.grad(expected * 2, student)
    )
    with pytest.raises(RuntimeError, match="once"):
        torch.autograd.grad(loss, student)


def test_without_a_masked_patch_there_is_no_patch_loss() -> None:
    student = torch.zeros(0, 5, requires_grad=True)
    loss = patch_loss(student, torch.zeros(0, 5), torch.zeros(5), torch.zeros(0), 0.1, 0.04)
    assert loss.item() == 0
    assert torch.autograd.grad(loss, student)[0].shape == (0, 5)


def job(skip: bool = True, **settings: Any) -> Any:
    init = {"name": "trunc_normal"} if skip else {"name": "skipless"}
    model = {"name": "vit_mini_patch8", "depth": DEPTH, "img_size": SIZE, "skip": skip, "init": init, "drop_path": 0}
    return job_of(model=model, optimizer={"lr": 4e-3}, pretrain={**SETTINGS, **settings})


def views(step: int, images: slice = slice(None), count: int = IMAGES) -> list[Tensor]:
    """Two global and two local views of some of the images, and their masks."""
    rng = torch.Generator().manual_seed(step)
    pixels = [
        torch.randn(2, count, 3, side, side, generator=rng, dtype=torch.float64)[:, images].flatten(0, 1)
        for side in (SIZE, LOCAL)
    ]
    numbers = np.arange(count)[images]
    nothing = np.zeros((len(numbers), 2, 4)), np.zeros((len(numbers), 2))
    return [*pixels, *BlockMasks(GRID, ((0.0, 0.0), (0.1, 0.5)), 0)(step, numbers, *nothing)]


def plain_scores(values: Values, images: Tensor, masks: Tensor | None, skip: bool) -> tuple[Tensor, Tensor]:
    """Scores of CLS tokens (n, K) and of all patches (n, N, P)."""
    own = {name.removeprefix("backbone."): value for name, value in values.items() if name.startswith("backbone.")}
    x = F.conv2d(images, own["patch_embed.proj.weight"], own["patch_embed.proj.bias"], stride=8)
    side, x = x.shape[-1], x.flatten(2).transpose(1, 2)
    if masks is not None:
        x = torch.stack([
            torch.stack([values["head.mask_token"][0] if hidden else patch for patch, hidden in zip(*one, strict=True)])
            for one in zip(x, masks, strict=True)
        ])  # fmt: skip
    x = torch.cat([own["cls_token"].expand(len(x), -1, -1), x], 1) + resized_positions(own["pos_embed"], side, "dino")
    x = vit_blocks(own, x, DEPTH, 2, skip)
    for layer in (0, 2, 4):
        x = x @ values[f"head.mlp.{layer}.weight"].T + values[f"head.mlp.{layer}.bias"]
        x = F.gelu(x) if layer < 4 else x
    x = x / x.norm(dim=-1, keepdim=True)
    last, patch = (
        values[f"head.{name}_v"] / values[f"head.{name}_v"].norm(dim=-1, keepdim=True) * values[f"head.{name}_g"]
        for name in ("last", "patch" if "head.patch_v" in values else "last")
    )
    return x[:, 0] @ last.T, x[:, 1:] @ patch.T


def plain_patch_loss(student: Tensor, teacher: Tensor, center: Tensor, masks: Tensor, temp: float) -> Tensor:
    """bytedance/ibot: of each global view the mean over its masked patches, over images, over views."""
    targets = torch.softmax((teacher - center) / temp, -1)
    entropies = -(targets * torch.log_softmax(student / 0.1, -1)).sum(-1)
    of_views = [
        ((entropy * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()
        for entropy, mask in zip(entropies.chunk(2), masks.double().chunk(2), strict=True)
    ]
    return (of_views[0] + of_views[1]) / 2


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("own", [{}, OWN_LAYER], ids=["shared", "own"])
def test_ten_steps_are_those_of_a_plain_loop(own: dict[str, Any], skip: bool) -> None:
    driver = Driver(job(skip, **own), EPOCH)
    weight = own.get("patch_weight", 1.0)
    state = driver.objective.networks["teacher"].state_dict()
    teacher = {name: value.clone() for name, value in state.items()}
    centers = {name: torch.zeros_like(value) for name, value in driver.objective.buffers.items()}
    said: dict[str, tuple[Tensor, Tensor]] = {}

    def temperature(step: int, last: float) -> float:
        return 0.04 + (last - 0.04) * min(1.0, step // EPOCH / 2)

    def loss(values: Values, step: int) -> Tensor:
        global_views, local_views, masks, *_ = views(step)
        said["teacher"] = plain_scores(teacher, global_views, None, skip)
        cls, patches = plain_scores(values, global_views, masks, skip)
        cls = torch.cat([cls, plain_scores(values, local_views, None, skip)[0]])
        frozen = step < EPOCH
        if frozen:  # the last layer's gradients are dropped
            fixed = {k: v.detach() if "last_" in k or "patch_" in k else v for k, v in values.items() if "head" in k}
            cls = torch.cat([plain_scores(values | fixed, global_views, masks, skip)[0],
                             plain_scores(values | fixed, local_views, None, skip)[0]])  # fmt: skip
            patches = plain_scores(values | fixed, global_views, masks, skip)[1]
        of_cls = double_loop(cls, said["teacher"][0], centers["center"], 0.1, temperature(step, 0.07))
        temp = temperature(step, own.get("teacher_patch_temp", 0.07))
        return of_cls + weight * plain_patch_loss(patches, said["teacher"][1], centers["patch_center"], masks, temp)

    plain = PlainTraining(driver.values(), loss, 1e-3, 1e-6, (0.04, 0.4), EPOCH, 4 * EPOCH, 3.0)
    plain.fixed = frozenset({"head.last_g", "head.patch_g"} if own else ())
    for step in range(STEPS):
        taken = driver.step(step, views(step))
        assert float(taken.means["loss"]) == pytest.approx(plain.step(step), rel=1e-5), step
        for name, scores in zip(("center", "patch_center"), said["teacher"], strict=True):
            centers[name] = 0.9 * centers[name] + 0.1 * scores.flatten(0, -2).mean(0)
        momentum = 1 - 0.004 * (1 + math.cos(math.pi * step / (4 * EPOCH))) / 2
        teacher = {name: momentum * v + (1 - momentum) * plain.values[name] for name, v in teacher.items()}
    for name, value in plain.values.items():
        torch.testing.assert_close(driver.values()[name], value, rtol=1e-5, atol=1e-7, msg=name)
    for name, value in driver.objective.networks["teacher"].state_dict().items():
        torch.testing.assert_close(value, teacher[name], rtol=1e-5, atol=1e-7, msg=name)
    for name, value in centers.items():
        torch.testing.assert_close(driver.objective.buffers[name], value, rtol=1e-5, atol=1e-7, msg=name)
    assert "head.mask_token" not in teacher
    assert plain.values["head.mask_token"].any(), "it starts at zero and learns"


def test_the_defaults_are_the_published_run() -> None:
    config = dump(IbotConfig())
    published = {
        "epochs": 800, "batch_size": 1024, "out_dim": 8192, "patch_out_dim": None, "norm_last_layer": False,
        "mask_ratios": [[0.0, 0.0], [0.1, 0.5]], "student_temp": 0.1, "teacher_temp": 0.07, "teacher_patch_temp": 0.07,
        "warmup_teacher_temp": 0.04, "warmup_teacher_patch_temp": 0.04, "warmup_teacher_temp_epochs": 30,
        "center_momentum": 0.9, "momentum_teacher": 0.996, "clip_grad": 3.0, "freeze_last_layer": 1,
        "warmup_epochs": 10.0, "cls_weight": 1.0, "patch_weight": 1.0,
    }  # fmt: skip
    assert {key: config[key] for key in published} == published
    crops = {"num_local": 10, "global_scale": [0.25, 1.0], "local_scale": [0.05, 0.25], "global_size": 224}
    assert {key: config["crops"][key] for key in crops} == crops


def test_the_head_has_the_weights_of_dinos_and_the_mean_of_scores() -> None:
    head = IbotHead(12, 9, 5, hidden_dim=7, bottleneck_dim=4, seed=3)
    shared = IbotHead(12, 9, hidden_dim=7, bottleneck_dim=4, seed=3)
    plain = {name: value for name, value in head.state_dict().items() if not name.startswith("patch_")}
    assert plain.keys() == shared.state_dict().keys()
    assert all(torch.equal(value, shared.state_dict()[name]) for name, value in plain.items())
    unit = head.unit(torch.randn(30, 12))
    for one in (head, shared):
        torch.testing.assert_close(one.score_patches(unit.mean(0)), one.score_patches(unit).mean(0))
    torch.testing.assert_close(shared.score(unit), shared(torch.zeros(0, 12)).new_tensor(shared.score(unit).tolist()))


TOGETHER = 6  # images of a step on all ranks


def steps_on_ranks(here: World, out: str, strategy: str) -> None:
    driver = Driver(job(parallel=strategy, freeze_last_layer=0), EPOCH, here)
    driver.write_steps(out, TOGETHER, partial(views, count=TOGETHER))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_together_take_the_steps_of_one(strategy: str, tmp_path: Path) -> None:
    assert_two_ranks_equal_one(tmp_path, steps_on_ranks, strategy)
