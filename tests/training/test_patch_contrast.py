"""Patch contrast: ten steps beside a plain re-implementation, the queue, ranks, and what the crops' matching means."""

from __future__ import annotations

import math
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dinoskip.data.correspondence import Correspondence
from dinoskip.runtime.distributed import World
from dinoskip.training.patch_contrast import contrast, update_queue
from tests.helpers.dino_reference import Values, vit_tokens
from tests.helpers.plain_training import Driver, PlainTraining, job_of
from tests.helpers.ranks import assert_two_ranks_equal_one

SIZE, GRID, IMAGES, DEPTH, STEPS, EPOCH = 32, 4, 3, 2, 10, 4
SETTINGS = {"objective": "patch_contrast", "crop_size": SIZE, "epochs": 3, "warmup_epochs": 1, "batch_size": 64,
            "hidden_dim": 20, "out_dim": 6, "temperature": 0.2, "clip_grad": 0.5}  # fmt: skip
TEACHER = {"momentum_teacher": 0.9, "queue": 9}


def job(skip: bool = True, **settings: Any) -> Any:
    init = {"name": "trunc_normal"} if skip else {"name": "skipless"}
    model = {"name": "vit_mini_patch8", "depth": DEPTH, "img_size": SIZE, "skip": skip, "init": init, "drop_path": 0}
    return job_of(model=model, optimizer={"lr": 4e-3}, pretrain={**SETTINGS, **settings})


@cache
def crops(step: int, images: int = IMAGES) -> tuple[np.ndarray, np.ndarray]:
    """Boxes (B, 2, 4) of two crops of each image, which overlap in part, and whether they are flipped."""
    rng = np.random.default_rng(step)
    boxes = np.concatenate([rng.integers(0, 30, (images, 2, 2)), rng.integers(30, 60, (images, 2, 2))], axis=2)
    return boxes, rng.random((images, 2)) < 0.5


def views(step: int, images: slice = slice(None), count: int = IMAGES) -> list[Tensor]:
    """Both crops of some of the images, stacked view-major, and where their patches lie in the other."""
    rng = torch.Generator().manual_seed(step)
    pixels = torch.randn(2, count, 3, SIZE, SIZE, generator=rng, dtype=torch.float64)[:, images].flatten(0, 1)
    boxes, flips = crops(step, count)
    return [pixels, *Correspondence(GRID)(0, np.arange(count)[images], boxes[images], flips[images])]


def plain_features(values: Values, images: Tensor, skip: bool) -> Tensor:
    """Patches (n, g, g, C) of backbone and head."""
    own = {name.removeprefix("backbone."): value for name, value in values.items() if name.startswith("backbone.")}
    x = vit_tokens(own, images, DEPTH, 2, skip, "dino")[:, 1:]
    for layer in (0, 2):
        x = x @ values[f"head.mlp.{layer}.weight"].T + values[f"head.mlp.{layer}.bias"]
        x = F.gelu(x) if layer == 0 else x
    return x.unflatten(1, (GRID, GRID))


def plain_loss(features: Tensor, others: Tensor, step: int, queue: list[Tensor]) -> Tensor:
    """Patch by patch: the other crop sampled at the patch's point of the scene, against all other samples."""
    boxes, flips = crops(step)
    losses = []
    for view in (0, 1):
        queries, keys = [], []
        for image in range(IMAGES):
            own, other = boxes[image, view], boxes[image, 1 - view]
            for row in range(GRID):
                for column in range(GRID):
                    across = (column + 0.5) / GRID
                    across = 1 - across if flips[image, view] else across
                    y = (own[0] + (row + 0.5) / GRID * own[2] - other[0]) / other[2]
                    x = (own[1] + across * own[3] - other[1]) / other[3]
                    if not (0 <= y <= 1 and 0 <= x <= 1):
                        continue
                    x = 1 - x if flips[image, 1 - view] else x
                    where = torch.tensor([[[[2 * x - 1, 2 * y - 1]]]], dtype=torch.float64)
                    plane = others[(1 - view) * IMAGES + image].permute(2, 0, 1)[None]
                    sampled = F.grid_sample(plane, where, padding_mode="border", align_corners=False).flatten()
                    queries.append(features[view * IMAGES + image, row, column])
                    keys.append(sampled)
        unit = [torch.stack(one) for one in (queries, keys)]
        q, k = (one / one.norm(dim=-1, keepdim=True) for one in unit)
        scores = q @ torch.cat([k, *queue]).T / SETTINGS["temperature"]
        losses.append((scores.logsumexp(1) - scores.diagonal()).mean())
    return (losses[0] + losses[1]) / 2


@pytest.mark.parametrize("skip", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("teacher", [False, True])
def test_ten_steps_are_those_of_a_plain_loop(teacher: bool, skip: bool) -> None:
    driver = Driver(job(skip, **(TEACHER if teacher else {})), EPOCH)
    averaged, queue = driver.values(), []
    total = 3 * EPOCH

    def loss(values: Values, step: int) -> Tensor:
        images = views(step)[0]
        features = plain_features(values, images, skip)
        others = plain_features(averaged, images, skip) if teacher else features
        return plain_loss(features, others, step, queue)

    plain = PlainTraining(driver.values(), loss, 1e-3, 1e-6, (0.04, 0.4), EPOCH, total, 0.5)
    for step in range(STEPS):
        taken = driver.step(step, views(step))
        before = {name: value.clone() for name, value in averaged.items()}
        assert float(taken.means["loss"]) == pytest.approx(plain.step(step), rel=1e-5), step
        if teacher:
            means = plain_features(before, views(step)[0], skip).mean((1, 2))
            means = (means / means.norm(dim=-1, keepdim=True)).view(2, IMAGES, -1).transpose(0, 1).flatten(0, 1)
            queue[:] = [torch.cat([means, *queue])[:9]]
            momentum = 1 - 0.1 * (1 + math.cos(math.pi * step / total)) / 2
            averaged.update({k: momentum * v + (1 - momentum) * plain.values[k] for k, v in averaged.items()})
    for name, value in plain.values.items():
        torch.testing.assert_close(driver.values()[name], value, rtol=1e-5, atol=1e-7, msg=name)
    if teacher:
        last = driver.objective.networks["teacher"].state_dict()
        for name, value in averaged.items():
            torch.testing.assert_close(last[name], value, rtol=1e-5, atol=1e-7, msg=name)
        torch.testing.assert_close(driver.objective.buffers["queue"], queue[0], rtol=1e-5, atol=1e-6)
    assert driver.objective.observed == ("teacher" if teacher else "student")


def test_crops_that_nowhere_overlap_have_no_loss_and_no_gradient() -> None:
    boxes = np.array([[[0, 0, 10, 10], [20, 20, 10, 10]]])
    matches = Correspondence(GRID)(0, np.arange(1), boxes, np.zeros((1, 2), dtype=bool))
    assert [len(one) for one in matches] == [0, 0, 0, 0]
    patches = torch.randn(2, GRID**2, 5, requires_grad=True)
    loss = contrast(patches, None, matches, 0.1).loss
    (gradient,) = torch.autograd.grad(loss, patches)
    assert loss.item() == 0
    assert not gradient.any()


def test_the_loss_is_low_where_patches_say_the_point_of_the_scene_and_high_where_all_are_alike() -> None:
    boxes, flips = crops(0, 8)
    matches = Correspondence(GRID)(0, np.arange(8), boxes, flips)
    u = (torch.arange(GRID) + 0.5) / GRID
    points = []
    for view in (0, 1):
        for box, flip in zip(boxes[:, view], flips[:, view], strict=True):
            rows, columns = box[0] + u * box[2], box[1] + (1 - u if flip else u) * box[3]
            points.append(torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1).flatten(0, 1))
    which = torch.arange(8.0).repeat(2).view(-1, 1, 1).expand(-1, GRID**2, 1)
    angles = (
        torch.cat([torch.stack(points) / 60, which], -1)
        @ torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
        * 5
    )
    told = contrast(torch.cat([angles.sin(), angles.cos()], -1), None, matches, 0.1)
    alike = contrast(torch.ones(16, GRID**2, 4), None, matches, 0.1)
    assert told.accuracy > 0.6
    chance = sum(math.log(len(matches[place])) for place in (0, 2)) / 2
    assert alike.loss.item() == pytest.approx(chance, rel=1e-5)
    assert told.loss < 0.5 * chance


def test_the_newest_views_come_first_into_the_queue() -> None:
    queue = torch.zeros(5, 2)
    patches = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])[:, None].expand(-1, 3, -1)
    update_queue(queue, patches)  # of images 0 and 1: first views, then second views
    assert queue.tolist() == [[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]]
    update_queue(queue, patches[:2])
    assert queue.tolist() == [[1, 0], [0, 1], [1, 0], [-1, 0], [0, 1]]


TOGETHER = 6  # images of a step on all ranks


def steps_on_ranks(here: World, out: str, strategy: str) -> None:
    """Four steps with teacher and queue."""
    driver = Driver(job(parallel=strategy, **TEACHER), EPOCH, here)
    driver.write_steps(out, TOGETHER, partial(views, count=TOGETHER))


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_ranks_contrast_with_the_patches_of_all(strategy: str, tmp_path: Path) -> None:
    assert_two_ranks_equal_one(tmp_path, steps_on_ranks, strategy)
