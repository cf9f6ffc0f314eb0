"""The stage ``linear``: its nodes and the command on its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.pipeline.study import build_nodes, load_study
from tests.helpers.labelled import make_classes
from tests.helpers.study import PLAIN, TINY


def test_a_node_reads_the_weights_and_the_images(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    asked = "evaluate.linear={datasets: [scenes], size: 32, protocol: dino}"
    nodes = {node.id: node for node in build_nodes(*load_study(tmp_path / "tiny.yaml", [asked]))}
    (node,) = (one for one in nodes.values() if one.stage == "linear" and one.id.startswith("linear/skip-"))
    assert node.inputs["data"] == "data/scenes"
    assert node.inputs["weights"].startswith("weights/")
    assert node.plain["linear"]["epochs"] == 100
    with pytest.raises(ConfigError, match=r"evaluate\.linear\.size: 40 is not a multiple of the patch size 16"):
        load_study(tmp_path / "tiny.yaml", ["evaluate.linear={datasets: [scenes], size: 40}"])


def test_the_command_on_class_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split, seed in (("train", 0), ("val", 1)):
        make_classes(tmp_path / "shapes" / split, 3, seed=seed)
    code = main([
        "eval", "linear", "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=32", "--json",
        "--data", str(tmp_path / "shapes"), "--out", str(tmp_path / "out"), "--device", "cpu", "--protocol", "dino",
        "evaluate.linear.size=32", "evaluate.linear.epochs=1", "evaluate.linear.batch_size=4", *PLAIN,
    ])  # fmt: skip
    shown = capsys.readouterr()
    assert code == 0, shown.err
    rows = json.loads(shown.out)
    models = [row for row in rows if not row["model"].startswith("baseline")]
    assert {(row["metric"], row["block"], row["dataset"]) for row in models} == {
        ("top1", "1", "shapes"), ("top1", "2", "shapes"),
    }  # fmt: skip
