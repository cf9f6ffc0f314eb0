"""Settings of dense tasks: what is refused, in one line, and what rows say of those that were changed."""

from __future__ import annotations

from typing import Any

import pytest

from dinoskip.errors import ConfigError
from dinoskip.features import Transform
from dinoskip.settings.config import Config, RawConfig, validate
from dinoskip_dense.cluster import ClusteringConfig
from dinoskip_dense.depth import DepthConfig
from dinoskip_dense.depth.config import PROTOCOLS

REFUSED: dict[type[Config], list[tuple[dict[str, Any], str]]] = {
    ClusteringConfig: [
        ({"clusters": [1]}, "clusters"),
        ({"protocol": "picie"}, "none of ours, stego, leopart"),
        ({"pca": 8}, "pca needs scale=standard or none"),
        ({"protocol": "stego", "scale": "unit"}, "method=cosine compares patches as they are"),
        ({"protocol": "stego", "scored_at": 100}, "scored at the crop's size"),
    ],
    DepthConfig: [({"min_depth": 5.0, "max_depth": 5.0}, "min_depth 5 is not below max_depth 5")],
}


@pytest.mark.parametrize(
    ("config", "tree", "message"), [(config, *one) for config, refused in REFUSED.items() for one in refused]
)
def test_ranges(config: type[Config], tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(config, RawConfig(tree))


@pytest.mark.parametrize(
    ("config", "label"),
    [
        (ClusteringConfig(clusters=30, size=224), "ours"),
        (ClusteringConfig(protocol="leopart", pca=20), "leopart, pca 20"),
        (DepthConfig(), "dinov2"),
        (
            DepthConfig(iterations=20, learning_rates=(1e-3, 1e-2), maps=1),
            "dinov2, learning rates 0.001 0.01, iterations 20",
        ),
    ],
)
def test_label_says_what_was_changed(config: Any, label: str) -> None:
    assert config.label == label


def test_protocols_of_clusters_are_the_references() -> None:
    leopart, stego = ClusteringConfig(protocol="leopart"), ClusteringConfig(protocol="stego")
    assert (leopart.pca, leopart.iterations, leopart.restarts, leopart.seeds) == (50, 100, 5, 5)
    assert (leopart.match, leopart.scored_at, leopart.fitted_on) == ("iou", 100, "val")
    assert (stego.steps, stego.batch_size, stego.learning_rate, stego.match) == (5000, 16, 5e-3, "pixels")
    assert Transform(**stego.transform("val")).label == "320 short_crop, nearest, flip"
    assert Transform(**stego.transform("train")).label == "224 short_crop, nearest"
    assert Transform(**leopart.transform("val")).label == "448 square, bilinear"
    assert Transform(**ClusteringConfig().transform("train")).label == "448 square"
    assert ClusteringConfig(clusters=30).numbers(21) == (30,)
    assert ClusteringConfig().numbers(21) == (21,)


def test_a_protocol_of_depth_gives_what_is_not_given() -> None:
    third = DepthConfig(protocol="dinov3", upsample=2)
    shown = (third.norm, third.cls, third.batchnorm, third.upsample, third.schedule)
    assert shown == ("final", False, True, 2, "one cycle")
    assert DepthConfig() == DepthConfig(protocol="dinov2")
    assert set(PROTOCOLS) == {"dinov2", "dinov3"}
