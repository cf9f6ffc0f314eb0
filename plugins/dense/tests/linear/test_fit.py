"""Stacked classifiers against one linear layer trained alone by torch's own SGD on the same crops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dinoskip_dense.linear.fit as linear_fit
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.errors import ConfigError
from dinoskip.models import Backbone
from dinoskip_dense.linear.config import LinearConfig
from dinoskip_dense.linear.fit import fit_heads, groups_of, logit_gradients, score_heads, span_of
from eval.frozen import FrozenFeatures
from eval.heads import FittedHeads
from eval.probe.loaders import training_batches
from eval.probe.stack import HeadStack
from eval.schedules import rate_factor
from tests.helpers.labelled import make_classes
from tests.helpers.tasks import network_inputs
from tests.helpers.tiny_vit import tiny_vit

SETTINGS = {"batch_size": 5, "epochs": 2, "size": 32, "learning_rates": (1e-1, 2.0), "last": (1, 2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> LabelledFolder:
    return LabelledFolder.open(make_classes(tmp_path_factory.mktemp("classes"), 3))


@pytest.fixture(scope="module")
def network() -> Backbone:
    return tiny_vit(16, 32, 3)


def fitted(network: Backbone, folder: LabelledFolder, **settings: object) -> tuple[FittedHeads, LinearConfig]:
    config = LinearConfig.model_validate({**SETTINGS, **settings})
    groups = groups_of([2, 3], None, config)
    return fit_heads(network_inputs(network, config, train=folder), np.arange(len(folder)), groups), config


@pytest.mark.parametrize("protocol", ["dinov2", "dino"])
def test_a_head_of_the_stack_is_a_layer_trained_alone(network: Backbone, folder: LabelledFolder, protocol: str) -> None:
    heads, config = fitted(network, folder, protocol=protocol)
    group = len(heads.stack.groups) - 1  # most blocks, and the mean where there is one
    keys, rate = heads.stack.groups[group], 1
    layer = nn.Linear(network.dim * len(keys), 3)
    first = HeadStack([keys], [1.0], 3, network.dim, 0.0, torch.device("cpu"), init_std=0.01, seed=0)
    with torch.no_grad():
        layer.weight.copy_(torch.cat(list(first.weight[:, 0]), 1))
        layer.bias.zero_()
    assert float(layer.weight.detach().std()) == pytest.approx(0.01, rel=0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9)
    features, steps = FrozenFeatures(network, keys, "final"), config.steps(len(folder))
    assert steps == 4
    for batch in training_batches(np.arange(len(folder)), config, 0):
        read, _ = features([linear_fit._crop(folder, row, batch.epoch, config, 0) for row in batch.rows.tolist()])
        loss = F.cross_entropy(
            layer(torch.cat([read[key] for key in keys], 1)), torch.from_numpy(folder.labels[batch.rows])
        )
        optimizer.zero_grad()
        loss.backward()
        for one in optimizer.param_groups:
            one["lr"] = 2.0 * 5 / 256 * rate_factor(config.schedule, batch.step, steps, epoch_steps=2)
        optimizer.step()
    slots = [slot for slot, (owner, _) in enumerate(heads.stack.slots) if owner == group]
    torch.testing.assert_close(torch.cat([heads.stack.weight[slot, rate] for slot in slots], 1), layer.weight.detach())
    torch.testing.assert_close(heads.stack.bias[group, rate], layer.bias.detach())


def test_slopes_are_autograds() -> None:
    rng = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(4, 6, 7, dtype=torch.float64, generator=rng), torch.arange(7) % 6
    leaf = logits.clone().requires_grad_()
    total = sum(F.cross_entropy(head.T, labels) for head in leaf)
    (wanted,) = torch.autograd.grad(total, leaf)
    torch.testing.assert_close(logit_gradients(logits.reshape(24, 7), labels, 6).view_as(logits), wanted)


def test_every_block_alone_and_with_those_before_it() -> None:
    config = LinearConfig(last=(1, 4))
    groups = groups_of([3, 4], [1, 4], config)
    assert list(dict.fromkeys(map(span_of, groups))) == ["3", "4", "1+2+3+4", "1+4"]
    assert groups[1] == (("cls", 3), ("mean", 3))
    assert groups[5] == (("cls", 1), ("cls", 2), ("cls", 3), ("cls", 4), ("mean", 4))
    assert len(groups_of([12], None, LinearConfig())) * len(LinearConfig().rates) == 52  # DINOv2's own number
    assert len(groups_of([12], None, LinearConfig(protocol="dino", last=(4,)))) == 1


def test_hits_are_those_of_the_logits(network: Backbone, folder: LabelledFolder) -> None:
    heads, _ = fitted(network, folder)
    hits = score_heads(heads, folder, np.array([0, 4, 8]), "x", workers=1)
    assert hits.first.shape == (len(heads.stack.groups), 2, 3)
    assert hits.five.all(), "three classes are all among the best five"
    heads.stack.weight[0, 1] = float("nan")
    assert not score_heads(heads, folder, np.array([0]), "x", workers=1).first[0, 1].any()


def test_more_heads_than_memory_are_refused(
    network: Backbone, folder: LabelledFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_fit, "memory_limit", lambda: 1000)
    with pytest.raises(ConfigError, match="linear: the heads take"):
        fitted(network, folder)


def test_crops_depend_on_the_image_and_the_visit_alone(folder: LabelledFolder, tmp_path: Path) -> None:
    config = LinearConfig.model_validate(SETTINGS)
    one, again, later = (linear_fit._crop(folder, 2, epoch, config, 0) for epoch in (1, 1, 2))
    assert one.shape == (3, 32, 32)
    assert one.dtype == torch.uint8
    assert torch.equal(one, again)
    assert not torch.equal(one, later)
