"""Settings of tasks: what is refused, in one line, and what rows say of those that were changed."""

from __future__ import annotations

from typing import Any

import pytest

from dinoskip.errors import ConfigError
from dinoskip.features import Transform
from dinoskip.settings.config import Config, RawConfig, validate
from dinoskip_dense.cluster import ClusteringConfig
from dinoskip_dense.depth import DepthConfig
from dinoskip_dense.depth.config import PROTOCOLS
from eval.knn.config import KnnConfig
from eval.online.config import OnlineConfig
from eval.retrieval.config import RetrievalConfig
from eval.tokencut.config import TokenCutConfig

REFUSED: dict[type[Config], list[tuple[dict[str, Any], str]]] = {
    ClusteringConfig: [
        ({"clusters": [1]}, "clusters"),
        ({"protocol": "picie"}, "none of ours, stego, leopart"),
        ({"pca": 8}, "pca needs scale=standard or none"),
        ({"protocol": "stego", "scale": "unit"}, "method=cosine compares patches as they are"),
        ({"protocol": "stego", "scored_at": 100}, "scored at the crop's size"),
    ],
    DepthConfig: [({"min_depth": 5.0, "max_depth": 5.0}, "min_depth 5 is not below max_depth 5")],
    KnnConfig: [
        ({"k": []}, "k"),
        ({"k": [0]}, "greater than or equal to 1"),
        ({"k": [5, 5]}, "given twice"),
        ({"temperature": 0.0}, "temperature"),
        ({"size": 8}, "size"),
        ({"backend": "annoy"}, "none of torch, faiss, ivf"),
    ],
    OnlineConfig: [
        ({"knn": {}}, "knn.dataset: this key is required"),
        ({"knn": {"dataset": "a", "k": [9], "train_images": 5}}, "9 exceeds train_images"),
        ({"knn": {"dataset": "a", "k": [5, 5]}}, "given twice"),
        ({"probe": {"dataset": "a", "train_images": 1}}, "probe.train_images"),
        ({"probe": {"dataset": "a", "blocks": []}}, "probe.blocks"),
    ],
    RetrievalConfig: [
        ({"memory": 10, "k": 30}, "30 neighbours cannot be had of a memory of 10 patches"),
        ({"memory": 29}, "30 neighbours cannot be had"),
        ({"temperature": 0}, "temperature"),
        ({"index": "hnsw"}, "none of flat, ivf"),
    ],
    TokenCutConfig: [
        ({"tau": 1.5}, "tau"),
        ({"tau": [0.2, 0.2]}, "given twice"),
        ({"tau": []}, "tau"),
        ({"eps": 0.0}, "eps"),
        ({"lost_k": 0}, "lost_k"),
        ({"overlays": -1}, "overlays"),
    ],
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
        (RetrievalConfig(), "hummingbird, memory 102400, k 30, temperature 0.02"),
        (
            RetrievalConfig(index="ivf", k=1, memory=1),
            "hummingbird, memory 1, k 1, temperature 0.02, ivf index",
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


def test_parts_and_splits_follow_what_is_asked_for() -> None:
    both = validate(OnlineConfig, RawConfig({"knn": {"dataset": "a", "held_out": True}, "probe": {"dataset": "b"}}))
    assert {name: (part.dataset, part.use, part.splits) for name, part in both.parts.items()} == {
        "knn": ("a", "classes", ("train",)),
        "probe": ("b", "segmentation", ("train", "val")),
    }
    assert OnlineConfig().parts == {}


def test_methods_of_discovery_name_protocols_and_files() -> None:
    assert TokenCutConfig(tau=0.5).methods == {"tokencut tau=0.5 eps=1e-05": "boxes.json"}
    assert TokenCutConfig(tau=(0, 0.2), lost_k=7).methods == {
        "tokencut tau=0 eps=1e-05": "boxes.json",
        "tokencut tau=0.2 eps=1e-05": "boxes_tau0.2.json",
        "lost k=7": "boxes_lost.json",
    }
