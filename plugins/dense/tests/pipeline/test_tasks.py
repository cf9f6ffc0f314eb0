"""The study of every dense task, at a smaller size: rows of every task and every layer of the gallery."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.cli.start import CONFIGS
from dinoskip.io.files import read_manifest
from dinoskip.pipeline.artifacts import is_volatile
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.study import STAGES, build_nodes, load_study
from dinoskip.results.rows import read_rows
from dinoskip.settings.tasks import TASKS, tasks
from eval.knn.pictures import NEIGHBOURS
from tests.helpers.devices import DEVICES

SMALLER = (
    "data.scenes={kind: scenes, images: 12, size: 64, classes: 2, val_fraction: 0.5}",
    "data.videos={kind: scenes_video, videos: 1, frames: 3, size: 64}",
    "data.pairs={kind: scenes_pairs, classes: 1, objects: 1, views: 2, size: 64}",
    "data.rooms={kind: rooms, images: 4, size: 32, val_fraction: 0.5}",
    "model.depth=2",
    "variants.model=[{skip: true}]",
    "pretrain.epochs=1",
    "pretrain.batch_size=4",
    "pretrain.crop_size=32",
    "evaluate.knn.k=[3]",
    "evaluate.saliency.solver=false",
    "evaluate.objects.size=64",
    "evaluate.probe.epochs=1",
    "evaluate.linear={datasets: [scenes], size: 64, epochs: 1, batch_size: 6, learning_rates: [0.1]}",
    "evaluate.depth={datasets: [rooms], iterations: 2, batch_size: 2, crop: [32, 32], bins: 4, upsample: 1}",
    "evaluate.normals={datasets: [rooms], epochs: 1, upsample: 1}",
    "evaluate.video.short_side=64",
    "evaluate.correspondence.size=64",
    "evaluate.detection={datasets: [scenes], short_side: 64, long_side: 64, epochs: 1, channels: 8, trained: each}",
    "analyze.enabled=false",
    "report.figure_formats=[]",
    "gallery={first: 2, size: 64, sheet_formats: []}",
)
STORES = "evaluate.features=keep"  # so that windows are compared with them


@pytest.fixture(scope="module", params=DEVICES)
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tasks")
    device = ("--device", request.param)
    assert main(["run", str(CONFIGS / "tasks.yaml"), f"output={out}", *SMALLER, STORES, "-q", *device]) == 0
    return out / "tasks" / "stages"


def test_every_task_has_rows_of_every_block_and_of_rules_that_look_at_no_image(study: Path) -> None:
    rows = [row for path in study.rglob("rows.json") for row in read_rows(path)]
    assert {row.task for row in rows} == set(TASKS)
    for record in tasks():
        mine = [row for row in rows if row.task == record.name]
        assert {row.model for row in mine if not row.is_baseline} == {"skip-soap"}, record.name
        assert {"1", "2"} <= {row.block for row in mine}, record.name
        rules = {row.rule for row in mine if row.is_baseline}
        assert rules == set(record.baselines), record.name


def test_rows_are_as_the_records_say(study: Path) -> None:
    rows = [row for path in study.rglob("rows.json") for row in read_rows(path)]
    for record in tasks():
        for metric in (record.headline, *record.further):
            low, high = metric.range
            values = [row.value for row in rows if row.task == record.name and metric.is_of(row.metric)]
            assert values, f"{record.name}: {metric.name}"
            assert all(low <= value <= high for value in values if not math.isnan(value)), f"{record.name}: {metric}"


def test_the_gallery_has_a_layer_of_every_task_that_has_pictures(study: Path) -> None:
    (gallery,) = (study / "gallery").glob("*")
    text = (gallery / "index.html").read_text()
    data = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    drawn = {"probe", "cut", "cluster", "saliency", "objects", "depth", "normals", "video", "correspondence"}
    assert drawn <= {layer["key"] for layer in data["layers"]}
    for layer in drawn:
        rows = [row for row, image in enumerate(data["images"]) if image["layer"] in {"", layer}]
        own = [row for row in rows if data["images"][row]["layer"]] or rows
        assert data["cells"][0][own[0]]["layers"][layer]["blocks"] == [1, 2], layer


def test_windows_give_the_same_outputs_and_leave_no_store(study: Path) -> None:
    window = ("evaluate.features=window", "storage.window=1MB")
    again = ["run", str(CONFIGS / "tasks.yaml"), f"output={study.parent.parent}", *SMALLER, *window, "-q"]
    assert main(again) == 0
    for stage in ("tokencut", "retrieve", "knn", "cluster", "saliency", "objects"):
        outputs = [read_manifest(path) for path in (study / stage).glob("*/*/scenes/*")]
        assert len(outputs) == 2, stage
        kept = [
            {name: file for name, file in manifest.files.items() if NEIGHBOURS not in name and not is_volatile(name)}
            for manifest in outputs
        ]  # pictures of neighbours need stores of both splits
        assert kept[0] == kept[1], f"{stage}: rows, boxes and masks are the same files"
    nodes = build_nodes(*load_study(CONFIGS / "tasks.yaml", again[2:-1]))
    stores = [node.id for node in nodes if node.stage == "features"]
    assert [name.rpartition("/")[2] for name in stores] == [
        "scenes-train-segmentation-out-final-square-64", "scenes-val-segmentation-out-final-square-64",
        "scenes-val-classes-out-final-center_crop-64",
    ]  # fmt: skip
    assert not [name for name in stores if list((study / name).glob("*/store"))], "all that read them is done"
    assert Runner(study.parent, nodes, STAGES).plan()[-1].state == "cached", "the report does not change"
