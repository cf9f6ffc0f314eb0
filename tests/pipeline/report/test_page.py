"""What the report stage takes from a study: which variants play which part, which epochs, what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dinoskip.files import write_json
from dinoskip.init.config import ModelConfig, SkiplessInit
from dinoskip.optim.config import AdamWConfig, SoapConfig
from dinoskip.pipeline.artifacts import Artifacts
from dinoskip.pipeline.graph import Node, Planner
from dinoskip.pipeline.report import page as report_page
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.study_runner import report_without_missing
from dinoskip.records import write_records
from dinoskip.results import EvalResult, write_rows


def described(optimizer: Any = None, **model: Any) -> dict[str, Any]:
    optimizer = optimizer or AdamWConfig()
    return {"model": ModelConfig(**model).model_dump(mode="json"), "optimizer": optimizer.model_dump(mode="json")}


VARIANTS = {
    "skip": described(),
    "default": described(skip=False),
    "ours": described(skip=False, init=SkiplessInit(), depth=9),
    "deep": described(skip=False, init=SkiplessInit(), depth=12),
    "alpha": described(skip=False, init=SkiplessInit(alpha=1.0), depth=12),
    "soap": described(SoapConfig(lr=1e-3), skip=False, init=SkiplessInit(), depth=12),
    "partial": described(skip="attention"),
    "given": {"backbone": "timm:x"},
}


def task(out: Path, **inputs: Path) -> Task:
    return Task({"variants": VARIANTS, "card": {"seed": 3, "evaluate": {"norm": ["final"]}}}, {}, inputs, out, "cpu", 0)


def test_roles_are_those_of_the_papers_tables() -> None:
    roles = {name: report_page._role(own["model"]) for name, own in VARIANTS.items() if "model" in own}
    assert roles == {
        "skip": "skip", "default": "skipless", "ours": "skipless, initialised", "deep": "skipless, initialised",
        "alpha": "skipless, initialised", "soap": "skipless, initialised", "partial": "",
    }  # fmt: skip


def test_only_variants_that_differ_in_depth_alone_are_one_family() -> None:
    families = report_page._families(VARIANTS)
    assert families["ours"] == ("skipless, initialised, adamw", 9)
    assert families["deep"] == ("skipless, initialised, adamw", 12)
    assert families["alpha"] == ("skipless, initialised, adamw (alpha)", 12)
    assert families["soap"] == ("skipless, initialised, soap", 12)
    assert "given" not in families


def test_the_last_epoch_of_a_network_stands_for_its_variant(tmp_path: Path) -> None:
    found = {"deep ep9": 0, "deep ep10": 1, "skip ep3": 2, "given": 3, "unknown ep1": 4}
    assert report_page._last_epochs(task(tmp_path), found) == {
        "skip": "skip ep3",
        "deep": "deep ep10",
        "given": "given",
    }
    inside = {
        "inside": {name: {"rows": name} for name in found},
        "sqnr": {"deep ep10": {}},
        "cka": [
            {"left": a, "right": b, "matrix": []} for a in ("deep ep10", "deep ep9") for b in ("deep ep10", "skip ep3")
        ],
    }
    kept = report_page._inside(task(tmp_path), inside)
    assert {name: one["rows"] for name, one in kept["inside"].items()} == {
        "skip": "skip ep3", "deep": "deep ep10", "given": "given",
    }  # fmt: skip
    assert kept["sqnr"] == {"deep": {}}
    assert [(pair["left"], pair["right"]) for pair in kept["cka"]] == [("deep", "skip"), ("deep", "deep")]


def test_roughness_is_that_of_the_last_epoch_the_gallery_shows(tmp_path: Path) -> None:
    assert report_page._roughness(task(tmp_path)) == (0, {})
    models = {"deep ep9": {"1": [0.5]}, "deep ep10": {"1": [None]}, "given": {}}
    write_json(tmp_path / "roughness.json", {"block": 1, "models": models})
    assert report_page._roughness(task(tmp_path, gallery=tmp_path)) == (1, {"deep": {"1": [None]}, "given": {}})


def test_the_card_has_what_models_share_and_each_variant_what_it_has_alone(tmp_path: Path) -> None:
    settings = {**task(tmp_path).settings, "datasets": {"mine": {"kind": "voc", "year": 2007}}}
    one = Task(settings, {}, {}, tmp_path, "cpu", 0)
    card = report_page._protocol(one)
    assert card["study"] == {"seed": 3}
    model = card[f"model: {ModelConfig().name}"]
    assert model["img_size"] == 224
    assert not {"skip", "depth", "init.name"} & set(model)
    assert card["optimizer: soap"]["lr"] == 1e-3
    assert "lr" in card["optimizer: adamw"]
    assert "alpha" not in card["initialisation: skipless"]
    assert card["data: mine"] == {"kind": "voc", "year": 2007}
    shown = report_page._variant(one, "soap", []).settings
    assert shown["model"] == f"{ModelConfig().name} (skip no, depth 12)"
    assert shown["initialisation"] == "skipless (alpha 1.8)"
    assert shown["optimizer"] == "soap"
    given = report_page._variant(one, "given", [])
    assert (given.settings, given.role) == ({"model": "timm:x"}, "")


@pytest.mark.parametrize("setting", ["graying", "temperature"])
def test_a_setting_that_one_variant_alone_has_stands_beside_that_variant(tmp_path: Path, setting: str) -> None:
    variants = {"plain": described(), "changed": described(**{setting: {}}), "both": described(skip=False)}
    study = Task({"variants": variants, "card": {"seed": 3}, "datasets": {}}, {}, {}, tmp_path, "cpu", 0)
    shown = {name: str(report_page._variant(study, name, []).settings["model"]) for name in variants}
    assert [name for name, text in shown.items() if setting in text] == ["changed"]
    assert not any(setting in key for values in report_page._protocol(study).values() for key in values)


def test_data_sets_go_by_the_papers_names() -> None:
    configs = {
        "a": {"kind": "voc", "year": 2012}, "b": {"kind": "voc", "year": 2007},
        "c": {"kind": "coco_stuff"}, "d": {"kind": "scenes"},
    }  # fmt: skip
    assert report_page._published_names(configs) == {"a": "VOC2012", "b": "VOC2007", "c": "COCO-Stuff"}


def test_learning_rates_that_were_tried_are_a_table(tmp_path: Path) -> None:
    rates = [{"lr": 1e-3, "value": 20.0, "loss": 5.0}, {"lr": 1e-2, "value": None, "loss": None}]
    write_json(tmp_path / "sweep.json", {"measure": "knn10_top1", "epochs": 1, "lr": 1e-3, "rates": rates})
    (table,) = report_page._tables(task(tmp_path, **{"sweep/skip": tmp_path}), {})
    assert table.columns[2] == "knn10_top1 after 1 epochs"
    assert table.rows == [["skip", 1e-3, 20.0, 5.0, True], ["skip", 1e-2, None, None, False]]


def test_a_report_waits_for_nothing_that_has_not_run(tmp_path: Path) -> None:
    nodes = [
        Node("a", "probe", {}),
        Node("b", "knn", {}),
        Node("report", "report", {"x": 1}, inputs={"a": "a", "b": "b"}),
    ]
    artifacts = Artifacts(tmp_path)
    planner = Planner(nodes, artifacts)
    steps = planner.plan()
    assert report_without_missing(planner, steps) == nodes, "nothing is there: the error of a plain run is the clearer"
    key = next(step.key for step in steps if step.node.id == "a")
    assert key is not None
    write_json(artifacts.fresh_partial("a", key, keep=False) / "rows.json", [])
    artifacts.publish("a", key, report_record(), {"stage": "probe"})
    planner = Planner(nodes, artifacts)
    found = {node.id: node for node in report_without_missing(planner, planner.plan())}
    assert found["report"].inputs == {"a": "a"}
    assert found["report"].settings == {"x": 1, "missing": {"b": "never run"}}


def report_record() -> Any:
    from dinoskip.pipeline.graph import record_of

    return record_of(Node("a", "probe", {}), {}, {})


def test_what_else_differs_between_compared_networks_is_named(tmp_path: Path) -> None:
    def confounds(**variants: Any) -> list[str]:
        stage = Task({"variants": variants}, {}, {}, tmp_path, "cpu", 0)
        return report_page._confounds(stage, [report_page._variant(stage, name, []) for name in variants])

    skip, ours = described(drop_path=0.0), described(skip=False, init=SkiplessInit(), depth=12)
    assert confounds(skip=skip, ours=ours) == []
    assert confounds(skip=described(drop_path=0.1), ours=ours) == ["ours and skip also differ in drop path: 0 and 0.1"]
    faster = described(AdamWConfig(lr=1e-3), skip=False, init=SkiplessInit())
    assert confounds(skip=skip, ours=faster) == ["ours and skip also differ in optimizer.lr: 0.001 and 0.0005"]
    assert confounds(skip=skip, ours=described(SoapConfig(), skip=False, init=SkiplessInit(), depth=9))[0] == (
        "ours and skip also differ in model.depth: 9 and 12"
    )
    assert confounds(given={"backbone": "timm:x"}, skip=skip) == []


def test_records_are_read_from_every_evaluation(tmp_path: Path) -> None:
    row = EvalResult("CorLoc", 50.0, "tokencut", "1", "voc", "val", 2, model="skip")
    write_rows(tmp_path / "with/rows.json", [row])
    write_records(tmp_path / "with/records.npz", ["a", "b"], {0: np.array([1, 0])})
    write_rows(tmp_path / "without/rows.json", [row])
    records = report_page._records(task(tmp_path, **{"tokencut/skip": tmp_path / "with", "knn": tmp_path / "without"}))
    assert {row: one.ids for row, one in records.items()} == {row: ("a", "b")}


def test_a_rate_that_the_sweep_leaves_unresolved_is_said_of_its_network(tmp_path: Path) -> None:
    why = "no rate is above always answering the most frequent class (11.7)"
    found = {"measure": "knn10_top1", "epochs": 1, "lr": 1e-3, "trivial": 11.7, "rates": []}
    for name, unresolved in (("skip", why), ("deep", "")):
        write_json(tmp_path / name / "sweep.json", {**found, "unresolved": unresolved})
    stage = task(tmp_path, **{"sweep/skip": tmp_path / "skip", "sweep/deep": tmp_path / "deep"})
    skip, deep = (report_page._variant(stage, name, []) for name in ("skip", "deep"))
    assert (skip.unresolved, skip.settings["swept learning rate"]) == (why, "0.001 (rate unresolved)")
    assert (deep.unresolved, deep.settings["swept learning rate"]) == ("", 1e-3)
