"""Every task, and the gallery, once on each device: rows and pictures are those of a CPU.

Without a GPU they run on the pretended one, which refuses what a GPU would: tensors of the host beside the device's.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dinoskip.data.sets import KINDS
from dinoskip.pipeline.graph import only
from dinoskip.pipeline.study import build_nodes, study_of
from dinoskip.pipeline.study_runner import study_runner
from dinoskip.results.rows import rows_in
from dinoskip.settings.config import RawConfig
from dinoskip.settings.tasks import tasks
from tests.helpers.pretended_device import PretendedDevice

PLACES = ["pretended", pytest.param("cuda", marks=pytest.mark.gpu)]
SCENES = {"datasets": ["scenes"]}
_DATA: dict[str, Any] = {
    "scenes": {"kind": "scenes", "images": 8, "size": 64, "classes": 2, "val_fraction": 0.5},
    "videos": {"kind": "scenes_video", "videos": 1, "frames": 3, "size": 64},
    "pairs": {"kind": "scenes_pairs", "classes": 1, "objects": 1, "views": 2, "size": 64},
    "rooms": {"kind": "rooms", "images": 4, "size": 32, "val_fraction": 0.5},
}
_TASKS: dict[str, dict[str, Any]] = {
    "probe": {**SCENES, "size": 64, "epochs": 1},
    "tokencut": {**SCENES, "split": "val", "lost_k": 3},
    "knn": {**SCENES, "size": 64, "k": [3]},
    "retrieve": {**SCENES, "size": 64, "memory": 64, "k": 3},
    "depth": {"datasets": ["rooms"], "iterations": 2, "batch_size": 2, "crop": [32, 32], "bins": 4, "upsample": 1},
    "normals": {"datasets": ["rooms"], "epochs": 1, "upsample": 1},
    "linear": {**SCENES, "size": 64, "epochs": 1, "batch_size": 4, "learning_rates": [0.1]},
    "saliency": {**SCENES, "split": "val", "solver": True},
    "objects": {**SCENES, "split": "val", "size": 64},
    "cluster": {**SCENES, "size": 64},
    "video": {"datasets": ["videos"], "short_side": 64},
    "correspondence": {"datasets": ["pairs"], "size": 64},
    "detection": {**SCENES, "short_side": 32, "long_side": 32, "epochs": 0.5, "batch_size": 2, "channels": 8},
}
DATA = {name: data for name, data in _DATA.items() if data["kind"] in KINDS}
TASKS = {record.name: _TASKS[record.name] for record in tasks()}
"""Of the tasks that are installed; one that has no settings here fails."""
COUNTED = ("CorLoc", "accuracy_k", "top1", "PCK", "AP", "AR", "box AP", "J recall", "F recall", "within", "delta")
"""Metrics that an object, image or point of few moves by many points."""
NETWORK = {"label": "n", "backbone": "timm:vit_tiny_patch16_224,pretrained=false,img_size=64,depth=2"}
STUDY = {
    "name": "device",
    "data": DATA,
    "variants": {"model": [NETWORK]},
    "gallery": {"dataset": "scenes", "first": 1, "size": 64},
}


def run(out: Path, stage: str, tasks: Mapping[str, Any], device: str) -> list[Path]:
    """Run a stage of the study with these tasks, and all that it needs; the folders of its outputs."""
    tree = {**STUDY, "evaluate": tasks, "output": str(out)}
    study, variants = study_of(RawConfig(tree, {"": "test"}), open_backbones=True)
    nodes = only(build_nodes(study, variants), {stage}, gathering="")
    runner = study_runner(study, variants, nodes, device=device, workers=1)
    runner.run({node.id for node in nodes})
    return [place for node in nodes if node.stage == stage and (place := runner.output(node.id)) is not None]


@cache
def composed() -> TemporaryDirectory[str]:
    """The folder of the study in which the data of all tasks are."""
    folder = TemporaryDirectory()
    run(Path(folder.name), "data", TASKS, "cpu")
    return folder


@contextmanager
def placed(place: str) -> Iterator[str]:
    """The device's name for a stage; inside it is there, if only as a pretence."""
    if place == "pretended":
        with PretendedDevice():
            yield "cuda"
    else:
        yield place


def outputs(out: Path, stage: str, tasks: Sequence[str], place: str) -> list[Path]:
    """:func:`run` on data that are composed already."""
    shutil.copytree(composed().name, out)
    with placed(place) as device:
        return run(out, stage, {name: TASKS[name] for name in tasks}, device)


def by_key(folders: Sequence[Path]) -> dict[tuple[str, ...], float]:
    """Values of all rows of some outputs."""
    return {
        (row.metric, row.block, row.facet, row.norm, row.protocol, row.rule, row.note): row.value
        for folder in folders
        for row in rows_in(folder)
    }


def allowed(place: str, metric: str, value: float) -> float:
    """Return a value's allowed difference: another order of summation moves a pixel or an object to another side."""
    if place == "pretended":
        return 0.0
    if metric.startswith(COUNTED):
        return 30.0
    return max(3.0, 0.05 * value) if value > 5 else 0.05 * value + 0.01


@pytest.mark.parametrize("name", [record.name for record in tasks()])
@pytest.mark.parametrize("place", PLACES)
def test_a_task_gives_the_rows_of_a_cpu(place: str, name: str, tmp_path: Path) -> None:
    wanted = by_key(outputs(tmp_path / "cpu", name, [name], "cpu"))
    found = by_key(outputs(tmp_path / place, name, [name], place))
    assert wanted
    assert list(found) == list(wanted)
    far = {
        key: (value, found[key])
        for key, value in wanted.items()
        if value == value and not abs(found[key] - value) <= allowed(place, key[0], value)
    }
    assert far == {}


@pytest.mark.parametrize("place", PLACES)
def test_a_gallery_has_the_files_of_a_cpu(place: str, tmp_path: Path) -> None:
    """The gallery has maps of heads and of depth, which it computes itself."""
    shown = [name for name in ("probe", "depth") if name in TASKS]
    (wanted,) = outputs(tmp_path / "cpu", "gallery", shown, "cpu")
    (found,) = outputs(tmp_path / place, "gallery", shown, place)
    names = sorted(path.relative_to(wanted) for path in wanted.rglob("*") if path.is_file())
    assert len([name for name in names if name.suffix == ".png"]) > 10
    assert sorted(path.relative_to(found) for path in found.rglob("*") if path.is_file()) == names
    if place == "pretended":
        pictures = [name for name in names if name.suffix == ".png"]
        assert [name for name in pictures if (found / name).read_bytes() != (wanted / name).read_bytes()] == []
