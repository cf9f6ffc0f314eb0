"""Stores that go when all that reads them is done, on real stages that write small files."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from dinoskip.errors import ConfigError, DiskFull
from dinoskip.io.files import MANIFEST
from dinoskip.io.locks import directory_lock
from dinoskip.pipeline.graph import Node, order
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.sections import StorageConfig, StorageRules
from dinoskip.pipeline.stage import Stage, Task
from dinoskip.settings.config import RawConfig, validate

SIZE = 600_000
AT_ONCE = StorageRules(at_once=True)


class Study:
    """Two variants a and b, each with a store that two stages read, and a report over all; counts what runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ran, self.fail = folder, list[str](), ""

    def _store(self, task: Task) -> None:
        self.ran.append(f"store {task.settings['variant']}")
        assert task.reserve is not None
        task.reserve(SIZE)
        (task.out / "store").mkdir(exist_ok=True)
        (task.out / "store" / "rows").write_bytes(str(task.settings["variant"]).encode() * SIZE)

    def _read(self, stage: str, task: Task) -> None:
        self.ran.append(f"{stage} {task.settings['variant']}")
        first = (task.inputs["store"] / "store" / "rows").read_bytes()[:1].decode()
        (task.out / "text").write_text(first * task.settings["times"])
        if self.fail == self.ran[-1]:
            raise KeyboardInterrupt

    def _report(self, task: Task) -> None:
        self.ran.append("report")
        (task.out / "text").write_text(", ".join(sorted(task.inputs)))

    def runner(self, rules: StorageRules, times: int = 1) -> Runner:
        stages = {
            "store": Stage("store", self._store, resumes=True, disposable=True),
            "probe": Stage("probe", partial(self._read, "probe")),
            "knn": Stage("knn", partial(self._read, "knn")),
            "report": Stage("report", self._report, reads_stores=False),
        }
        nodes = [Node(f"store/{v}", "store", {"variant": v}, variant=v) for v in "ab"]
        for stage, count in (("probe", 1), ("knn", times)):
            nodes += [
                Node(f"{stage}/{v}", stage, {"variant": v, "times": count}, {"store": f"store/{v}"}, variant=v)
                for v in "ab"
            ]
        nodes.append(Node("report", "report", {}, {node.id: node.id for node in nodes}))
        return Runner(self.folder, nodes, stages, storage=rules)

    def run(self, rules: StorageRules, times: int = 1, only: str = "") -> list[str]:
        """Run the nodes whose id contains ``only``, and return the ids of those that ran."""
        self.ran.clear()
        runner = self.runner(rules, times)
        runner.run({node.id for node in runner.planner.nodes if only in node.id})
        return list(self.ran)

    @property
    def stored(self) -> list[str]:
        return sorted(path.parts[-4] for path in self.folder.glob("stages/store/*/*/store/rows"))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


ALL = ["store a", "probe a", "knn a", "store b", "probe b", "knn b", "report"]


def test_what_reads_a_store_follows_it(study: Study) -> None:
    assert study.run(StorageRules()) == ALL
    assert study.stored == ["a", "b"], "without a rule all stay"


def test_a_store_goes_at_once_and_all_stays_cached(study: Study) -> None:
    assert study.run(AT_ONCE) == ALL
    assert study.stored == []
    assert sorted(path.name for path in study.folder.glob("stages/store/a/*/*")) == ["released.json", "timing.json"]
    for rules in (AT_ONCE, StorageRules()):
        assert study.run(rules) == []
    assert {step.state for step in study.runner(AT_ONCE).plan()} == {"cached"}


def test_the_report_of_a_later_run_needs_no_store(study: Study) -> None:
    assert study.run(AT_ONCE, only="/") == ALL[:-1]
    assert study.stored == []
    assert study.run(AT_ONCE) == ["report"]


def test_it_is_made_again_for_a_stage_that_must_run(study: Study) -> None:
    study.run(AT_ONCE)
    steps = {step.node.id: step for step in study.runner(AT_ONCE, times=2).plan()}
    assert steps["store/a"].reason == "removed after use, made again for knn/a"
    assert study.run(AT_ONCE, times=2) == ["store a", "knn a", "store b", "knn b", "report"]
    assert study.stored == []
    with pytest.raises(ConfigError, match="knn/a: cannot run before store/a, whose files were removed"):
        study.run(AT_ONCE, times=3, only="knn")
    assert study.run(StorageRules(), times=3) == ["store a", "knn a", "store b", "knn b", "report"]
    assert study.stored == ["a", "b"]
    assert study.run(AT_ONCE, times=3) == []
    assert study.stored == [], "those of an earlier run, too"


def test_a_store_stays_until_its_last_reader_is_done(study: Study) -> None:
    study.fail = "knn a"
    with pytest.raises(KeyboardInterrupt):
        study.run(AT_ONCE)
    assert study.stored == ["a"]
    study.fail = ""
    assert study.run(AT_ONCE) == ["knn a", "store b", "probe b", "knn b", "report"]
    assert study.run(AT_ONCE, only="nothing") == []


def test_used_up_stores_make_room(study: Study) -> None:
    assert study.run(StorageRules(limit=3 * SIZE)) == ALL
    assert study.stored == ["a", "b"], "both fit"
    study.folder /= "other"
    assert study.run(StorageRules(limit=SIZE + 1000)) == ALL
    assert study.stored == ["b"]


def test_no_room(study: Study) -> None:
    with pytest.raises(DiskFull, match=r"store/a: its features need 600 kB; storage.limit is 500 kB .* have 0 B"):
        study.run(StorageRules(limit=500_000))
    study.run(StorageRules(), only="store")
    assert study.stored == ["a", "b"]
    (study.folder / "stages" / "store" / "left").write_bytes(bytes(100_000))
    assert study.run(StorageRules(limit=SIZE), only="a") == ["probe a", "knn a"], "what is there is not thrown away"
    shutil.rmtree(study.folder / "stages" / "store" / "b")
    with pytest.raises(DiskFull, match="other stores, still needed or of other settings, have 100 kB"):
        study.run(StorageRules(limit=SIZE))


def test_what_another_run_reads_is_left_alone(study: Study) -> None:
    with directory_lock(study.folder / "running" / "gallery" / "a"):
        assert study.run(AT_ONCE) == ALL
        assert study.stored == ["a"]
    assert study.run(AT_ONCE) == []
    assert study.stored == []


def test_killed_while_removing(study: Study) -> None:
    study.run(StorageRules())
    runner = study.runner(StorageRules())
    runner.plan()
    artifacts, key = runner.artifacts, runner.planner.keys["store/a"]
    there = artifacts.find("store/a", key)
    kept = (artifacts.path("store/a", key) / MANIFEST).read_bytes()
    rows = artifacts.path("store/a", key) / "store" / "rows"
    artifacts.release("store/a", key)
    rows.parent.mkdir()
    rows.write_bytes(b"a" * SIZE)
    assert (artifacts.find("store/a", key), artifacts.released("store/a", key)) == (None, there)
    (artifacts.path("store/a", key) / MANIFEST).write_bytes(kept)
    assert (artifacts.find("store/a", key), artifacts.released("store/a", key)) == (there, None)
    assert study.run(AT_ONCE) == []
    assert study.stored == []


def test_what_is_left_of_other_settings_is_unused(study: Study) -> None:
    study.run(AT_ONCE)
    runner = study.runner(AT_ONCE)
    runner.plan()
    assert runner.artifacts.unused(set(runner.published().values())) == []
    (left,) = runner.artifacts.unused(
        {*runner.published().values()} - {runner.artifacts.path("store/a", runner.planner.keys["store/a"])}
    )
    assert left.parent.name == "a"


def test_order_puts_a_store_before_its_first_reader() -> None:
    nodes = [Node(name, "s", {}) for name in ("store 1", "store 2")]
    nodes += [
        Node("x 1", "s", {}, {"in": "store 1"}),
        Node("x 2", "s", {}, {"in": "store 2"}),
        Node("y 1", "s", {}, {"in": "store 1"}),
    ]
    readers = {"store 1": ["x 1", "y 1"], "store 2": ["x 2"]}
    assert [node.id for node in order(nodes, readers)] == ["store 1", "x 1", "y 1", "store 2", "x 2"]
    assert [node.id for node in order(nodes)] == [node.id for node in nodes]


@pytest.mark.parametrize(("text", "size"), [("200GB", 2 * 10**11), ("1.5 TB", 15 * 10**11), (10**7, 10**7)])
def test_sizes(text: object, size: int) -> None:
    assert StorageConfig.model_validate({"limit": text}).limit == size


@pytest.mark.parametrize("text", ["200", "2 gigabytes", "-1GB", "1kB", 5])
def test_sizes_that_are_none(text: object) -> None:
    with pytest.raises(ConfigError, match=r"storage.limit: (must be|should be)"):
        validate(StorageConfig, RawConfig({"limit": text}), "storage")
