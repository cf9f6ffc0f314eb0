"""Inputs of probes: stores of one norm, of norm none for several, or the images themselves and the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dinoskip.errors import ConfigError
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.study import build_nodes, load_study
from tests.helpers.study import TINY


def nodes_of(tmp_path: Path, *overrides: str) -> dict[str, Node]:
    (tmp_path / "tiny.yaml").write_text(TINY)
    return {node.id: node for node in build_nodes(*load_study(tmp_path / "tiny.yaml", overrides))}


def probe_of(nodes: dict[str, Node]) -> Node:
    return next(node for name, node in nodes.items() if node.stage == "probe")


def stores(node: Node, nodes: dict[str, Node]) -> dict[str, Any]:
    return {role: nodes[name].plain["norm"] for role, name in node.inputs.items() if name.startswith("features/")}


def test_one_norm_is_exported_as_it_is(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path)
    probe = probe_of(nodes)
    assert stores(probe, nodes) == {"train": "final", "val": "final"}
    assert "weights" not in probe.inputs
    single = nodes_of(tmp_path, "evaluate.norm=[final]")
    assert {name: node.plain for name, node in nodes.items() if node.stage == "features"} == {
        name: node.plain for name, node in single.items() if node.stage == "features"
    }


def test_several_norms_are_of_one_store_and_the_rest_is_of_the_first(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, "evaluate.norm=[final,none,layer]", "evaluate.retrieve.size=64")
    probe = probe_of(nodes)
    assert stores(probe, nodes) == {"train": "none", "val": "none"}
    assert probe.inputs["weights"].startswith("weights/")
    assert probe.plain["norms"] == ["final", "none", "layer"]
    for stage in ("retrieve", "knn"):
        node = next(node for node in nodes.values() if node.stage == stage)
        assert set(stores(node, nodes).values()) == {"final"}
    assert nodes["gallery"].settings.norm == "final"


def test_live_probes_read_images(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, "evaluate.probe={datasets: [scenes], protocol: dinov2, size: 64, stride: 48}")
    probe = probe_of(nodes)
    assert stores(probe, nodes) == {}
    assert set(probe.inputs) == {"weights", "data"}
    assert probe.plain["probe"]["iterations"] == 40_000


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("evaluate.probe={protocol: dinov5}", "evaluate.probe.protocol: 'dinov5' is none of paper"),
        ("evaluate.probe={stride: 48}", "evaluate.probe: sliding windows"),
        ("evaluate.norm=[]", "evaluate.norm: must name one at least"),
        ("evaluate.norm=[last]", "evaluate.norm.0: 'last' is none of none, final, layer"),
    ],
)
def test_what_cannot_be_is_said_at_once(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as failure:
        nodes_of(tmp_path, override)
    (line,) = failure.value.problems
    assert message in line
