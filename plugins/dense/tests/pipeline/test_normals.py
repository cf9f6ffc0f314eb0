"""The stage ``normals``: its nodes, and the command on composed rooms written as probe3d's files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip_dense.sets.nyu import GEONET_MEANS
from dinoskip_dense.sets.rooms import RoomsConfig, draw_room
from tests.helpers.study import PLAIN, TINY


def test_a_node_reads_the_weights_and_the_composed_rooms(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    rooms = "data.rooms={kind: rooms, images: 4, size: 32, val_fraction: 0.5}"
    asked = [rooms, "evaluate.normals={datasets: [rooms], val_split: val}"]
    nodes = {node.id: node for node in build_nodes(*load_study(tmp_path / "tiny.yaml", asked))}
    (node,) = (one for one in nodes.values() if one.stage == "normals" and one.id.startswith("normals/skip-"))
    assert node.inputs["data"] == "data/rooms"
    assert node.plain["dataset"] == {"kind": "rooms", "split": "val"}
    with pytest.raises(ConfigError, match="'scenes' is of kind scenes, which has no surface normals"):
        load_study(tmp_path / "tiny.yaml", ["evaluate.normals.datasets=[scenes]"])


def test_the_command_on_the_files_of_probe3d(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "geonet").mkdir()
    (tmp_path / "test").mkdir()
    for number in range(4):
        room = draw_room(RoomsConfig(size=32), number)
        image = room.image - 2 * np.array(GEONET_MEANS)
        savemat(tmp_path / "geonet" / f"{number}.mat", {"img": image, "norm": room.normals, "depth": room.depth})
        with open(tmp_path / "test" / f"{number}.npz", "wb") as stream:
            np.savez(stream, image=room.image, normals=room.normals, depth=room.depth)
    code = main([
        "eval", "normals", "timm:vit_tiny_patch16_224,pretrained=false,depth=2,img_size=32", "--json",
        "--data", str(tmp_path), "--out", str(tmp_path_factory.mktemp("out")), "--device", "cpu",
        "evaluate.normals.epochs=1", *PLAIN,
    ])  # fmt: skip
    shown = capsys.readouterr()
    assert code == 0, shown.err
    rows = [row for row in json.loads(shown.out) if row["metric"] == "RMSE angle"]
    assert {(row["block"], row["dataset"], row["n"]) for row in rows} == {
        ("1", "nyu_normals", 4), ("2", "nyu_normals", 4), ("", "nyu_normals", 4),
    }  # fmt: skip
