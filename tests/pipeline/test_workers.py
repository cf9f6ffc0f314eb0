"""Stages handed to workers: the same bytes as one process makes, a lost worker's node begun again, failures by name."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dinoskip.cli import main, read_words, studies
from dinoskip.errors import ConfigError, DataError, DinoskipError
from dinoskip.io.files import MANIFEST, read_manifest, write_text
from dinoskip.pipeline.executor import ForeignWorkers, LocalWorkers, named_function, places
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.runner import Runner, Spread
from dinoskip.pipeline.sections import StorageRules
from dinoskip.pipeline.stage import Stage, Task
from dinoskip.pipeline.study import STAGES as STUDY_STAGES
from tests.helpers.study import TINY

SIZE = 600_000


def _store(task: Task) -> None:
    assert task.reserve is not None
    task.reserve(SIZE)
    (task.out / "rows").write_bytes(task.settings["text"].encode() * SIZE)


def _read(task: Task) -> None:
    text = "".join((path / "rows").read_bytes()[:3].decode() for path in task.inputs.values())
    mark = task.settings.get("killed_once")
    if mark and not Path(mark).exists():
        write_text(Path(mark), "")
        os.kill(os.getpid(), signal.SIGKILL)
    if task.settings.get("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if task.settings.get("bad"):
        raise DataError("it is bad")
    write_text(task.out / "text", text)


STAGES = {"store": Stage("store", _store, disposable=True), "read": Stage("read", _read)}


def nodes(**settings: object) -> list[Node]:
    made = [Node(f"store/{name}", "store", {"text": name}, variant=name) for name in "abc"]
    for name in "abc":
        given = settings if name == "a" else {}
        made += [Node(f"read/{name}{n}", "read", {"n": n, **given}, {"s": f"store/{name}"}, variant=name) for n in "12"]
    return made


def run(study: Path, engine: object = None, rules: StorageRules | None = None, **settings: object) -> dict[str, str]:
    graph = nodes(**settings)
    spread = None if engine is None else lambda: Spread(engine, retries=1)  # type: ignore[arg-type]
    return Runner(study, graph, STAGES, device="cpu", storage=rules).run({node.id for node in graph}, spread)


def local(study: Path, count: int) -> LocalWorkers:
    return LocalWorkers(study, places(count, [], threads=1))


def hashes(study: Path) -> dict[str, str]:
    found = [read_manifest(path.parent) for path in study.glob(f"stages/**/{MANIFEST}")]
    return {manifest.info["node"]: manifest.hash for manifest in found}


def threads() -> Executor:
    return ThreadPoolExecutor(2)


@pytest.mark.slow  # processes that import everything
def test_workers_of_this_machine_make_what_one_process_makes(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    write_text(Path(mark), "")  # alone nothing is killed
    alone = run(tmp_path / "alone", killed_once=mark)
    Path(mark).unlink()
    spread = run(tmp_path / "spread", local(tmp_path / "spread", 2), killed_once=mark)
    assert spread == alone
    assert set(alone.values()) == {"done"}
    assert hashes(tmp_path / "spread") == hashes(tmp_path / "alone"), "one worker was killed"
    assert not (tmp_path / "spread" / "running").exists()


@pytest.mark.slow  # processes that import everything
def test_a_node_whose_worker_is_always_killed_fails_by_name_and_others_go_on(tmp_path: Path) -> None:
    with pytest.raises(DinoskipError, match=r"read/a[12]: lost 2 times"):
        run(tmp_path, local(tmp_path, 2), killed=True)
    assert sorted(hashes(tmp_path)) == [
        "read/b1", "read/b2", "read/c1", "read/c2", "store/a", "store/b", "store/c",
    ]  # fmt: skip


@pytest.mark.slow  # processes that import everything
def test_a_limit_of_the_disk_holds_over_workers_and_stores_go_after_their_last_reader(tmp_path: Path) -> None:
    rules = StorageRules(limit=2 * SIZE + 20_000, at_once=True)  # manifests and times of two, too
    happened = run(tmp_path, local(tmp_path, 2), rules)
    assert set(happened.values()) == {"done"}
    assert not list(tmp_path.glob("stages/store/**/rows"))
    assert not (tmp_path / "running").exists()


def test_an_executor_by_name(tmp_path: Path) -> None:
    engine = ForeignWorkers(f"{__name__}:threads", None)
    assert engine.capacity == 2
    with pytest.raises(DataError, match="it is bad"):
        run(tmp_path, engine, bad=True)
    assert len(hashes(tmp_path)) == 7
    with pytest.raises(DinoskipError, match=r"run\.executor"):
        named_function("dinoskip:none")


@pytest.mark.parametrize(
    ("gpus", "device", "words", "workers"),
    [
        ("", "auto", [], None), ("7", "auto", [], None), ("0 1 2", "auto", [], 3), ("0 1 2", "cpu", [], None),
        ("0 1 2", "auto", ["--jobs", "2"], 2), ("", "cpu", ["--jobs", "2"], 2),
    ],
)  # fmt: skip
def test_as_many_workers_as_gpus(
    gpus: str, device: str, words: list[str], workers: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "visible_gpus", lambda: gpus.split())
    write_text(tmp_path / "study.yaml", TINY + f"output: {tmp_path / 'runs'}\n")
    args = read_words(["run", str(tmp_path / "study.yaml"), "--device", device, *words])
    study, _, runner = studies.opened(args)
    made = studies.workers_of(args, study, runner)
    assert (None if made is None else made().engine.capacity) == workers
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    if words:
        with pytest.raises(ConfigError, match="several ranks"):
            studies.workers_of(args, study, runner)
    else:
        assert studies.workers_of(args, study, runner) is None, "its ranks share the work"


@pytest.mark.slow  # a training, and a page
def test_the_page_names_what_workers_could_not_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with the failure's exit code, after the page of the other stages."""
    knn = STUDY_STAGES["knn"]

    def run_knn(task: Task) -> None:
        if "skip-adamw" in task.out.parts:
            raise DataError("it is bad")
        knn.run(task)

    monkeypatch.setitem(STUDY_STAGES, "knn", replace(knn, run=run_knn))
    text = re.sub(r"\n(  (probe|tokencut|retrieve)|gallery): .*", "", TINY)
    write_text(tmp_path / "study.yaml", f"{text}output: {tmp_path / 'runs'}\nrun: {{executor: '{__name__}:threads'}}\n")
    assert main(["run", str(tmp_path / "study.yaml"), "-q"]) == 3
    page = (tmp_path / "runs" / "tiny" / "report" / "index.html").read_text()
    assert "knn/skip-adamw" in page
    assert "it is bad" in page
