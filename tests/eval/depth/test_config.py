"""Protocols of depth heads, and what rows say of changed settings."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from eval.depth.config import PROTOCOLS, DepthConfig


def test_a_protocol_gives_what_is_not_given() -> None:
    third = DepthConfig(protocol="dinov3", upsample=2)
    assert (third.norm, third.cls, third.batchnorm, third.upsample, third.schedule) == (
        "final", False, True, 2, "one cycle",
    )  # fmt: skip
    assert DepthConfig() == DepthConfig(protocol="dinov2")
    assert set(PROTOCOLS) == {"dinov2", "dinov3"}


def test_rows_say_what_was_changed() -> None:
    assert DepthConfig().label == "dinov2"
    changed = DepthConfig(iterations=20, learning_rates=(1e-3, 1e-2), maps=1)
    assert changed.label == "dinov2, learning rates 0.001 0.01, iterations 20"


def test_the_nearest_is_nearer_than_the_farthest() -> None:
    with pytest.raises(ValidationError, match="min_depth 5 is not below max_depth 5"):
        DepthConfig(min_depth=5, max_depth=5)


def test_settings_cost_no_torch() -> None:
    code = "import sys, eval.depth.config, eval.depth; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
