"""The section ``online`` of a study: what it may say, that it is in no key, and what a run of it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.io.files import read_json
from dinoskip.pipeline.artifacts import Artifacts
from dinoskip.pipeline.graph import Planner
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.runtime.console import read_metrics
from dinoskip.settings.specs import list_checkpoints
from tests.helpers.study import TINY
from tests.helpers.tiny import make_images

ONLINE = """
online:
  knn: {dataset: scenes, size: 32, k: [3]}
  probe: {dataset: other, size: 64, train_images: 4, val_images: 3, epochs: 2}
"""
SMALL = (
    "data.scenes.images=12", "data.other={kind: scenes, images: 10, size: 64, val_fraction: 0.5, seed: 7}",
    "variants.model=[{skip: true}]", "pretrain.epochs=2", "pretrain.online_every=1", "evaluate.probe.datasets=[]",
    "evaluate.tokencut.datasets=[]", "evaluate.knn.datasets=[]", "evaluate.multiscale=null",
)  # fmt: skip


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "s.yaml"
    path.write_text(TINY + text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("online: {knn: {dataset: scenes}}", (), "online: never happens: set pretrain.online_every"),
        ("", ("pretrain.online_every=1",), "nothing to evaluate: add online.knn or online.probe"),
        ("online: {knn: {dataset: nope}}", ("pretrain.online_every=1",), "online.knn.dataset: 'nope' is not one of"),
        ("online: {knn: {dataset: scenes, k: [9], train_images: 5}}", (), "9 exceeds train_images"),
        (
            "online: {knn: {dataset: scenes, size: 30}}",
            ("pretrain.online_every=1",),
            "30 is not a multiple of the patch",
        ),
        ("online: {probe: {dataset: scenes, blocks: [3]}}", ("pretrain.online_every=1",), "3 is beyond the 2 blocks"),
        ("online: {probe: {dataset: scenes, blocks: [-2]}}", ("pretrain.online_every=1",), "3 is beyond the 2 blocks"),
        ("online: {knn: {dataset: scenes, kk: 3}}", (), "online.knn.kk: unknown key"),
    ],
)
def test_what_cannot_work_is_said_before_training(
    text: str, overrides: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        load_study(written(tmp_path, text), overrides)


def keys(tmp_path: Path, text: str, *overrides: str) -> dict[str, tuple[object, ...]]:
    """Return what decides the key of every pretraining."""
    nodes = build_nodes(*load_study(written(tmp_path, text), overrides))
    return {n.id: (n.plain, n.inputs, n.version) for n in nodes if n.stage == "pretrain"}


def test_online_evaluation_and_boards_are_in_no_key_of_a_pretraining(tmp_path: Path) -> None:
    plain = keys(tmp_path, "", *SMALL[:4])
    shown = keys(tmp_path, ONLINE, *SMALL[:4], "pretrain.online_every=1", "pretrain.boards=[tensorboard]")
    assert list(plain) == ["pretrain/skip-adamw"]
    assert plain == shown


def test_its_data_is_composed_before(tmp_path: Path) -> None:
    nodes = build_nodes(*load_study(written(tmp_path, ONLINE), SMALL))
    planner = Planner(nodes, Artifacts(tmp_path / "nothing"))
    states = {step.node.id: step for step in planner.plan()}
    assert states["data/other"].state == "run"
    planner.outputs["data/scenes"] = "hash"
    step = planner.step(next(node for node in nodes if node.stage == "pretrain"))
    assert (step.state, step.reason) == ("waiting", "after data/other")


def test_a_study_measures_draws_and_does_not_train_again_to_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", written(tmp_path, ONLINE), f"output={tmp_path}", *SMALL, "--until", "pretrain", "-q"]
    assert main(command) == 0
    (run,) = [path for path in (tmp_path / "tiny/stages/pretrain/skip-adamw").iterdir() if path.is_dir()]
    rows = [row for row in read_metrics(run / "metrics.jsonl") if "knn3_top1" in row]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert all({"probe_miou", "probe_block1_miou", "probe_block2_miou"} <= row.keys() for row in rows)
    best = max(rows, key=lambda row: (row["knn3_top1"], -row["step"]))["step"]
    assert set(list_checkpoints(run)) == {best, rows[-1]["step"]}
    assert read_json(run / "status.json")["state"] == "done"
    capsys.readouterr()
    assert main(["plan", *command[1:3], *SMALL, "online.knn.k=[5]", "pretrain.boards=[tensorboard]"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines() if " pretrain/" in line] == ["cached"]


def test_the_plain_command_evaluates_on_class_folders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for split in ("train", "val"):
        for name, count in (("a", 6), ("b", 6)):
            make_images(tmp_path / "classes" / split / name, count)
    small = (
        "pretrain.epochs=2", "pretrain.batch_size=8", "pretrain.warmup_epochs=0", "pretrain.out_dim=32",
        "pretrain.warmup_teacher_temp_epochs=0", "pretrain.hidden_dim=16", "pretrain.bottleneck_dim=8",
        "pretrain.crops={global_size: 32, local_size: 16, num_local: 1}", "model.name=vit_tiny_patch16",
        "model.depth=1", "model.img_size=32",
    )  # fmt: skip
    images = make_images(tmp_path / "images", 16)
    command = ["pretrain", *small, "--data", str(images), "--out", str(tmp_path / "run"), "-q"]
    assert main([*command, "--online-knn", str(tmp_path / "classes")]) == 0
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "knn10_top1" in row]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert main([*command, "--online-knn", str(tmp_path / "nowhere")]) == 3
