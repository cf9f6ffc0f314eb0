"""Stacked depth heads against one convolution alone, trained by torch's own optimizer on the same crops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dinoskip.models import Backbone
from dinoskip_dense.depth.config import DepthConfig
from dinoskip_dense.depth.fit import DepthHeads, _crop, fit_heads
from dinoskip_dense.depth.scores import NAMES
from dinoskip_dense.geometry import DepthDataset
from dinoskip_dense.sets.rooms import RoomsConfig
from eval.frozen import FrozenFeatures
from eval.probe.loaders import training_batches
from eval.probe.stack import HeadStack
from eval.schedules import cycled_momentum, rate_factor
from eval.stacked import draw_uniform, folded_heads, groups_of
from tests.helpers.tasks import network_inputs
from tests.helpers.tiny_vit import tiny_vit

STEPS = 4
SETTINGS = {
    "iterations": STEPS, "batch_size": 4, "crop": (32, 32), "bins": 8, "mean_only": 2, "warmup": 0.25,
    "learning_rates": (1e-2, 1e-3), "flip_test": False, "evaluated": "all",
}  # fmt: skip


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> DepthDataset:
    config = RoomsConfig(images=8, size=40)
    return config.open_depth(config.generate(tmp_path_factory.mktemp("rooms")), "train", None)


@pytest.fixture(scope="module")
def network() -> Backbone:
    return tiny_vit()


def fitted(network: Backbone, rooms: DepthDataset, **settings: object) -> tuple[DepthHeads, DepthConfig]:
    config = DepthConfig.model_validate({**SETTINGS, **settings})
    groups = groups_of([1, 2], [1, 2], cls=config.cls)
    return fit_heads(network_inputs(network, config, train=rooms), np.arange(len(rooms)), groups), config


def reference_loss(depth: torch.Tensor, truth: torch.Tensor, variance: bool) -> torch.Tensor:
    depth = F.interpolate(depth[:, None], size=truth.shape[1:], mode="bilinear", align_corners=False)[:, 0]
    known = (truth > 0) & (truth <= 10)
    g = torch.log(depth[known] + 1e-3) - torch.log(truth[known] + 1e-3)
    return torch.sqrt(0.15 * g.mean() ** 2 + (torch.var(g) if variance else 0))


@pytest.mark.parametrize("protocol", ["dinov2", "dinov3"])
@pytest.mark.parametrize("group", [0, 2])
def test_a_head_of_the_stack_is_a_convolution_trained_alone(
    network: Backbone, rooms: DepthDataset, protocol: str, group: int
) -> None:
    heads, config = fitted(network, rooms, protocol=protocol, learning_rates=(1e-3, 1e-2))
    keys, rate = heads.stack.groups[group], 1
    wide = network.dim * len(keys)
    conv, norm = nn.Conv2d(wide, config.bins, 1), nn.BatchNorm2d(wide)
    first = initial(network, config, keys)
    with torch.no_grad():
        conv.weight.copy_(first[0][:, :, None, None])
        conv.bias.copy_(first[1])
    layers = nn.Sequential(norm, conv) if config.batchnorm else conv
    optimizer = torch.optim.AdamW(
        layers.parameters(), lr=1e-2, betas=(0.9, config.second_beta), weight_decay=config.weight_decay
    )
    features, bins = FrozenFeatures(network, keys, config.norm), heads.bins
    for batch in training_batches(np.arange(len(rooms)), config, 0):
        pairs = [_crop(rooms, row, batch.epoch, config, 0) for row in batch.rows.tolist()]
        read, grid = features([image for image, _ in pairs])
        truth = torch.stack([depth for _, depth in pairs])
        maps = []
        for key in keys:
            own = read[key].view(len(pairs), -1, network.dim).transpose(1, 2)
            maps.append(own.expand(-1, -1, grid[0] * grid[1]).reshape(len(pairs), -1, *grid))
        whole = torch.cat(maps, 1)
        if not config.batchnorm:
            whole = F.interpolate(whole, scale_factor=config.upsample, mode="bilinear")
        weights = torch.relu(layers(whole)) + 0.1
        depth = torch.einsum("ikmn,k->imn", weights / weights.sum(1, keepdim=True), bins)
        groups = [slice(at, at + config.pooled) for at in range(0, len(truth), config.pooled)]
        loss = sum(len(truth[g]) / len(truth) * reference_loss(depth[g], truth[g], batch.step >= 2) for g in groups)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(layers.parameters(), config.clip)
        for one in optimizer.param_groups:
            one["lr"] = 1e-2 * rate_factor(config.schedule, batch.step, STEPS, config.warmup)
            if config.schedule == "one cycle":
                one["betas"] = (cycled_momentum(batch.step, STEPS, config.warmup), config.second_beta)
        optimizer.step()
    slots = [slot for slot, (g, _) in enumerate(heads.stack.slots) if g == group]
    torch.testing.assert_close(
        torch.cat([heads.stack.weight[slot, rate] for slot in slots], 1), conv.weight[:, :, 0, 0], atol=2e-5, rtol=1e-3
    )
    torch.testing.assert_close(heads.stack.bias[group, rate], conv.bias, atol=2e-5, rtol=1e-3)


def initial(
    network: Backbone, config: DepthConfig, keys: tuple[tuple[str, int], ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """First weights (K, channels) and bias (K,) of a group."""
    std = 0.01 if config.init == "normal" else 0.0
    stack = HeadStack([keys], [1e-2], config.bins, network.dim, 0.0, torch.device("cpu"), init_std=std, seed=0)
    if config.init == "uniform":
        draw_uniform(stack, 0)
    return torch.cat(list(stack.weight[:, 0]), 1), stack.bias[0, 0]


def test_what_is_saved_predicts_what_was_scored(network: Backbone, rooms: DepthDataset) -> None:
    heads, _ = fitted(network, rooms, protocol="dinov3")
    scored = heads.score(rooms, np.arange(2), "x", mapped=1, workers=1)
    assert scored.scores.shape == (3, 2, 2, len(NAMES))
    assert scored.maps.shape == (3, 2, 1, 12, 12)
    tensors = folded_heads(heads.stack, [0, 0, 0], heads.norm.constants())
    assert set(tensors) == {
        "block1.bias", "block1.1.patches.weight", "block2.bias", "block2.2.patches.weight", "block1+2.bias",
        "block1+2.1.patches.weight", "block1+2.2.patches.weight",
    }  # fmt: skip
    image = torch.from_numpy(rooms.read(0)).permute(2, 0, 1)
    read, grid = heads.features([image])
    logits = read["patches", 2] @ tensors["block2.2.patches.weight"].T + tensors["block2.bias"]
    weights = torch.relu(logits) + 0.1
    depth = (weights / weights.sum(1, keepdim=True)) @ heads.bins
    whole = F.interpolate(depth.view(1, 1, *grid), size=(40, 40), mode="bilinear")[0, 0]
    truth = torch.from_numpy(rooms.depth(0))
    assert scored.scores[1, 0, 0, 0] == pytest.approx(float((whole - truth).square().mean().sqrt()), rel=1e-4)


def test_flipped_predictions_are_turned_back(network: Backbone, rooms: DepthDataset) -> None:
    heads, _ = fitted(network, rooms)
    both = replace(heads, config=heads.config.model_copy(update={"flip_test": True}))
    mean = both.score(rooms, np.arange(1), "x", workers=1).scores[0, 0, 0, 0]
    image = torch.from_numpy(rooms.read(0)).permute(2, 0, 1)
    one, mirrored = next(iter(heads.predict([image, image.flip(2)], (40, 40))))[0]
    truth = torch.from_numpy(rooms.depth(0))
    assert mean == pytest.approx(float(((one + mirrored.flip(1)) / 2 - truth).square().mean().sqrt()), rel=1e-5)
