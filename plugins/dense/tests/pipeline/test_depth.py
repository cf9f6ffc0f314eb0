"""The stage ``depth``: its nodes, the command on its own, and what a study may ask of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.results.rows import read_rows
from dinoskip_dense.sets.rooms import RoomsConfig
from tests.helpers.study import TINY

ROOMS = "data.rooms={kind: rooms, images: 4, size: 32, val_fraction: 0.5}"


def test_a_node_reads_the_weights_and_the_composed_rooms(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    study, variants = load_study(tmp_path / "tiny.yaml", [ROOMS, "evaluate.depth={datasets: [rooms], bins: 8}"])
    nodes = {node.id: node for node in build_nodes(study, variants)}
    (node,) = (one for one in nodes.values() if one.stage == "depth" and one.id.startswith("depth/skip-"))
    assert node.inputs["data"] == "data/rooms"
    assert node.inputs["weights"].startswith("weights/")
    assert node.plain["depth"]["bins"] == 8
    assert node.plain["dataset"] == {"kind": "rooms", "split": "test"}
    assert node.plain["multiscale"] == [1, 2]
    with pytest.raises(ConfigError, match="'scenes' is of kind scenes, which has no depth"):
        load_study(tmp_path / "tiny.yaml", ["evaluate.depth.datasets=[scenes]"])


def test_the_command_on_a_folder_in_the_published_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = RoomsConfig(images=4, size=32, val_fraction=0.5).generate(tmp_path / "made")
    settings = {"iterations": 2, "batch_size": 2, "crop": [32, 32], "bins": 4, "upsample": 1, "evaluated": "all"}
    code = main([
        "eval", "depth", "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=32", "--data", str(data),
        "--out", str(tmp_path / "out"), "--blocks", "1,2", "--json", "--device", "cpu",
        *(f"evaluate.depth.{key}={json.dumps(value)}" for key, value in settings.items()),
    ])  # fmt: skip
    shown = capsys.readouterr()
    assert code == 0, shown.err
    rows = json.loads(shown.out)
    assert {(row["block"], row["dataset"], row["split"]) for row in rows if row["metric"] == "RMSE"} == {
        ("1", "nyu", "test"), ("2", "nyu", "test"), ("", "nyu", "test"),
    }  # fmt: skip
    (path,) = (tmp_path / "out").rglob("depth/**/rows.json")
    assert {row.protocol.split(",")[0] for row in read_rows(path) if not row.is_baseline} == {"dinov2"}
