"""The stage analyze: measures without labels of every network and epoch, and their table in the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.io.files import read_json
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.study import STAGES, build_nodes, load_study

STUDY = """
name: free
output: OUT
data: {scenes: {kind: scenes, images: 24, size: 64, val_fraction: 0.3}}
model: {name: vit_mini_patch16, depth: 2, img_size: 48, drop_path: 0}
variants: {model: [{skip: false, init: {name: skipless}}]}
pretrain:
  {objective: patch_contrast, dataset: scenes, crop_size: 48, epochs: 2, keep_epochs: [1], batch_size: 8,
   warmup_epochs: 0}
evaluate: {epochs: [0, 1, 2]}
analyze:
  {model: vit_mini_patch16, depth: 2, img_size: 48, photos: 1, label_free: {dataset: scenes, size: 48, images: 10}}
report: {figure_formats: []}
"""


def test_measures_without_labels_are_of_every_network_epoch_and_block(tmp_path: Path) -> None:
    path = tmp_path / "free.yaml"
    path.write_text(STUDY.replace("OUT", str(tmp_path / "runs")))
    assert main(["run", str(path)]) == 0
    (found,) = (tmp_path / "runs").rglob("analysis.json")
    fresh = read_json(found)["fresh"]["skipless-adamw"]
    assert all(row["kappa_vo"] == pytest.approx(1, abs=1e-4) for row in fresh), "of the initialisation"
    rows = read_json(found)["label_free"]
    assert len(rows) == 3
    assert all([row["block"] for row in own] == [1, 2] for own in rows.values())
    reports = [one.read_text() for one in (tmp_path / "runs").rglob("index.html")]
    assert any("Epoch that each metric without labels chooses" in one for one in reports)
    assert main(["run", str(path), "analyze.label_free.dataset=nothing"]) == 2
    study, variants = load_study(path, ["analyze.depth=3"])
    steps = Runner(study.directory, build_nodes(study, variants), STAGES).plan()
    assert {step.node.stage for step in steps if step.state != "cached"} == {"analyze", "report"}
    study, variants = load_study(path, ["seed=1"])
    steps = Runner(study.directory, build_nodes(study, variants), STAGES).plan()
    assert "analyze" in {step.node.stage for step in steps if step.state != "cached"}, "of other weights"
    study, variants = load_study(path, ["analyze.enabled=false"])
    assert "analyze" not in {node.stage for node in build_nodes(study, variants)}
