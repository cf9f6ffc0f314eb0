"""Gradient norms by part."""

from __future__ import annotations

import math

import pytest

from dinoskip.diagnostics import (
    gradient_norms,
)
from tests.helpers.small_network import IMAGES, network


def test_gradient_norms_are_those_of_backward() -> None:
    backbone = network()
    rows = gradient_norms(backbone, IMAGES)
    assert all(parameter.grad is None for parameter in backbone.model.parameters())
    assert set(rows[0]) == {"block", "query", "key", "value", "output", "fc1", "fc2"}
    assert all(value > 0 for row in rows for value in row.values())
    assert all(
        math.hypot(*(row[part] for part in row if part != "block")) == pytest.approx(row["block"]) for row in rows
    )
