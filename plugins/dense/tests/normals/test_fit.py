"""Stacked normal heads against one convolution trained alone by torch's own optimizer on the same crops."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from dinoskip_dense.geometry import NormalsDataset
from dinoskip_dense.normals.angles import normal_scores
from dinoskip_dense.normals.config import NormalsConfig
from dinoskip_dense.normals.fit import _crop, fit_heads
from dinoskip_dense.sets.rooms import RoomsConfig
from eval.frozen import FrozenFeatures
from eval.probe.loaders import training_batches
from eval.probe.stack import HeadStack
from eval.schedules import rate_factor
from eval.stacked import draw_uniform, folded_heads, groups_of
from plugins.dense.tests.normals.test_angles import plain_loss
from tests.helpers.tasks import network_inputs
from tests.helpers.tiny_vit import tiny_vit


def rooms(folder: object) -> NormalsDataset:
    config = RoomsConfig(images=6, size=40)
    return config.open_normals(config.generate(folder), "train", None)  # type: ignore[arg-type]


def test_a_head_of_the_stack_is_a_convolution_trained_alone(tmp_path: object) -> None:
    dataset = rooms(tmp_path)
    network = tiny_vit()
    config = NormalsConfig(epochs=2, batch_size=3, learning_rates=(1e-3, 1e-2))
    groups, every = groups_of([1, 2], [1, 2], cls=False), np.arange(len(dataset))
    heads = fit_heads(network_inputs(network, config, train=dataset), every, groups)
    keys, steps = groups[2], config.steps(len(dataset))
    first = HeadStack([keys], [1.0], 4, network.dim, 0.0, torch.device("cpu"))
    draw_uniform(first, 0)
    conv = nn.Conv2d(2 * network.dim, 4, 1)
    with torch.no_grad():
        conv.weight.copy_(torch.cat(list(first.weight[:, 0]), 1)[:, :, None, None])
        conv.bias.copy_(first.bias[0, 0])
    optimizer, features = torch.optim.AdamW(conv.parameters(), lr=1e-2), FrozenFeatures(network, keys, "none")
    for batch in training_batches(every, config, 0):
        images, truth, valid = zip(
            *(_crop(dataset, row, batch.epoch, config, 0) for row in batch.rows.tolist()), strict=True
        )
        read, grid = features(images)
        maps = torch.cat([read[key].view(len(images), -1, network.dim).transpose(1, 2) for key in keys], 1)
        fine = F.interpolate(maps.view(len(images), -1, *grid), scale_factor=4, mode="bilinear")
        pixels = F.interpolate(conv(fine), size=truth[0].shape[1:], mode="bicubic")
        optimizer.zero_grad()
        plain_loss(pixels, torch.stack(truth), torch.stack(valid)).backward()
        optimizer.param_groups[0]["lr"] = 1e-2 * rate_factor("quarter cosine", batch.step, steps, config.warmup)
        optimizer.step()
    slots = [slot for slot, (owner, _) in enumerate(heads.stack.slots) if owner == 2]
    have = torch.cat([heads.stack.weight[slot, 1] for slot in slots], 1)
    torch.testing.assert_close(have, conv.weight.detach()[:, :, 0, 0], atol=3e-5, rtol=1e-3)
    torch.testing.assert_close(heads.stack.bias[2, 1], conv.bias.detach(), atol=3e-5, rtol=1e-3)

    scored = heads.score(dataset, np.arange(2), "x", mapped=1, workers=1)
    assert scored.maps.shape == (3, 2, 1, 3, 12, 12)
    tensors = folded_heads(heads.stack, [0, 0, 1])
    one = dataset.read(0)
    read, grid = heads.features([torch.from_numpy(one.image).permute(2, 0, 1)])
    logits = (
        sum(read["patches", b] @ tensors[f"block1+2.{b}.patches.weight"].T for b in (1, 2)) + tensors["block1+2.bias"]
    )
    fine = F.interpolate(logits.T.reshape(1, 4, *grid), scale_factor=4, mode="bilinear")
    pixels = F.interpolate(fine, size=(40, 40), mode="bicubic")[0, :3]
    wanted = normal_scores(pixels, torch.from_numpy(one.normals).permute(2, 0, 1), torch.from_numpy(one.valid))
    np.testing.assert_allclose(scored.scores[2, 1, 0], wanted.numpy(), rtol=1e-3, atol=2e-3)
