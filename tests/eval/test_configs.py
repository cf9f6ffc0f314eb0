"""Settings of tasks: what is refused, in one line, and what rows say of those that were changed."""

from __future__ import annotations

from typing import Any

import pytest

from dinoskip.errors import ConfigError
from dinoskip.settings.config import Config, RawConfig, validate
from eval.knn.config import KnnConfig
from eval.online.config import OnlineConfig
from eval.retrieval.config import RetrievalConfig
from eval.tokencut.config import TokenCutConfig

REFUSED: dict[type[Config], list[tuple[dict[str, Any], str]]] = {
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
        (RetrievalConfig(), "hummingbird, memory 102400, k 30, temperature 0.02"),
        (
            RetrievalConfig(index="ivf", k=1, memory=1),
            "hummingbird, memory 1, k 1, temperature 0.02, ivf index",
        ),
    ],
)
def test_label_says_what_was_changed(config: Any, label: str) -> None:
    assert config.label == label


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
