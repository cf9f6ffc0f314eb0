"""A supervised study from its YAML to the report, and the ways in which its settings can be wrong."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dinoskip.cli import main
from dinoskip.data import LabelledFolder
from dinoskip.errors import ConfigError
from dinoskip.io.files import MANIFEST, verify_manifest
from dinoskip.models.export import load_weights
from dinoskip.pipeline.stages import accuracy
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.results.records import read_records
from dinoskip.results.rows import EvalResult, read_rows, write_rows
from dinoskip.results.statistics import mcnemar
from tests.helpers.labelled import make_classes
from tests.helpers.study import SUPERVISED


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    make_classes(folder / "data" / "train", 4)
    make_classes(folder / "data" / "val", 2, seed=1)
    config = folder / "labelled.yaml"
    config.write_text(SUPERVISED.replace("DATA", str(folder / "data")) + f"output: {folder / 'runs'}\n")
    assert main(["run", str(config), "-q"]) == 0
    return config


def test_the_report_has_both_variants(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = done.parent / "runs" / "labelled"
    for manifest in root.rglob(MANIFEST):
        assert verify_manifest(manifest.parent) == []
    page = (root / "report" / "index.html").read_text()
    assert "top-1, shapes val" in page
    assert "loss against step" in page
    assert "| skipless-adamw |" in (root / "report" / "report.md").read_text().replace("\\", "")
    capsys.readouterr()
    assert main(["status", str(done), "--json"]) == 0
    best = {(row["model"], row["metric"]) for row in json.loads(capsys.readouterr().out)["best"]}
    assert {("skip-adamw", "top1"), ("skipless-adamw", "top5")} <= best
    assert main(["run", str(done), "--json", "supervise.log_every=3", "supervise.online_every=1"]) == 0
    assert set(json.loads(capsys.readouterr().out)["stages"].values()) == {"cached"}


def test_rows_and_weights_of_a_variant(done: Path) -> None:
    stages = done.parent / "runs" / "labelled" / "stages"
    rows = read_rows(next((stages / "supervise" / "skipless-adamw").glob("*/rows.json")))
    assert [(row.metric, row.task, row.n, row.classes, row.epoch) for row in rows] == [
        ("top1", "classify", 6, 3, 1), ("top5", "classify", 6, 3, 1),
    ]  # fmt: skip
    assert rows[1].value == 100
    exported = next((stages / "weights" / "skipless-adamw").rglob("weights.safetensors"))
    _, model, info = load_weights(exported)
    assert (model.skip, info["role"], info["init"]) == (False, "student", "skipless")
    assert (info["images_format"], len(info["images"])) == ("folder", 64)
    knn = [row for path in (stages / "knn" / "skipless-adamw").rglob("rows.json") for row in read_rows(path)]
    assert {row.weights for row in knn if not row.is_baseline} == {rows[0].weights}


def test_an_accuracy_has_records_of_images_and_is_compared_by_them(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages, measured = done.parent / "runs" / "labelled" / "stages", []
    for name in ("skip-adamw", "skipless-adamw"):
        (folder,), (trained,) = (list((stages / stage / name).glob("*")) for stage in ("accuracy", "supervise"))
        assert (folder / "rows.json").read_bytes() == (trained / "rows.json").read_bytes(), "rows of the same numbers"
        records = read_records(folder)
        assert [row.metric for row in records] == ["top1", "top5"]
        for row, record in records.items():
            assert record.ids == LabelledFolder.open(done.parent / "data" / "val").ids
            assert 100 * record.values.mean() == pytest.approx(row.value)
        measured.append((folder, next(iter(records.values())).values))
    (first, hits), (second, others) = measured
    capsys.readouterr()
    assert main(["compare", f"{first}@metric=top1", f"{second}@metric=top1"]) == 0
    alone = mcnemar(hits, others)
    assert f"McNemar {alone.only_a} : {alone.only_b}," in capsys.readouterr().out
    line = next(one for one in (done.parent / "runs/labelled/report/tables/answer.csv").read_text().splitlines()
                if "top-1, shapes val" in one)  # fmt: skip
    assert "unpaired" not in line
    rows = read_rows(done.parent / "runs" / "labelled" / "rows.json")
    assert sum((row.model, row.metric) == ("skip-adamw", "top1") for row in rows) == 1


def test_a_finished_training_without_records_is_measured_and_not_repeated(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A version that wrote none left it: the page says unpaired, and a run measures the checkpoint alone."""
    runs = shutil.copytree(done.parent / "runs", tmp_path / "runs")
    for part in ("stages", "records"):
        shutil.rmtree(runs / "labelled" / part / "accuracy")
    command = [str(done), f"output={runs}", "--device", "cpu"]
    capsys.readouterr()
    assert main(["report", *command, "-q"]) == 0
    assert "unpaired" in (runs / "labelled" / "report" / "tables" / "answer.csv").read_text()
    capsys.readouterr()
    assert main(["run", *command, "--json"]) == 0
    happened = json.loads(capsys.readouterr().out)["stages"]
    done_now = {name for name, what in happened.items() if what == "done"}
    assert done_now == {"accuracy/skip-adamw", "accuracy/skipless-adamw"}, "the page with them was made before"
    assert "unpaired" not in (runs / "labelled" / "report" / "tables" / "answer.csv").read_text()


def test_records_that_are_not_of_the_rows_are_not_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [EvalResult(metric, 75.0, "classify", "1", "shapes", "val", 4, model="a") for metric in ("top1", "top5")]
    (tmp_path / "run").mkdir()
    (tmp_path / "out").mkdir()
    write_rows(tmp_path / "run" / "rows.json", rows)
    hits = {"top1": np.array([1, 1, 1, 0], bool), "top5": np.array([1, 1, 0, 0], bool)}
    with caplog.at_level("WARNING", "dinoskip"):
        accuracy.write_measured(tmp_path / "run", tmp_path / "out", list("abcd"), hits)
    assert [row.metric for row in read_records(tmp_path / "out")] == ["top1"]
    assert [one.levelname for one in caplog.records] == ["WARNING"]


def test_models_and_optimizers_start_from_the_recipe(done: Path) -> None:
    names = 'variants.optimizer=["adamw", {name: soap, lr: 1e-3}, {name: muon}]'
    study, variants = load_study(done, [names, "optimizer.weight_decay=0.1"])
    assert study.model.drop_path == 0
    assert all(variant.model and variant.model.drop_path == 0 for variant in variants)
    found = {
        variant.name: (variant.optimizer.lr, variant.optimizer.weight_decay, variant.optimizer.weight_decay_end)
        for variant in variants
        if variant.optimizer
    }
    assert found["skip-adamw"] == (2.5e-4, 0.1, 0.05)
    assert found["skip-soap"] == (1e-3, 0.05, 0.05)
    assert found["skipless-muon"] == (2.5e-4, 0.05, 0.05)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("supervise.dataset=other", "supervise.dataset: 'other' is not one of the data sets"),
        ("pretrain.dataset=shapes", "supervise: pretrain is given too"),
        ("data.shapes={kind: scenes}", "supervise.dataset: is of kind scenes"),
        ("supervise.augment.size=40", "supervise.augment.size: 40 is not a multiple of the patch size 16"),
        ("supervise.online_every=0", "supervise.online_every"),
        ("supervise.augment.mixupp=1", "supervise.augment.mixupp: unknown key (did you mean mixup?)"),
        ("evaluate.epochs=[3]", "epoch 3 is not kept: add it to supervise.keep_epochs"),
        ("online.knn.dataset=shapes", "online: never happens"),
    ],
)
def test_what_is_wrong_is_one_line(done: Path, override: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_study(done, [override])
    assert len(caught.value.problems) == 1, caught.value.problems
    assert problem in caught.value.problems[0]


def test_what_training_reads_is_its_key(done: Path) -> None:
    def keyed(*overrides: str) -> dict[str, object]:
        study, variants = load_study(done, overrides)
        return {node.id: (node.plain, node.version) for node in build_nodes(study, variants)}

    plain = keyed()
    assert keyed("supervise.log_every=7", "supervise.accumulate=3") == plain
    changed = {node for node, value in keyed("supervise.augment.mixup=0").items() if value != plain[node]}
    assert changed == {"supervise/skip-adamw", "supervise/skipless-adamw", "report"}
