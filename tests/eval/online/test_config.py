"""Settings of the evaluation while training."""

from __future__ import annotations

from typing import Any

import pytest

from dinoskip.config import RawConfig, validate
from dinoskip.errors import ConfigError
from eval.online.config import OnlineConfig


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"knn": {}}, "knn.dataset: this key is required"),
        ({"knn": {"dataset": "a", "k": [9], "train_images": 5}}, "9 exceeds train_images"),
        ({"knn": {"dataset": "a", "k": [5, 5]}}, "given twice"),
        ({"probe": {"dataset": "a", "train_images": 1}}, "probe.train_images"),
        ({"probe": {"dataset": "a", "blocks": []}}, "probe.blocks"),
    ],
)
def test_ranges(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(OnlineConfig, RawConfig(tree))


def test_parts_and_splits_follow_what_is_asked_for() -> None:
    both = validate(OnlineConfig, RawConfig({"knn": {"dataset": "a", "held_out": True}, "probe": {"dataset": "b"}}))
    assert {name: (part.dataset, part.use, part.splits) for name, part in both.parts.items()} == {
        "knn": ("a", "classes", ("train",)),
        "probe": ("b", "segmentation", ("train", "val")),
    }
    assert OnlineConfig().parts == {}
