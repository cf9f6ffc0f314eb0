"""evaluate.precision: what it changes in keys, rows, plans and features, and what it leaves alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from dinoskip.cli import main
from dinoskip.cli.start import CONFIGS
from dinoskip.errors import ConfigError
from dinoskip.models import Backbone, create_model
from dinoskip.pipeline.estimate.cards import CARDS, REACHED, named
from dinoskip.pipeline.estimate.costs import costs
from dinoskip.pipeline.estimate.work import StudyImages
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.results.rows import EvalResult, read_rows, write_rows
from dinoskip.settings.config import read_yaml
from dinoskip.settings.tasks import TASKS
from tests.helpers.study import TINY

SMALLEST = """
name: s
device: cuda
data: {scenes: {kind: scenes, images: 8, size: 64}}
variants: {model: [{label: n, backbone: "timm:vit_tiny_patch16_224,pretrained=false,img_size=64,depth=1"}]}
evaluate: {knn: {datasets: [scenes], size: 64, k: [1]}}
"""
MEASURES = {*TASKS, "features", "gallery", "report"}


@cache
def settings(*overrides: str) -> dict[str, Any]:
    """Return the settings from which the key of each node is made, apart from its inputs."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(TINY)
        return {node.id: node.plain for node in build_nodes(*load_study(path, overrides))}


def test_keys_say_it_where_it_is_not_float32_and_trainings_never() -> None:
    usual = settings()
    for same in (("evaluate.precision=fp32",), ("device=cpu",), ("device=cuda", "evaluate.precision=fp32")):
        assert settings(*same) == usual, same
    bf16 = settings("device=cuda")
    assert settings("evaluate.precision=bf16") == bf16
    assert settings("evaluate.precision=tf32") not in (usual, bf16)
    assert list(bf16) == list(usual)
    changed = {name.partition("/")[0] for name in usual if usual[name] != bf16[name]}
    measuring = {name.partition("/")[0] for name in usual} & MEASURES
    assert changed == measuring
    assert {"features", "gallery", "probe", "tokencut", "knn", "retrieve"} <= changed


def test_tf32_is_not_of_a_cpu(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TINY)
    with pytest.raises(ConfigError, match=r"evaluate\.precision"):
        load_study(path, ["device=cpu", "evaluate.precision=tf32"])


def test_studies_of_papers_name_the_gpu_so_that_their_plans_and_jobs_have_one_precision() -> None:
    named = {path.name: read_yaml(path).tree.get("device", "auto") for path in (CONFIGS / "paper").glob("*.yaml")}
    assert len(named) > 20
    float32 = {"table2_anchor.yaml"}  # compared with numbers that others printed from float32
    assert {name for name, device in named.items() if device != "cuda"} == float32
    study, _ = load_study(CONFIGS / "paper" / "table2_dino.yaml", [])
    assert study.precision == "bf16"


@pytest.mark.slow
def test_a_study_of_a_gpu_is_shown_on_a_machine_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "s.yaml"
    path.write_text(SMALLEST)
    study = [str(path), f"output={tmp_path / 'runs'}", "-q"]
    assert main(["run", *study]) == 2
    assert main(["run", *study, "--device", "cpu"]) == 0
    assert {row.precision for row in read_rows(tmp_path / "runs" / "s" / "rows.json") if not row.is_baseline} == {
        "bf16"
    }
    for command in ("report", "status", "plan"):
        assert main([command, *study]) == 0, command


def test_hours_are_by_the_rate_of_the_precision() -> None:
    def hours(*overrides: str) -> dict[str, float]:
        study, variants = load_study(CONFIGS / "paper" / "table2_dino.yaml", overrides)
        made = costs(StudyImages(study, assume=True), study, variants, build_nodes(study, variants))
        return {cost.node: cost.hours("h100") for cost in made if cost.flop}

    usual, exact = hours(), hours("evaluate.precision=fp32")
    assert hours("evaluate.precision=bf16") == usual
    for node, value in usual.items():
        factor = 1.0 if node.startswith("pretrain/") else REACHED["bf16"] / REACHED["fp32"]
        assert exact[node] == pytest.approx(factor * value), node


def test_a_card_reaches_what_was_measured_and_others_in_between_their_two_ratios() -> None:
    assert CARDS["h100"].reached("bf16") == REACHED["bf16"]
    assert 312 / 989 < CARDS["a100"].reached("bf16") / REACHED["bf16"] < 2.039 / 3.35
    assert all(0 < card.reached(kind) < card.peak(kind) for card in CARDS.values() for kind in REACHED)


@pytest.mark.parametrize(
    ("name", "key"),
    [("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA GeForce RTX 4090", "4090"),
     ("Tesla V100-SXM2", ""), ("", "")],
)  # fmt: skip
def test_a_card_is_found_by_the_name_that_torch_gives(name: str, key: str) -> None:
    assert named(name) == key


def test_rows_say_it_where_it_is_not_float32(tmp_path: Path) -> None:
    row = EvalResult("mIoU", 40.0, "probe", "1", "voc", "val", 8)
    other = row.with_context({"precision": "bf16"})
    write_rows(tmp_path / "rows.json", [row, other])
    assert read_rows(tmp_path / "rows.json") == [row, other]
    assert (tmp_path / "rows.json").read_text().count("precision") == 1
    assert other.baseline("majority class", 1.0) == row.baseline("majority class", 1.0)


@pytest.mark.parametrize("skip", [True, False])
def test_features_in_bfloat16_are_close_and_of_the_weights_dtype(skip: bool) -> None:
    torch.manual_seed(0)
    backbone = Backbone.from_model(create_model("vit_mini_patch8", depth=2, img_size=32, skip=skip))
    images, facets = torch.randn(2, 3, 32, 32), ["out", "key", "mlp"]
    usual, said = backbone.layers(images, [1, 2], facets, "none"), backbone.beside_weights
    backbone.precision = "bf16"
    rounded = backbone.layers(images, [1, 2], facets, "none")
    for facet in facets:
        for block in (1, 2):
            mine, other = rounded[facet][block].tokens, usual[facet][block].tokens
            assert mine.dtype == torch.float32
            assert 0 < float((mine - other).norm() / other.norm()) < 0.02
    assert backbone.beside_weights == [*said, "precision bf16"]
