"""Rows, table and figure of Jacobians through the depth."""

from __future__ import annotations

from pathlib import Path

import torch

from dinoskip.diagnostics import bundled_photos
from dinoskip.models import Backbone
from dinoskip_diagnostics.depth import depth_text, draw, through_the_depth
from tests.helpers.small_network import network


def test_a_network_is_measured_and_one_that_cannot_be_is_left_out(tmp_path: Path) -> None:
    levels = Backbone.from_model(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2, 1)), layers=["0"], image_size=32)
    networks = {"a": network(), "b": levels}
    found = through_the_depth(networks, dict.fromkeys(networks, bundled_photos(1, 48)))
    assert list(found) == ["a"]
    assert [row["block"] for row in found["a"]["rows"]] == [1, 2]
    assert all(row["exact"] and row["kappa"] >= row["kappa_seen"] >= 1 for row in found["a"]["rows"])
    assert any("kappa_seen" in line for line in depth_text(found))
    draw(found, tmp_path)
    assert (tmp_path / "jacobian.svg").stat().st_size > 1000


def test_columns_that_no_row_has_are_left_out() -> None:
    row = {"block": 1, "largest": 2.0, "largest_error": 0.1, "smallest": 0.5, "kappa": 4.0, "exact": False}
    unknown = dict.fromkeys(("kappa_seen", "kappa_mlp", "kappa_mlp_seen"))
    _, title, head, line = depth_text({"net": {"rows": [row | unknown], "kappa": None, "kappa_seen": None}})
    assert title.startswith("net")
    assert head.split() == ["block", "largest", "largest_error", "smallest", "kappa"]
    assert len(line.split()) == 5
