"""Settings of k-NN."""

from __future__ import annotations

from typing import Any

import pytest

from dinoskip.config import RawConfig, validate
from dinoskip.errors import ConfigError
from eval.knn.config import KnnConfig


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"k": []}, "k"),
        ({"k": [0]}, "greater than or equal to 1"),
        ({"k": [5, 5]}, "given twice"),
        ({"temperature": 0.0}, "temperature"),
        ({"size": 8}, "size"),
        ({"backend": "annoy"}, "none of torch, faiss, ivf"),
    ],
)
def test_ranges(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(KnnConfig, RawConfig(tree))
