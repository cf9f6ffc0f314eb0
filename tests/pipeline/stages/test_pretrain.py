"""The section ``pretrain``: one for each objective, whose defaults are the objective's; a study by each of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from dinoskip.cli import main
from dinoskip.errors import ConfigError
from dinoskip.pipeline.stages.pretrain import AnySection
from dinoskip.pipeline.study import build_nodes, study_of
from dinoskip.results.rows import read_rows
from dinoskip.settings.config import RawConfig, dump, merge
from dinoskip.training.objectives import OBJECTIVES
from tests.helpers.study import ANALYZE
from tests.helpers.tiny import REQUIRED, SMALL_OBJECTIVES

STUDY = """
name: small
output: OUT
data: {scenes: {kind: scenes, images: 16, size: 64, val_fraction: 0.5}}
model: {name: vit_mini_patch8, depth: 2, img_size: 32}
variants:
  model: [{skip: true}, {skip: false, init: {name: skipless}}]
pretrain: PRETRAIN
evaluate:
  epochs: [0, 1]
  probe: {datasets: [scenes], size: 32, epochs: 2, learning_rates: [1e-3, 1e-2]}
  tokencut: {datasets: [scenes]}
  knn: {datasets: [scenes], k: [3], size: 32}
gallery: {first: 2, sheet_formats: []}
report: {costs: true, figure_formats: []}
"""
STUDY += ANALYZE


@pytest.mark.parametrize("kind", OBJECTIVES.values(), ids=lambda kind: kind.__name__)
def test_a_section_has_the_defaults_of_its_objective(kind: type) -> None:
    name = kind.model_fields["objective"].default
    given = REQUIRED.get(name, {})
    section = TypeAdapter(AnySection).validate_python({"objective": name, "dataset": "x", **given})
    assert isinstance(section, kind)
    assert {key: value for key, value in dump(section).items() if key != "dataset"} == dump(kind(**given))


def test_a_study_without_a_name_is_by_dino_and_its_key_is_the_same() -> None:
    def settings(**pretrain: str) -> object:
        tree = {"name": "x", "data": {"scenes": {"kind": "scenes"}}, "pretrain": {"dataset": "scenes", **pretrain}}
        nodes = build_nodes(*study_of(RawConfig(tree)))
        return {node.id: node.plain for node in nodes if node.stage in {"pretrain", "report"}}

    plain = settings()
    assert plain == settings(objective="dino")
    assert plain != settings(objective="patch_contrast")


def test_a_recipe_of_another_objective_replaces_that_which_a_file_extends() -> None:
    base = {"pretrain": {"objective": "ibot", "dataset": "a", "out_dim": 8}}
    over = {"pretrain": {"objective": "mae", "dataset": "b"}}
    assert merge(base, over) == over
    assert merge(base, {"pretrain": {"epochs": 3}})["pretrain"] == {**base["pretrain"], "epochs": 3}


def test_crops_that_are_not_whole_patches_are_named_with_their_key() -> None:
    tree = {"name": "x", "data": {"scenes": {"kind": "scenes"}}, "model": {"name": "vit_mini_patch16"}}
    with pytest.raises(ConfigError, match=r"pretrain.crop_size: 40"):
        study_of(RawConfig({**tree, "pretrain": {"objective": "patch_contrast", "dataset": "scenes", "crop_size": 40}}))


@pytest.mark.slow
@pytest.mark.parametrize("objective", SMALL_OBJECTIVES)
def test_evaluation_gallery_and_report_work_on_it(objective: str, tmp_path: Path) -> None:
    own = {"objective": objective, "dataset": "scenes", "epochs": 1, "warmup_epochs": 0, "batch_size": 4,
           **SMALL_OBJECTIVES[objective]}  # fmt: skip
    config = tmp_path / "study.yaml"
    config.write_text(STUDY.replace("OUT", str(tmp_path / "runs")).replace("PRETRAIN", json.dumps(own)))
    assert main(["run", str(config), "-q"]) == 0
    root = tmp_path / "runs" / "small"
    rows = [row for path in (root / "stages").rglob("rows.json") for row in read_rows(path) if not row.is_baseline]
    assert {row.task for row in rows} == {"probe", "tokencut", "knn"}
    assert {(row.model, row.epoch) for row in rows} == {
        (model, epoch) for model in ("skip-adamw", "skipless-adamw") for epoch in (0, 1)
    }
    page = (root / "report" / "index.html").read_text()
    assert objective in page
    assert "GFLOP an image" in page
    assert any("gallery" in path.parts for path in root.rglob("index.html"))
