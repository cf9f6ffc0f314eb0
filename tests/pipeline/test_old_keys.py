"""Trainings that an earlier version finished are used: its keys had defaults in them, by another rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dinoskip.cli import main
from dinoskip.io.files import MANIFEST, read_manifest, write_manifest
from dinoskip.pipeline.artifacts import VOLATILE, Record
from dinoskip.pipeline.graph import Node, key_of
from dinoskip.pipeline.study import build_nodes, load_study
from tests.helpers.study import TINY

SMALL = (
    "variants.model=[{skip: true}]", "data.scenes.images=8", "pretrain.epochs=1", "evaluate.probe.datasets=[]",
    "evaluate.tokencut.datasets=[]", "evaluate.epochs=[1]",
)  # fmt: skip
Places = tuple[Path, dict[str, Path]]
LATER = {"objective", "centering", "registers", "cls_norms", "attention", "layer_scale", "koleo", "rank_patience"}
"""Settings that version 0.2 left out of keys at their default."""


def plan(capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[str, str]:
    capsys.readouterr()
    assert main(["plan", "s.yaml", *SMALL, *overrides, "--json"]) == 0
    return {step["stage"]: step["state"] for step in json.loads(capsys.readouterr().out)}


def as_in_version_0_2(tree: Any) -> Any:
    """Settings with all defaults, as that version recorded them."""
    if not isinstance(tree, dict):
        return tree
    return {key: as_in_version_0_2(value) for key, value in tree.items() if key not in LATER}


def give_an_old_key(output: Path, node: Node) -> Path:
    """Move a published output to where version 0.2 had published it."""
    info = dict(read_manifest(output).info)
    assert node.every is not None
    record = Record(**{**info["record"], "settings": as_in_version_0_2(json.loads(json.dumps(dict(node.every()))))})
    info |= {"record": record.plain(), "key": key_of(record)}
    (output / MANIFEST).unlink()
    moved = output.rename(output.with_name(key_of(record)[:16]))
    write_manifest(moved, info, VOLATILE)
    return moved


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """A study whose embedded data and training have keys of version 0.2; where they lie, by stage."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "s.yaml").write_text(TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", "s.yaml", *SMALL, "--until", "pretrain", "-q"]) == 0
        loaded = load_study(folder / "s.yaml", SMALL)
        nodes = {node.stage: node for node in build_nodes(*loaded) if node.stage in {"data", "pretrain"}}
    places = {}
    for stage, node in nodes.items():
        (output,) = (mark.parent for mark in folder.glob(f"runs/*/stages/{node.id}/*/{MANIFEST}"))
        places[stage] = give_an_old_key(output, node)
        assert places[stage] != output
    return folder, places


def test_are_cached_where_they_lie_and_not_unused(
    study: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, places = study
    monkeypatch.chdir(folder)
    states = plan(capsys)
    assert (states["data"], states["pretrain"]) == ("cached", "cached")
    capsys.readouterr()
    assert main(["gc", "s.yaml", *SMALL, "--json"]) == 0
    unused = json.loads(capsys.readouterr().out)["unused"]
    assert not [path for path in unused if Path(path).name in {place.name for place in places.values()}]


def is_another_training(
    change: str,
    study: Places,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, places = study
    monkeypatch.chdir(folder)
    states = plan(capsys, change)
    assert (states["data"], states["pretrain"]) == ("cached", "run")
    assert main(["gc", "s.yaml", *SMALL, change, "--json"]) == 0
    said = capsys.readouterr().out
    assert places["data"].name not in said


@pytest.mark.parametrize("change", ["optimizer.lr=0.001", "model.registers=2"])
def test_another_setting_is_another_training(
    change: str, study: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    is_another_training(change, study, monkeypatch, capsys)
