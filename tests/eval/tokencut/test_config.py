"""Settings of object discovery."""

from __future__ import annotations

from typing import Any

import pytest

from dinoskip.config import RawConfig, validate
from dinoskip.errors import ConfigError
from eval.tokencut.config import TokenCutConfig


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"tau": 1.5}, "tau"),
        ({"tau": [0.2, 0.2]}, "given twice"),
        ({"tau": []}, "tau"),
        ({"eps": 0.0}, "eps"),
        ({"lost_k": 0}, "lost_k"),
        ({"overlays": -1}, "overlays"),
    ],
)
def test_ranges(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(TokenCutConfig, RawConfig(tree))


def test_methods_name_protocols_and_files() -> None:
    assert TokenCutConfig(tau=0.5).methods == {"tokencut tau=0.5 eps=1e-05": "boxes.json"}
    assert TokenCutConfig(tau=(0, 0.2), lost_k=7).methods == {
        "tokencut tau=0 eps=1e-05": "boxes.json",
        "tokencut tau=0.2 eps=1e-05": "boxes_tau0.2.json",
        "lost k=7": "boxes_lost.json",
    }
