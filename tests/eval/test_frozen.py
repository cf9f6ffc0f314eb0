"""Features of batches: those of the backbone itself, padded in the middle; what is not finite is refused."""

from __future__ import annotations

import pytest
import torch

from dinoskip.errors import ConfigError, DataError
from dinoskip.features.transform import Normalise
from eval.frozen import FrozenFeatures
from tests.helpers.tiny_vit import tiny_vit

CPU = torch.device("cpu")


def images(height: int, width: int) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return list(torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8, generator=rng))


def test_features_are_the_backbones_of_the_padded_images() -> None:
    network, pixels = tiny_vit(), images(30, 40)
    keys = [("patches", 1), ("cls", 2), ("mean", 2)]
    features, grid = FrozenFeatures(network, keys, "final")(pixels)
    assert grid == (2, 3)
    plain = Normalise(network.mean, network.std, CPU, torch.float32)(pixels, 30, 40)
    padded = torch.zeros(2, 3, 32, 48)
    padded[:, :, 1:31, 4:44] = plain
    layers = network.layers(padded, [1, 2], norm="final")
    torch.testing.assert_close(features["patches", 1], layers[1].tokens.flatten(0, 1))
    torch.testing.assert_close(features["cls", 2], layers[2].cls)
    torch.testing.assert_close(features["mean", 2], layers[2].tokens.mean(1))


def test_what_cannot_be_read_is_named() -> None:
    network = tiny_vit()
    with pytest.raises(ConfigError, match="block 3 is beyond the 2 blocks"):
        FrozenFeatures(network, [("patches", 3)], "none")
    torch.nn.init.constant_(network.model.blocks[1].mlp.fc2.bias, float("nan"))
    with pytest.raises(DataError, match="features of block 2 are not finite"):
        FrozenFeatures(network, [("patches", 1), ("cls", 2)], "none")(images(32, 32))
