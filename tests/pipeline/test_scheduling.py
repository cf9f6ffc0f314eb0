"""Nodes that share a job, and nodes that wait for memory which those at work take."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from dinoskip.errors import DataError, Preempted
from dinoskip.io.files import write_text
from dinoskip.pipeline.executor import ForeignWorkers
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.making import Made
from dinoskip.pipeline.runner import Runner, Spread
from dinoskip.pipeline.scheduling import Order, expected_seconds
from dinoskip.pipeline.stage import Stage, Task

_guard = threading.Lock()
_running: list[str] = []
_together: set[tuple[str, ...]] = set()


def _work(task: Task) -> None:
    name = task.settings["name"]
    with _guard:
        _running.append(name)
        _together.add(tuple(sorted(_running)))
    time.sleep(0.1)
    with _guard:
        _running.remove(name)
    if task.settings.get("bad"):
        raise DataError("it is bad")
    if task.settings.get("stopped"):
        raise Preempted("stopped")
    write_text(task.out / "text", name)


STAGES = {"work": Stage("work", _work), "train": Stage("train", _work, together=True)}


class Recorded(ForeignWorkers):
    """Three threads, which note the nodes of each job."""

    def __init__(self, memory: int | None = None, group_seconds: float = 0.0) -> None:
        super().__init__(f"{__name__}:threads", 3)
        self.memory, self.group_seconds = memory, group_seconds
        self.jobs: list[list[str]] = []

    def submit(self, orders: Sequence[Order]) -> list[Future[Made]]:
        self.jobs.append([work.node.id.partition("/")[2] for work, _ in orders])
        return super().submit(orders)


def threads() -> Executor:
    return ThreadPoolExecutor(3)


def run(folder: Path, engine: Recorded, nodes: Sequence[Node], retries: int = 2, **given: object) -> dict[str, str]:
    runner = Runner(folder, nodes, STAGES, device="cpu", **given)  # type: ignore[arg-type]
    return runner.run({node.id for node in nodes}, lambda: Spread(engine, retries))


def work(name: str, stage: str = "work", **settings: object) -> Node:
    return Node(f"{stage}/{name}", stage, {"name": name, **settings})


def test_what_does_not_fit_beside_others_waits(tmp_path: Path) -> None:
    _together.clear()
    nodes = [work(name) for name in ("a", "b", "c", "whole")]
    memory = {"work/a": 6.0, "work/b": 6.0, "work/whole": 20.0}
    happened = run(tmp_path, Recorded(memory=10), nodes, memory=lambda: memory)
    assert set(happened.values()) == {"done"}
    big = [set(names) & {"a", "b", "whole"} for names in _together]
    assert max(map(len, big)) == 1, _together
    assert ("a", "c") in _together, "what needs none does not wait"


def test_small_nodes_share_a_job_until_it_is_long_enough(tmp_path: Path) -> None:
    nodes = [work(f"s{number}") for number in range(5)] + [work("long"), work("all", "train")]
    works = {f"work/s{number}": ("small", 1.0) for number in range(5)} | {"work/long": ("features x", 1e13)}
    engine = Recorded(group_seconds=3.0)
    assert set(run(tmp_path, engine, nodes, works=lambda: works).values()) == {"done"}
    assert sorted(map(sorted, engine.jobs)) == [["all"], ["long"], ["s0", "s1", "s2"], ["s3", "s4"]]


def test_one_that_fails_takes_no_other_of_its_job_along(tmp_path: Path) -> None:
    nodes = [work("a"), work("b", bad=True), work("c")]
    with pytest.raises(DataError, match="it is bad"):
        run(tmp_path, Recorded(group_seconds=60.0), nodes)
    assert sorted(path.parent.parent.name for path in tmp_path.glob("stages/**/text")) == ["a", "c"]


def test_what_was_lost_is_begun_again_alone(tmp_path: Path) -> None:
    nodes, engine = [work("a"), work("b", stopped=True), work("c")], Recorded(group_seconds=60.0)
    with pytest.raises(Exception, match=r"work/b: lost 3 times"):
        run(tmp_path, engine, nodes)
    assert engine.jobs[0] == ["a", "b", "c"]
    assert sorted(engine.jobs[1:]) == [["b"], ["b"], ["c"]], "c had not begun when the worker was stopped"
    alone = Recorded(group_seconds=60.0)
    with pytest.raises(Exception, match=r"work/b: lost 1 times"):
        run(tmp_path / "no retries", alone, nodes, retries=0)
    assert sorted(alone.jobs) == [["a"], ["b"], ["c"]], "nothing may be lost by another's fault"


def test_kinds_without_a_time_are_guessed_and_none_that_is_long_is_small() -> None:
    nodes = [Node(name, name.partition("/")[0], {}) for name in ("pretrain/a", "probe/a", "probe/b", "report/x")]
    works = {"pretrain/a": ("pretrain soap", 1e15), "probe/a": ("probe", 1e10), "probe/b": ("probe", 2e10)}
    assert expected_seconds(nodes, works, {}) == {
        "pretrain/a": 1e4, "probe/a": 1e3, "probe/b": 2e3, "report/x": 1.0,
    }  # fmt: skip
    assert expected_seconds(nodes, works, {"probe/a": 5.0})["probe/b"] == 10.0
