"""Linear CKA."""

from __future__ import annotations

import math

import pytest
import torch

from dinoskip.diagnostics import (
    StreamingCKA,
    cka_between,
    linear_cka,
)
from dinoskip.init.orthogonal import haar
from dinoskip.runtime.randomness import torch_rng
from tests.helpers.small_network import IMAGES, network, randn


def test_streaming_cka() -> None:
    layers = [randn(300, 8, seed=i) for i in range(2)]
    layers.append(layers[0] @ haar(8, 8, torch_rng(1)) * 2)
    streaming = StreamingCKA()
    for start in range(0, 300, 100):
        streaming.update([layer[start : start + 100] for layer in layers])
    matrix = streaming.matrix()
    torch.testing.assert_close(matrix.diagonal(), torch.ones(3, dtype=torch.float64))
    assert matrix[0, 2] == pytest.approx(1.0)
    assert abs(float(matrix[0, 1])) < 0.05 < linear_cka(layers[0][:100], layers[1][:100]), "unbiased, unlike plain CKA"
    with pytest.raises(ValueError, match="no batch"):
        StreamingCKA().matrix()


def test_a_collapsed_layer_is_similar_to_nothing() -> None:
    varied, equal = randn(64, 8, seed=1), randn(1, 8, seed=2).repeat(64, 1) * (1 + 1e-15 * randn(64, 1, seed=3))
    streaming = StreamingCKA()
    streaming.update([varied, equal, equal + 1e-6 * varied])
    matrix = streaming.matrix()
    assert matrix[1].isnan().all()
    assert matrix[0, 2] == pytest.approx(1.0, abs=1e-6), "little is not nothing"
    assert math.isnan(linear_cka(varied, equal))
    assert linear_cka(varied, equal + 1e-6 * varied) == pytest.approx(1.0, abs=1e-6)


def test_cka_between_networks() -> None:
    backbone = network()
    matrix = cka_between(backbone, backbone, IMAGES)
    torch.testing.assert_close(matrix.diagonal(), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(matrix, matrix.T)
