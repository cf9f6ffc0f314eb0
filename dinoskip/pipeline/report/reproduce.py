"""Reproduction of a study: its settings as YAML, and the commands that read them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML

from dinoskip.runtime.environment import describe


def commands(study: str) -> list[str]:
    """Shell lines that make the study and its page again, of its settings as YAML."""
    versions, digest = describe(), hashlib.sha256(study.encode()).hexdigest()
    return [
        f"# dinoskip {versions['dinoskip']}, Python {versions['python']}, torch {versions['torch']}",
        f"# study.yaml, in this folder, has every setting written out; sha256 {digest}",
        "dinoskip run study.yaml      # everything; data.NAME.root=DIR where data lie elsewhere",
        "dinoskip report study.yaml   # this page again, from the stages that are there",
    ]


def yaml_of(study: Mapping[str, Any]) -> str:
    """Return the settings of a study as YAML, from which ``dinoskip run`` repeats it."""
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(study, stream)
    return stream.getvalue()
