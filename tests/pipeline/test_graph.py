"""Keys, plans and reasons, on real stages that write small files."""

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dinoskip.errors import ConfigError, DataError, OutputInUse
from dinoskip.io.files import MANIFEST, read_json, verify_manifest, write_json, write_manifest
from dinoskip.io.locks import directory_lock
from dinoskip.pipeline import artifacts
from dinoskip.pipeline.graph import Node, only, order, record_of, select
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.stage import Stage, Task


class Counter:
    """Three real stages: ``one`` writes its number, ``two`` the parity of its input, ``three`` its input's text."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fail: str | None = None

    def _run(self, stage: str, task: Task) -> None:
        self.ran.append(stage)
        if "value" in task.settings:
            text = str(task.settings["value"])
        else:
            text = (task.inputs["source"] / "text").read_text()
            text = str(int(text) % 2) if stage == "two" else text
        (task.out / "text").write_text(text)
        if self.fail == stage:
            raise KeyboardInterrupt

    def table(self) -> dict[str, Stage]:
        return {name: Stage(name, partial(self._run, name)) for name in ("one", "two", "three")}


def nodes(value: int = 1, extra: Any = None, version: int = 1) -> list[Node]:
    return [
        Node("one", "one", {"value": value, "extra": extra}, version=version),
        Node("two", "two", {}, inputs={"source": "one"}),
        Node("three", "three", {}, inputs={"source": "two"}),
    ]


def everything(runner: Runner) -> set[str]:
    return {node.id for node in runner.planner.nodes}


def run(tmp_path: Path, counter: Counter, graph: list[Node]) -> list[str]:
    counter.ran.clear()
    runner = Runner(tmp_path, graph, counter.table())
    runner.run(everything(runner))
    return list(counter.ran)


def test_cache_and_early_cut_off(tmp_path: Path) -> None:
    counter = Counter()
    assert run(tmp_path, counter, nodes(1)) == ["one", "two", "three"]
    assert run(tmp_path, counter, nodes(1)) == []
    # 3 has the parity of 1: "two" runs and gives the same bytes, so "three" is not run
    assert run(tmp_path, counter, nodes(3)) == ["one", "two"]
    assert run(tmp_path, counter, nodes(1)) == []  # the old outputs are still there
    assert run(tmp_path, counter, nodes(1, version=2)) == ["one"]


def test_who_takes_a_part_of_an_output_runs_again_only_if_that_part_is_another(tmp_path: Path) -> None:
    """``two`` is told the last digit of ``one``: 21 is to it what 11 was, also when 11 is gone, and 12 is not."""
    counter = Counter()

    def ran(value: int) -> list[str]:
        counter.ran.clear()
        stages = counter.table()
        stages["one"] = replace(stages["one"], tells=lambda out: (out / "text").read_text()[-1])
        runner = Runner(tmp_path, nodes(value)[:2], stages)
        runner.run(everything(runner))
        assert (runner.output("one") / "text").read_text() == str(value), "the output itself is the new one"
        return list(counter.ran)

    assert ran(11) == ["one", "two"]
    assert ran(21) == ["one"]
    assert ran(21) == []
    for output in (tmp_path / "stages/one").iterdir():
        if (output / "text").read_text() == "11":
            shutil.rmtree(output)
    assert ran(31) == ["one"], "taken as 21 is, which is taken as 11 was"
    assert ran(12) == ["one", "two"]


def test_plan_says_why(tmp_path: Path) -> None:
    counter = Counter()
    first = Runner(tmp_path, nodes(1), counter.table())
    assert [(step.state, step.reason) for step in first.plan()] == [
        ("run", "never run"), ("waiting", "after one"), ("waiting", "after two"),
    ]  # fmt: skip
    first.run(everything(first))
    changed = Runner(tmp_path, nodes(2, {"deep": [1]}), counter.table()).plan()
    assert changed[0].reason == "extra.deep: unset → [1]; value: 1 → 2"
    assert Runner(tmp_path, nodes(1, version=3), counter.table()).plan()[0].reason == "stage version: 1 → 3"


def test_external_content_is_part_of_the_key(tmp_path: Path) -> None:
    counter = Counter()
    content = {"data": "a"}
    graph = [Node("one", "one", {"value": 1}, external=lambda: dict(content))]
    assert run(tmp_path, counter, graph) == ["one"]
    assert run(tmp_path, counter, graph) == []
    content["data"] = "b"
    assert Runner(tmp_path, graph, counter.table()).plan()[0].reason == "files data: changed"
    assert run(tmp_path, counter, graph) == ["one"]


def test_runtime_is_not_part_of_the_key(tmp_path: Path) -> None:
    counter = Counter()
    run(tmp_path, counter, [Node("one", "one", {"value": 1}, runtime={"root": "a"})])
    assert run(tmp_path, counter, [Node("one", "one", {"value": 1}, runtime={"root": "b"})]) == []


def test_interrupted_stage_is_not_believed(tmp_path: Path) -> None:
    counter = Counter()
    counter.fail = "two"
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, counter, nodes(1))
    counter.fail = None
    assert run(tmp_path, counter, nodes(1)) == ["two", "three"]


def test_no_output_is_without_its_record_wherever_a_run_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of ``tests/chaos`` (2026-11-27, seed 402) left an output whose record had not been written any more."""

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for name in ("publish_directory", "write_json"):
        study = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(artifacts, name, killed)
            with pytest.raises(KeyboardInterrupt):
                run(study, Counter(), nodes(1))
        assert not list(study.glob(f"stages/one/[0-9a-f]*/{MANIFEST}")), "not published"
        assert run(study, Counter(), nodes(1)) == ["one", "two", "three"]
        assert (study / "records" / "one.json").is_file()


def test_damaged_output_is_made_again(tmp_path: Path) -> None:
    counter = Counter()
    run(tmp_path, counter, nodes(1))
    text = next((tmp_path / "stages" / "two").glob("*/text"))
    text.write_text("damaged")
    assert run(tmp_path, counter, nodes(1)) == ["two"]
    manifest = next((tmp_path / "stages" / "one").glob(f"*/{MANIFEST}"))
    manifest.unlink()
    step = Runner(tmp_path, nodes(1), counter.table()).plan()[0]
    assert step.state == "run"
    assert str(manifest) in step.reason
    assert run(tmp_path, counter, nodes(1)) == ["one"]
    for manifest in tmp_path.rglob(MANIFEST):
        assert verify_manifest(manifest.parent) == []


class Training(Counter):
    """``one`` as a stage that trains, with a log and a status beside what it makes."""

    def table(self) -> dict[str, Stage]:
        def train(task: Task) -> None:
            self._run("one", task)
            (task.out / "checkpoint").mkdir(exist_ok=True)
            (task.out / "checkpoint" / "teacher").write_text("weights")
            for name in ("status.json", "metrics.jsonl", "env.json"):
                (task.out / name).write_text("{}\n")

        return super().table() | {"one": Stage("one", train, resumes=True, together=True)}


def trained(tmp_path: Path) -> tuple[Training, Path]:
    counter = Training()
    run(tmp_path, counter, nodes(1))
    (output,) = (tmp_path / "stages" / "one").iterdir()
    return counter, output


def files_of(output: Path) -> dict[str, tuple[int, bytes]]:
    """Inode and content of every file."""
    return {str(path): (path.stat().st_ino, path.read_bytes()) for path in output.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "content"),
    [("status.json", "{} \n"), ("metrics.jsonl", "{}\n\n"), ("env.json", None), ("status.json", "[]\n")],
    ids=["a blank", "an empty line", "removed", "of the same size"],
)
def test_a_changed_log_of_a_training_is_warned_of_and_nothing_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: str | None
) -> None:
    counter, output = trained(tmp_path)
    (output / name).unlink() if content is None else (output / name).write_text(content)
    before = files_of(output)
    shutil.rmtree(tmp_path / "stages" / "two")  # so that it is read, too
    assert run(tmp_path, counter, nodes(1)) == ["two"]
    (warned,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert str(output / name) in warned
    assert files_of(output) == before


@pytest.mark.parametrize("name", ["checkpoint/teacher", "text", MANIFEST])
@pytest.mark.parametrize("damage", ["a byte short", "removed"])
def test_a_damaged_training_is_named_and_not_replaced(tmp_path: Path, name: str, damage: str) -> None:
    counter, output = trained(tmp_path)
    damaged = output / name
    damaged.unlink() if damage == "removed" else damaged.write_bytes(damaged.read_bytes()[:-3])
    before = files_of(output)
    steps = {step.node.id: step for step in Runner(tmp_path, nodes(1), counter.table()).plan()}
    assert steps["one"].state == "damaged"
    assert str(damaged) in steps["one"].reason
    for chosen in ({"one", "two", "three"}, {"three"}):
        with pytest.raises(DataError) as caught:
            Runner(tmp_path, nodes(1), counter.table()).run(chosen)
        assert str(damaged) in caught.value.problems[0]
    assert counter.ran == ["one", "two", "three"], "those of the first run"
    assert files_of(output) == before
    again = Runner(tmp_path, nodes(1), counter.table(), retrain=True)
    assert again.run(everything(again))["one"] == "done"
    assert verify_manifest(output) == []


def test_a_flipped_bit_of_a_training_is_found_where_it_is_to_be_trained_again(tmp_path: Path) -> None:
    counter, output = trained(tmp_path)
    (output / "text").write_text("3")
    shutil.rmtree(tmp_path / "stages" / "two")
    with pytest.raises(DataError, match="text: content differs"):
        run(tmp_path, counter, nodes(1))
    counter.ran.clear()
    again = Runner(tmp_path, nodes(1), counter.table(), retrain=True)
    again.run(everything(again))
    assert counter.ran == ["one", "two"]
    assert Runner(tmp_path, nodes(1), counter.table(), retrain=True).plan()[0].state == "cached"


def test_nothing_publishes_over_a_training(tmp_path: Path) -> None:
    """Even if a plan said so: what is there is looked at once more where it would be replaced."""
    counter, output = trained(tmp_path)
    runner = Runner(tmp_path, nodes(1), counter.table())
    runner.plan()
    before, key = files_of(output), runner.planner.keys["one"]
    (runner.artifacts.fresh_partial("one", key, keep=True) / "text").write_text("other")
    record = record_of(runner.planner.nodes[0], runner.planner.outputs, {})
    with pytest.raises(OutputInUse):
        runner.artifacts.publish("one", key, record, {}, replace=False)
    assert files_of(output) == before


def test_a_flipped_bit_in_an_input_is_named_before_it_is_read(tmp_path: Path) -> None:
    counter = Counter()
    run(tmp_path, counter, nodes(1))
    (text,) = (tmp_path / "stages" / "one").glob("*/text")
    text.write_text("2")
    shutil.rmtree(tmp_path / "stages" / "two")
    with pytest.raises(DataError, match="text: content differs from its recorded sha256") as caught:
        run(tmp_path, counter, nodes(1))
    assert caught.value.hint == f"remove {text.parent}: the same command makes it again"
    assert counter.ran == []
    assert not (tmp_path / "stages" / "two").exists()
    shutil.rmtree(text.parent)
    assert run(tmp_path, counter, nodes(1)) == ["one", "two"]


@pytest.mark.parametrize("inner", [False, True])
def test_an_input_that_is_damaged_while_it_is_read_is_named_and_nothing_is_published(
    tmp_path: Path, inner: bool
) -> None:
    """Outputs made of it once stayed under the key of whole inputs: a report drew a log that was cut off."""
    table, damaged = Counter().table(), list[Path]()

    def makes(task: Task) -> None:
        table["one"].run(task)
        (task.out / "store").mkdir()
        (task.out / "store" / "rows").write_text("12345")
        write_manifest(task.out / "store")

    def reads(task: Task) -> None:
        table["two"].run(task)
        file = task.inputs["source"] / ("store/rows" if inner else "text")
        status = file.stat()
        if not damaged:
            damaged.append(file)
            file.write_text("x" * status.st_size)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    stages = {"one": Stage("one", makes), "two": Stage("two", reads)}
    graph = [Node("one", "one", {"value": 1}), Node("two", "two", {}, inputs={"source": "one"})]
    with pytest.raises(DataError, match="content differs from its recorded sha256") as caught:
        Runner(tmp_path, graph, stages).run({"one", "two"})
    assert str(damaged[0]) in caught.value.message
    assert caught.value.hint == f"remove {damaged[0].parents[inner]}: the same command makes it again"
    assert not list((tmp_path / "stages" / "two").glob("[0-9a-f]*"))
    shutil.rmtree(damaged[0].parents[inner])
    assert Runner(tmp_path, graph, stages).run({"one", "two"}) == {"one": "done", "two": "done"}


def test_a_manifest_whose_hash_is_not_that_of_its_files_is_none(tmp_path: Path) -> None:
    """It is the input's hash in the keys of what depends on it: all that would be made anew."""
    counter = Counter()
    run(tmp_path, counter, nodes(1))
    (manifest,) = (tmp_path / "stages" / "one").glob(f"*/{MANIFEST}")
    content = read_json(manifest)
    write_json(manifest, content | {"hash": content["hash"][::-1]})
    assert run(tmp_path, counter, nodes(1)) == ["one"]


def test_another_run_of_the_same_variant_is_refused_and_of_another_is_not(tmp_path: Path) -> None:
    graph = [Node(f"train/{name}", "one", {"value": 1}, variant=name) for name in "ab"]
    with directory_lock(tmp_path / "running" / "train" / "a"):
        with pytest.raises(OutputInUse, match="running/train/a: in use by process"):
            run(tmp_path, Counter(), graph)
        assert Runner(tmp_path, graph, Counter().table()).run({"train/b"}) == {"train/b": "done"}
    assert Runner(tmp_path, graph, Counter().table()).run({"train/a", "train/b"}) == {
        "train/a": "done", "train/b": "cached",
    }  # fmt: skip
    assert not (tmp_path / "running").exists()


def test_what_variants_share_is_made_once_and_waited_for(tmp_path: Path) -> None:
    counter, met = Counter(), threading.Event()
    table, graph = counter.table(), [Node("data", "one", {"value": 1})]

    def slow(task: Task) -> None:
        met.wait(30)
        time.sleep(0.3)
        table["one"].run(task)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Runner(tmp_path, graph, {"one": Stage("one", slow)}).run, {"data"})
        while not (tmp_path / "running/data/.lock").exists():
            time.sleep(0.01)
        second = pool.submit(Runner(tmp_path, graph, table).run, {"data"})
        met.set()
        assert (first.result(60), second.result(60)) == ({"data": "done"}, {"data": "cached"})


def run_states(study: Path, nodes: list[Node]) -> dict[str, str]:
    planner = Runner(study, nodes, Counter().table()).planner
    return {step.node.id: step.state for step in planner.plan()}


def test_only_needs_its_inputs(tmp_path: Path) -> None:
    runner = Runner(tmp_path, nodes(1), Counter().table())
    with pytest.raises(ConfigError, match="three: cannot run before two"):
        runner.run({"three"})


def test_unused_outputs_are_found(tmp_path: Path) -> None:
    counter = Counter()
    run(tmp_path, counter, nodes(1))
    run(tmp_path, counter, nodes(3))
    runner = Runner(tmp_path, nodes(3), counter.table())
    runner.plan()
    unused = runner.artifacts.unused(set(runner.published().values()))
    assert [path.parent.name for path in unused] == ["one", "two"]
    assert unused[0] not in runner.published().values()


def test_order_and_cycles() -> None:
    graph = nodes(1)
    assert [node.id for node in order(graph[::-1])] == ["one", "two", "three"]
    with pytest.raises(ValueError, match="cycle"):
        order([Node("a", "one", {}, inputs={"x": "b"}), Node("b", "one", {}, inputs={"x": "a"})])


def test_select() -> None:
    graph = [Node("a/v", "one", {}, variant="v"), Node("a/w", "one", {}, variant="w"), Node("b", "two", {})]
    stages = ["one", "two"]
    assert select(graph, stages) == {"a/v", "a/w", "b"}
    assert select(graph, stages, only="two") == {"b"}
    assert select(graph, stages, until="one", variants=["w"]) == {"a/w"}
    assert select(graph, stages, start="two") == {"b"}
    shared = [Node("d", "one", {}), Node("e/v", "two", {}, inputs={"data": "d"}, variant="v"), Node("f", "two", {})]
    assert select(shared, stages, variants=["v"]) == {"d", "e/v"}
    assert select(shared, stages, until="one", variants=["v"]) == {"d"}, "what it needs, before any of its own stages"
    assert select(shared, stages, only="two", variants=["v"]) == {"e/v"}
    assert select(graph, stages, variants=["v", "w"]) == {"a/v", "a/w"}
    with pytest.raises(ConfigError, match="did you mean two"):
        select(graph, stages, only="tow")
    with pytest.raises(ConfigError, match="--variant x"):
        select(graph, stages, variants=["x"])


def test_only_a_stage_what_it_needs_and_a_report_of_that() -> None:
    nodes = [
        Node("features/a", "features", {}),
        Node("features/b", "features", {}),
        Node("probe/a", "probe", {}, inputs={"store": "features/a"}),
        Node("knn/b", "knn", {}, inputs={"store": "features/b"}),
        Node("report", "report", {}, inputs={name: name for name in ("features/a", "features/b", "probe/a", "knn/b")}),
    ]
    chosen = only(nodes, {"probe"}, gathering="report")
    assert [node.id for node in chosen] == ["features/a", "probe/a", "report"]
    assert set(chosen[-1].inputs) == {"features/a", "probe/a"}
    assert [node.id for node in only(nodes, {"knn"}, gathering="")] == ["features/b", "knn/b"]
