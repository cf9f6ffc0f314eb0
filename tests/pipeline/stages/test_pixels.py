"""Baselines of pixels are made once for all networks of one patch size, and rows have them as if each made its own."""

from __future__ import annotations

import json
from pathlib import Path

from dinoskip.io.files import write_text
from dinoskip.pipeline.study import build_nodes, load_study

NETWORK = "timm:vit_tiny_patch{}_224,depth=1,pretrained=false"


def nodes_of(tmp_path: Path, **probe: object) -> dict[str, dict[str, str]]:
    models = [{"backbone": NETWORK.format(patch)} for patch in ("16", "16", "8")]
    models[1]["backbone"] += ",seed=1"
    tree = {
        "name": "three",
        "data": {"scenes": {"kind": "scenes", "images": 4, "size": 64}},
        "variants": {"model": models},
        "evaluate": {"probe": {"datasets": ["scenes"], "size": 32, **probe}},
    }
    write_text(tmp_path / "study.yaml", json.dumps(tree))
    return {node.id: dict(node.inputs) for node in build_nodes(*load_study(str(tmp_path / "study.yaml"), []))}


def test_a_floor_for_each_size_of_patch(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, pixels=True)
    assert [name for name in nodes if name.startswith("pixels/")] == [
        "pixels/probe/scenes-patch16", "pixels/probe/scenes-patch8",
    ]  # fmt: skip
    read = [inputs["floor"] for name, inputs in nodes.items() if name.startswith("probe/")]
    assert read == ["pixels/probe/scenes-patch16"] * 2 + ["pixels/probe/scenes-patch8"]


def test_none_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert not [name for name, inputs in nodes_of(tmp_path).items() if "floor" in inputs or name.startswith("pixels")]
