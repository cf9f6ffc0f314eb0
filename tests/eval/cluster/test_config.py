"""Settings of unsupervised segmentation."""

from __future__ import annotations

from typing import Any

import pytest

from dinoskip.config import RawConfig, validate
from dinoskip.errors import ConfigError
from dinoskip.features import Transform
from eval.cluster import ClusteringConfig


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"clusters": [1]}, "clusters"),
        ({"protocol": "picie"}, "none of ours, stego, leopart"),
        ({"pca": 8}, "pca needs scale=standard or none"),
        ({"protocol": "stego", "scale": "unit"}, "method=cosine compares patches as they are"),
        ({"protocol": "stego", "scored_at": 100}, "scored at the crop's size"),
    ],
)
def test_ranges(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(ClusteringConfig, RawConfig(tree))


def test_protocols_are_the_references() -> None:
    leopart, stego = ClusteringConfig(protocol="leopart"), ClusteringConfig(protocol="stego")
    assert (leopart.pca, leopart.iterations, leopart.restarts, leopart.seeds) == (50, 100, 5, 5)
    assert (leopart.match, leopart.scored_at, leopart.fitted_on) == ("iou", 100, "val")
    assert (stego.steps, stego.batch_size, stego.learning_rate, stego.match) == (5000, 16, 5e-3, "pixels")
    assert Transform(**stego.transform("val")).label == "320 short_crop, nearest, flip"
    assert Transform(**stego.transform("train")).label == "224 short_crop, nearest"
    assert Transform(**leopart.transform("val")).label == "448 square, bilinear"
    assert Transform(**ClusteringConfig().transform("train")).label == "448 square"


def test_label_says_what_was_changed() -> None:
    assert ClusteringConfig(clusters=30, size=224).label == "ours"
    assert ClusteringConfig(protocol="leopart", pca=20).label == "leopart, pca 20"
    assert ClusteringConfig(clusters=30).numbers(21) == (30,)
    assert ClusteringConfig().numbers(21) == (21,)
