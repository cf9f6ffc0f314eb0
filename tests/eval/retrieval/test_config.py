"""Settings of dense retrieval."""

from __future__ import annotations

from typing import Any

import pytest

from dinoskip.config import RawConfig, validate
from dinoskip.errors import ConfigError
from eval.retrieval.config import RetrievalConfig


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"memory": 10, "k": 30}, "30 neighbours cannot be had of a memory of 10 patches"),
        ({"memory": 29}, "30 neighbours cannot be had"),
        ({"temperature": 0}, "temperature"),
        ({"index": "hnsw"}, "none of flat, ivf"),
    ],
)
def test_ranges(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(RetrievalConfig, RawConfig(tree))


def test_label_says_what_decides_the_numbers() -> None:
    assert RetrievalConfig().label == "hummingbird, memory 102400, k 30, temperature 0.02"
    assert RetrievalConfig(index="ivf", k=1, memory=1).label.endswith("memory 1, k 1, temperature 0.02, ivf index")
