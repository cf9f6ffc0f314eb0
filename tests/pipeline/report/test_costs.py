"""Costs of a study, from logs written by hand: closed forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from dinoskip.init.config import ModelConfig
from dinoskip.io.files import write_json
from dinoskip.optim.config import AdamWConfig
from dinoskip.pipeline.report.costs import Throughput, cost_tables, throughput
from dinoskip.pipeline.report.settings import ReportSettings
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.stages.pretrain import AnySection
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.pipeline.variants import Variant
from dinoskip.results.rows import EvalResult, write_rows
from dinoskip.settings.flops import dino_step_flops, supervised_step_flops
from tests.helpers.study import TINY
from visualize.report.config import ReportConfig

MODEL = ModelConfig(name="vit_tiny_patch16", depth=2, img_size=32)
RECIPE = TypeAdapter(AnySection).validate_python(
    {"dataset": "x", "batch_size": 64, "out_dim": 32, "hidden_dim": 16, "bottleneck_dim": 8,
     "crops": {"global_size": 32, "local_size": 16, "num_local": 1}}
)  # fmt: skip
GFLOP = dino_step_flops(MODEL, head=(32, 16, 8), global_size=32, local_size=16, num_local=1) / 1e9


def row(step: int, rate: float, **more: Any) -> dict[str, Any]:
    return {"step": step, "images_per_s": rate, **more}


def run_dir(folder: Path, rows: list[dict[str, Any]], **env: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    if env:
        write_json(folder / "env.json", env)
    return folder


def task(out: Path, recipe: Any, variants: tuple[str, ...], **inputs: Path) -> Task:
    every = [Variant(name, ModelConfig(**MODEL.model_dump()), AdamWConfig()) for name in variants]
    settings = ReportSettings(ReportConfig(), "study", {}, every, recipe=recipe)
    return Task(settings, {}, inputs, out, "cpu", 0)


def pretrained(out: Path, variants: tuple[str, ...], **inputs: Path) -> Task:
    return task(out, RECIPE, variants, **inputs)


def test_time_is_the_sum_over_rows_and_the_rate_their_median() -> None:
    rows = [row(10, 20.0), row(20, 40.0), row(25, 80.0)]
    assert throughput(rows, 64) == Throughput(25, 40.0, 640 / 20 + 640 / 40 + 320 / 80)
    assert throughput([], 64) is None
    assert throughput([{"step": 4, "knn10_top1": 9.0}], 64) is None


def test_a_resumed_log_counts_every_step_once() -> None:
    """Resumed after step 15: the row of step 20 is of its last five alone, but all ten were made, at such a rate."""
    found = throughput([row(10, 32.0), row(20, 16.0), {"step": 24, "knn10_top1": 9.0}, row(30, 16.0)], 8)
    assert found == Throughput(30, 16.0, 80 / 32 + 80 / 16 + 80 / 16)


@given(st.sets(st.integers(1, 1000), min_size=1), st.floats(0.1, 1e5), st.integers(1, 4096))
def test_at_a_constant_rate_time_does_not_depend_on_the_rhythm_of_the_log(
    steps: set[int], rate: float, batch: int
) -> None:
    found = throughput([row(step, rate) for step in sorted(steps)], batch)
    assert found is not None
    assert found.seconds == pytest.approx(max(steps) * batch / rate)


def test_a_line_for_each_variant_in_the_studys_order(tmp_path: Path) -> None:
    rows = [row(10, 20.0, loss=3.0), row(20, 40.0, loss=2.0)]
    inputs = {
        "pretrain/b": run_dir(tmp_path / "b", rows, matmul_gflops=100.0, world_size=2),
        "pretrain/a": run_dir(tmp_path / "a", [row(20, 64.0)], world_size=1),  # of a version that measured no rate
    }
    table, _ = cost_tables(pretrained(tmp_path, ("a", "b", "given"), **inputs))
    assert [len(line) for line in table.rows] == [len(table.columns)] * 2
    first, second = table.rows
    assert first[:2] == ["a", 20]
    assert first[2:6] == pytest.approx([64.0, 20 / 60, GFLOP, 64 * GFLOP])
    assert first[6:] == ["not measured", "not measured"]
    assert second[:2] == ["b", 20]
    assert second[2:] == pytest.approx([30.0, 48 / 60, GFLOP, 30 * GFLOP, 200.0, 100 * 30 * GFLOP / 200])


def test_classes_of_a_supervised_run_are_those_of_its_rows(tmp_path: Path) -> None:
    recipe = SuperviseSection.model_validate({"dataset": "x", "batch_size": 8, "augment": {"size": 48}})
    run = run_dir(tmp_path / "run", [row(5, 10.0)])
    write_rows(run / "rows.json", [EvalResult("top1", 1.0, "classify", "2", "x", "val", 9, classes=7)])
    one = task(tmp_path, recipe, ("a",), **{"supervise/a": run})
    ((line,), _) = (table.rows for table in cost_tables(one))
    assert line[1:5] == pytest.approx([5, 10.0, 4 / 60, supervised_step_flops(MODEL, 7, 48) / 1e9])


def test_minutes_of_stages_are_summed_by_kind_in_order_of_execution(tmp_path: Path) -> None:
    inputs = {"knn/a/ep1/x": 30, "features/a/ep1/x-val-classes": 60, "features/a/ep1/x-train-classes": 90}
    inputs |= {"retrieve/a/ep1/x": 6}
    for number, seconds in enumerate(inputs.values()):
        write_json(tmp_path / str(number) / "timing.json", {"seconds": seconds})
    (tmp_path / "untimed").mkdir()
    places = {role: tmp_path / str(number) for number, role in enumerate(inputs)} | {"gallery": tmp_path / "untimed"}
    (table,) = cost_tables(pretrained(tmp_path, ("a",), **places))
    assert table.rows == [["features", 2, 2.5], ["knn", 1, 0.5], ["retrieve", 1, 0.1], ["all", 4, 3.1]]


def test_a_report_that_says_costs_reads_every_stage(tmp_path: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY)
    read = {}
    for costs in ("false", "true"):
        nodes = build_nodes(*load_study(config, (f"report.costs={costs}",)))
        (report,) = [node for node in nodes if node.stage == "report"]
        assert report.plain["report"]["costs"] is (costs == "true")
        read[costs] = set(report.inputs)
        assert list(report.inputs) == list(report.inputs.values())
    assert read["true"] == {node.id for node in nodes} - {"report"}
    assert {one.partition("/")[0] for one in read["true"] - read["false"]} == {"data", "weights", "features"}
