"""A run reports counts, results and times; a failed stage stops those that need it and nothing else."""

import logging
import re
import shutil
from pathlib import Path

import pytest

from dinoskip.errors import DataError, NonFiniteError, OutputInUse
from dinoskip.io.files import write_json, write_text
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.progress import StudyProgress, past_seconds, rates, result_of
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.stage import Stage, Task
from dinoskip.results.rows import EvalResult, write_rows


def _write(task: Task) -> None:
    if text := task.settings.get("error"):
        raise {"data": DataError, "loss": NonFiniteError}[text](f"{text} is bad")
    write_text(task.out / "x.txt", "x")


STAGES = {"a": Stage("a", _write), "b": Stage("b", _write)}


def _nodes(**errors: str) -> list[Node]:
    first = [Node(f"a/{name}", "a", {"error": errors.get(name)}, variant=name) for name in "123"]
    return [*first, *(Node(f"b/{name}", "b", {}, inputs={"a": f"a/{name}"}, variant=name) for name in "123")]


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [re.sub(r" +", " ", record.getMessage()) for record in caplog.records]


def test_a_line_a_stage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = _nodes()
    with caplog.at_level(logging.INFO, "dinoskip"):
        Runner(tmp_path, nodes, STAGES).run({node.id for node in nodes[:3]})
        assert _said(caplog)[0] == "3 stages to run, 0 cached"
        assert _said(caplog)[2] == "[2/3] a/2 0s; 0s so far, about 0s left"
        assert _said(caplog)[-1] == "3 stages done in 0s"
        caplog.clear()
        happened = Runner(tmp_path, nodes, STAGES).run({node.id for node in nodes})
    assert happened == {f"a/{name}": "cached" for name in "123"} | {f"b/{name}": "done" for name in "123"}
    assert _said(caplog)[0] == "3 stages to run, 3 cached"
    assert not any(".partial" in line for line in _said(caplog))


def test_a_failure_stops_what_needs_it_alone_and_stands_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = _nodes(**{"1": "loss", "3": "data"})
    with caplog.at_level(logging.INFO, "dinoskip"), pytest.raises(NonFiniteError, match="loss is bad"):
        Runner(tmp_path, nodes, STAGES).run({node.id for node in nodes})
    assert "[1/6] a/1 failed: loss is bad" in _said(caplog)
    assert "[2/6] b/1 left out: a/1 has failed" in _said(caplog)
    assert _said(caplog)[-2:] == ["failed: a/1: loss is bad", "failed: a/3: data is bad"]
    runner = Runner(tmp_path, _nodes(), STAGES)
    states = {step.node.id: step.state for step in runner.plan()}
    assert (states["a/2"], states["b/2"], states["a/1"]) == ("cached", "cached", "run")


def test_times_of_finished_stages_say_how_long_the_rest_takes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    here, other = {"machine": "m"}, {"machine": "n"}
    timings: dict[str, dict[str, object]] = {
        "a/1": {**here},
        "a/2": {**here},
        "a/4": {**other},
        "a/5": {**here, "resumed": True},
        "a/6": {},
    }
    for name, timing in timings.items():
        write_json(tmp_path / name / "timing.json", {"seconds": 60 * int(name[-1]), **timing})
    write_text(tmp_path / "b/1" / "timing.json", "torn")
    outputs = {name: tmp_path / name for name in (*timings, "b/1", "b/2")}
    assert past_seconds(outputs, "m") == {"a/1": 60.0, "a/2": 120.0, "a/6": 360.0}, "of version 0.2: without a machine"
    assert past_seconds(outputs) == {name: 60.0 * int(name[-1]) for name in timings}
    past = {"a/1": 60.0, "a/2": 120.0}
    with caplog.at_level(logging.INFO, "dinoskip"):
        StudyProgress([Node("a/3", "a", {})], 2, past)
        StudyProgress([Node("a/3", "a", {}), Node("b/3", "b", {})], 2, past)
        StudyProgress([Node("b/3", "b", {})], 2, past)
        StudyProgress([Node("b/3", "b", {})], 2, {})
    assert [line.partition("cached")[2] for line in _said(caplog)] == [
        ", about 1m30s left",
        ", about 1m30s left (1 stage not timed yet)",
        "",
        "",
    ]


def test_times_grow_with_the_work_of_a_kind(caplog: pytest.LogCaptureFixture) -> None:
    works = {"a/1": ("x", 2.0), "a/2": ("x", 3.0), "a/3": ("x", 10.0), "a/4": ("y", 1.0)}
    past = {"a/1": 60.0, "a/2": 40.0, "b/1": 5.0}
    assert rates(past, works) == {"x": 20.0, "b": 5.0}
    missing = [Node(f"a/{name}", "a", {}) for name in "34"]
    with caplog.at_level(logging.INFO, "dinoskip"):
        StudyProgress(missing[:1], 3, past, lambda: works)
        progress = StudyProgress(missing, 0, {}, lambda: works)
        progress.finished(missing[1], 7.0, Path("none"))
    first, _, last = _said(caplog)
    assert first.endswith(", about 3m20s left")
    assert last.endswith("s so far"), "another kind of the same stage tells nothing"


def test_results_in_a_few_words(tmp_path: Path) -> None:
    def row(block: str, value: float, metric: str = "mIoU", **more: object) -> EvalResult:
        return EvalResult(metric, value, "probe", block, "d", "val", 3, **more)  # type: ignore[arg-type]

    rows = [row("1", 10.0, heldout=5.0), row("2", 20.0, heldout=4.0), row("1+2", 30.0), row("2", 40.0, note="best")]
    write_rows(tmp_path / "rows.json", rows)
    assert result_of(tmp_path) == "mIoU 10.0 at block 1"
    write_rows(tmp_path / "rows.json", [row("1", 0.5, "RMSE"), row("2", 0.4, "RMSE"), row("2", 90.0)])
    assert result_of(tmp_path) == "RMSE 0.400 at block 2"
    write_rows(tmp_path / "rows.json", [])
    assert result_of(tmp_path) == ""
    (tmp_path / "rows.json").unlink()
    write_text(tmp_path / "metrics.jsonl", '{"step": 1, "loss": 9.5}\n{"step": 2, "loss": 2.25}\n')
    assert result_of(tmp_path) == "loss 9.500 to 2.250"
    assert result_of(tmp_path / "none") == ""


def _published_by_another(task: Task) -> None:
    task.out.rename(task.out.with_name("published"))
    shutil.rmtree(task.out / "progress")


def _misses_a_file(task: Task) -> None:
    (task.out / "none.txt").read_text()


def test_a_run_whose_output_another_run_has_taken_over_says_so(tmp_path: Path) -> None:
    """Seen in a chaos run: it was stopped for an hour, another one went on in its folder and published it."""
    with pytest.raises(OutputInUse, match="removed or replaced while it was written to"):
        Runner(tmp_path, [Node("a/1", "a", {})], {"a": Stage("a", _published_by_another)}).run({"a/1"})
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):  # of its own making: not blamed on others
        Runner(tmp_path, [Node("a/2", "a", {})], {"a": Stage("a", _misses_a_file)}).run({"a/2"})
