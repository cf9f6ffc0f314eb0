"""The report stage's choices in a study: the roles of variants, their epochs, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dinoskip.data import CocoStuffConfig, ScenesConfig, VocConfig
from dinoskip.init.config import ModelConfig, SkiplessInit
from dinoskip.io.files import write_json
from dinoskip.optim.config import AdamWConfig, SoapConfig
from dinoskip.pipeline.artifacts import Artifacts
from dinoskip.pipeline.graph import Node, Planner
from dinoskip.pipeline.report import page as report_page
from dinoskip.pipeline.report import places
from dinoskip.pipeline.report.settings import ReportSettings
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.study_runner import report_without_missing
from dinoskip.pipeline.variants import Variant
from dinoskip.results.records import write_records
from dinoskip.results.rows import EvalResult, write_rows
from visualize import figures
from visualize.report.config import ReportConfig


def variant(name: str, optimizer: Any = None, **model: Any) -> Variant:
    return Variant(name, ModelConfig(**model), optimizer or AdamWConfig())


GIVEN = Variant("given", backbone="timm:x")
VARIANTS = (
    variant("skip"),
    variant("default", skip=False),
    variant("ours", skip=False, init=SkiplessInit(), depth=9),
    variant("deep", skip=False, init=SkiplessInit(), depth=12),
    variant("alpha", skip=False, init=SkiplessInit(alpha=1.0), depth=12),
    variant("soap", SoapConfig(lr=1e-3), skip=False, init=SkiplessInit(), depth=12),
    variant("partial", skip="attention"),
    GIVEN,
)


def settings(variants: Sequence[Variant] = VARIANTS, **more: Any) -> ReportSettings:
    return ReportSettings(ReportConfig(), "study", {"seed": 3, "evaluate": {"norm": ["final"]}}, variants, **more)


WORDS = settings().words_of


def task(out: Path, **inputs: Path) -> Task:
    return Task(settings(), {}, inputs, out, "cpu", 0)


def test_roles_are_those_of_the_papers_tables() -> None:
    roles = {own.name: places.role_of(own.model) for own in VARIANTS if own.model is not None}
    assert roles == {
        "skip": "skip", "default": "skipless", "ours": "skipless, initialised", "deep": "skipless, initialised",
        "alpha": "skipless, initialised", "soap": "skipless, initialised", "partial": "",
    }  # fmt: skip


def test_only_variants_that_differ_in_depth_alone_are_one_family() -> None:
    found = report_page._families(task(Path()))
    families = {name: found.get(settings().words_of(name)) for name in ("ours", "deep", "alpha", "soap", "given")}
    assert families["ours"] == ("skipless, initialised, adamw", 9)
    assert families["deep"] == ("skipless, initialised, adamw", 12)
    assert families["alpha"] == ("skipless, initialised, adamw (alpha)", 12)
    assert families["soap"] == ("skipless, initialised, soap", 12)
    assert families["given"] is None


def test_the_last_epoch_of_a_network_stands_for_its_variant(tmp_path: Path) -> None:
    found = {"deep ep9": 0, "deep ep10": 1, "skip ep3": 2, "given": 3, "unknown ep1": 4}
    assert report_page._last_epochs(task(tmp_path), found) == {
        WORDS("skip"): "skip ep3",
        WORDS("deep"): "deep ep10",
        WORDS("given"): "given",
    }


def test_roughness_is_that_of_the_last_epoch_the_gallery_shows(tmp_path: Path) -> None:
    assert report_page._roughness(task(tmp_path)) == (0, {})
    models = {"deep ep9": {"1": [0.5]}, "deep ep10": {"1": [None]}, "given": {}}
    write_json(tmp_path / "roughness.json", {"block": 1, "models": models})
    assert report_page._roughness(task(tmp_path, gallery=tmp_path)) == (1, {WORDS("deep"): {"1": [None]}, "given": {}})


def test_the_card_has_what_models_share_and_each_variant_what_it_has_alone(tmp_path: Path) -> None:
    one = Task(settings(data={"mine": VocConfig(root="x", year=2007)}), {}, {}, tmp_path, "cpu", 0)
    card = report_page._protocol(one)
    assert card["study"] == {"seed": 3}
    model = card[f"model: {ModelConfig().name}"]
    assert model["img_size"] == 224
    assert not {"skip", "depth", "init.name"} & set(model)
    assert card["optimizer: soap"]["lr"] == 1e-3
    assert "lr" in card["optimizer: adamw"]
    assert "alpha" not in card["initialisation: skipless"]
    assert (card["data: mine"]["kind"], card["data: mine"]["year"]) == ("voc", 2007)
    assert "root" not in card["data: mine"]
    shown = report_page._variant(one, "soap", []).settings
    assert shown["model"] == f"{ModelConfig().name} (skip no, depth 12)"
    assert shown["initialisation"] == "skipless (alpha 1.8)"
    assert shown["optimizer"] == "soap"
    given = report_page._variant(one, "given", [])
    assert (given.settings, given.role) == ({"model": "timm:x"}, "")


@pytest.mark.parametrize("setting", ["graying", "temperature"])
def test_a_setting_that_one_variant_alone_has_stands_beside_that_variant(tmp_path: Path, setting: str) -> None:
    variants = (variant("plain"), variant("changed", **{setting: {}}), variant("both", skip=False))
    study = Task(settings(variants), {}, {}, tmp_path, "cpu", 0)
    shown = {one.name: str(report_page._variant(study, one.name, []).settings["model"]) for one in variants}
    assert [name for name, text in shown.items() if setting in text] == ["changed"]
    assert not any(setting in key for values in report_page._protocol(study).values() for key in values)


def test_data_sets_go_by_the_papers_names() -> None:
    configs = {
        "a": VocConfig(root="x"), "b": VocConfig(root="x", year=2007), "c": CocoStuffConfig(root="x"),
        "d": ScenesConfig(),
    }  # fmt: skip
    assert places.published_names(configs) == {"a": "VOC2012", "b": "VOC2007", "c": "COCO-Stuff"}


def test_learning_rates_that_were_tried_are_a_table(tmp_path: Path) -> None:
    rates = [{"lr": 1e-3, "value": 20.0, "loss": 5.0}, {"lr": 1e-2, "value": None, "loss": None}]
    write_json(
        tmp_path / "sweep.json",
        {"measure": "knn10_top1", "epochs": 1, "lr": 1e-3, "unresolved": "", "trivial": 11.7, "rates": rates},
    )
    (table,) = report_page._tables(task(tmp_path, **{"sweep/skip": tmp_path}))
    assert table.columns[2] == "knn10_top1 after 1 epochs"
    skip = WORDS("skip")
    assert table.rows == [[skip, 1e-3, 20.0, 5.0, True], [skip, 1e-2, None, None, False]]


def test_a_report_waits_for_nothing_that_has_not_run(tmp_path: Path) -> None:
    nodes = [
        Node("a", "probe", {}),
        Node("b", "knn", {}),
        Node("report", "report", settings(), inputs={"a": "a", "b": "b"}),
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
    assert found["report"].settings == settings(missing={"b": "never run"})
    assert found["report"].plain["missing"] == {"b": "never run"}


def report_record() -> Any:
    from dinoskip.pipeline.graph import record_of

    return record_of(Node("a", "probe", {}), {}, {})


def test_what_else_differs_between_compared_networks_is_named(tmp_path: Path) -> None:
    def confounds(*variants: Variant) -> list[str]:
        stage = Task(settings(variants), {}, {}, tmp_path, "cpu", 0)
        return report_page._confounds(stage, [report_page._variant(stage, one.name, []) for one in variants])

    skip, ours = variant("skip", drop_path=0.0), variant("ours", skip=False, init=SkiplessInit(), depth=12)
    assert confounds(skip, ours) == []
    differ = "skipless, paper's initialisation{} and with skips{} also differ in"
    plain = differ.format("", "")
    assert confounds(variant("skip", drop_path=0.1), ours) == [f"{plain} drop path: 0 and 0.1"]
    faster = variant("ours", AdamWConfig(lr=1e-3), skip=False, init=SkiplessInit())
    assert confounds(skip, faster) == [f"{plain} optimizer.lr: 0.001 and 0.0005"]
    assert confounds(skip, variant("ours", SoapConfig(), skip=False, init=SkiplessInit(), depth=9))[0] == (
        f"{differ.format(', SOAP', ', AdamW')} model.depth: 9 and 12"
    )
    assert confounds(GIVEN, skip) == []


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


def test_every_figure_that_there_is_is_drawn_by_a_page() -> None:
    """A figure that no page draws is lost without a word: the skips' weight was, for a day."""
    root = Path(__file__).parents[3]
    code = "".join(
        path.read_text()
        for folder in ("dinoskip", "visualize", "eval", "plugins")
        for path in (root / folder).rglob("*.py")
    )
    named = [name for name in figures.__all__ if name.endswith("_figure")]
    assert named
    assert [name for name in named if len(re.findall(rf"\b{name}\(", code)) < 2] == []
