"""Removing from a study's folder: nothing that a run is at, and unfinished work only where it is asked for."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dinoskip.errors import ConfigError, OutputInUse, Preempted
from dinoskip.io.files import read_manifest
from dinoskip.io.locks import STALE, directory_lock
from dinoskip.pipeline import cleaning
from dinoskip.pipeline.artifacts import Artifacts, Record
from dinoskip.pipeline.cleaning import RUNNING, alone, at_work, remove, unfinished
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.stage import Stage, Task
from tests.helpers.lockfiles import DEAD, lock_of


def graph(value: int) -> list[Node]:
    return [Node("train", "train", {"value": value})]


def write(task: Task) -> None:
    (task.out / "text").write_text(str(task.settings["value"]))


def stopped(task: Task) -> None:
    (task.out / "half").write_text("of it")
    raise Preempted("stopped")


def runner(study: Path, value: int, function: object = write) -> Runner:
    made = Runner(study, graph(value), {"train": Stage("train", function, resumes=True)})  # type: ignore[arg-type]
    made.plan()
    return made


def test_preempted_work_of_other_settings_is_unfinished_and_not_unused(tmp_path: Path) -> None:
    with pytest.raises(Preempted):
        runner(tmp_path, 1, stopped).run({"train"})
    runner(tmp_path, 2).run({"train"})
    now = runner(tmp_path, 2)
    assert now.artifacts.unused(set(now.published().values())) == []
    (work,) = cleaning.unfinished(now.artifacts, now.continued())
    assert (work.path / "half").read_text() == "of it"
    assert work.user is None
    assert 0 <= work.seconds < 60
    assert runner(tmp_path, 1).run({"train"}) == {"train": "done"}, "the same command goes on"
    assert (next(p for p in (tmp_path / "stages/train").glob("*/half"))).is_file(), "in the same directory"


def test_the_current_plans_own_partial_work_is_kept(tmp_path: Path) -> None:
    with pytest.raises(Preempted):
        runner(tmp_path, 1, stopped).run({"train"})
    now = runner(tmp_path, 1)
    assert cleaning.unfinished(now.artifacts, now.continued()) == []


def test_partial_work_whose_output_is_there_is_not_kept(tmp_path: Path) -> None:
    """A run leaves such work if it was stopped, overtaken by another at the same output, and went on."""
    runner(tmp_path, 1).run({"train"})
    (output,) = (tmp_path / "stages" / "train").glob("[0-9a-f]*")
    shutil.copytree(output, output.with_name(f".partial-{output.name}"))
    now = runner(tmp_path, 1)
    (work,) = cleaning.unfinished(now.artifacts, now.continued())
    assert work.path.name == f".partial-{output.name}"


def test_nothing_is_removed_while_any_run_is_at_work_and_no_run_begins_meanwhile(tmp_path: Path) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(task: Task) -> None:
        began.set()
        go_on.wait(30)
        write(task)

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(runner(tmp_path, 1, slow).run, {"train"})
        began.wait(30)
        with pytest.raises(OutputInUse, match="a run is at work here") as caught, cleaning.alone(tmp_path):
            pass
        assert caught.value.exit_code == 5
        go_on.set()
        assert run.result(60) == {"train": "done"}
    with cleaning.alone(tmp_path), pytest.raises(OutputInUse, match="`dinoskip gc` is at work here"):
        runner(tmp_path, 2).run({"train"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records", "stages"]


@pytest.mark.parametrize("content", [lock_of("here", DEAD), "torn"])
def test_locks_of_killed_runs_go(content: str, tmp_path: Path) -> None:
    lock = tmp_path / "running" / ".runs" / "of a killed run" / ".lock"
    lock.parent.mkdir(parents=True)
    lock.write_text(content)
    os.utime(lock, (time.time() - STALE - 1,) * 2)
    with cleaning.alone(tmp_path):
        assert not (tmp_path / "running").exists()


def test_a_directory_that_is_locked_itself_stays(tmp_path: Path) -> None:
    work = tmp_path / "stages" / "train" / ".partial-0"
    with directory_lock(work), pytest.raises(OutputInUse, match="in use by process"):
        cleaning.remove(work)
    assert work.is_dir()
    cleaning.remove(work)
    assert os.listdir(tmp_path / "stages") == []


@pytest.mark.parametrize("again", [False, True])
def test_an_output_that_is_removed_while_it_is_written_is_not_published(tmp_path: Path, again: bool) -> None:
    """Atomic writes make their folder anew: what they then hold is not what was written before."""

    def robbed(task: Task) -> None:
        write(task)
        shutil.rmtree(task.out)
        if again:
            task.out.mkdir()

    with pytest.raises(OutputInUse, match="not the directory that this run began") as caught:
        runner(tmp_path, 1, robbed).run({"train"})
    assert caught.value.exit_code == 5
    assert not list((tmp_path / "stages").rglob("MANIFEST.json"))
    assert runner(tmp_path, 1).run({"train"}) == {"train": "done"}


KEY = "a" * 64


def stubborn(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A file that cannot be deleted, as one that another machine has open on NFS."""
    unlink = os.unlink

    def refuse(path: object, *args: object, **kwargs: object) -> None:
        if str(path).endswith(name):
            raise OSError(16, "Device or resource busy")
        unlink(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "unlink", refuse)


@pytest.mark.parametrize("name", ["head.safetensors", ".nfs0000000000a1"])
@pytest.mark.parametrize("keep", [False, True])
def test_leftovers_are_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, keep: bool) -> None:
    artifacts = Artifacts(tmp_path)
    (artifacts.fresh_partial("probe", KEY, keep=keep) / "inner").mkdir()
    (artifacts.partial("probe", KEY) / "inner" / name).write_text("of another attempt")
    stubborn(monkeypatch, name)
    out = artifacts.fresh_partial("probe", KEY, keep=keep)
    (out / "rows.json").write_text("[]")
    artifacts.publish("probe", KEY, Record("probe", 1, {}, {}, {}), {})
    expected = {"rows.json", f"inner/{name}"} if keep and not name.startswith(".nfs") else {"rows.json"}
    assert set(read_manifest(artifacts.path("probe", KEY)).files) == expected
    assert artifacts.find("probe", KEY)


def test_what_killed_runs_say_of_themselves_goes_with_the_next_run(tmp_path: Path) -> None:
    """running/.runs/*/.lock stayed for ever."""
    killed = tmp_path / RUNNING / ".runs" / "killed"
    killed.mkdir(parents=True)
    lock = {"host": "elsewhere", "pid": 1, "boot": "another", "started": "1"}
    (killed / ".lock").write_text(json.dumps(lock))
    os.utime(killed / ".lock", (0, 0))
    with at_work(tmp_path):
        assert not killed.exists()
        assert len(list((tmp_path / RUNNING / ".runs").iterdir())) == 1
        with at_work(tmp_path):
            assert len(list((tmp_path / RUNNING / ".runs").iterdir())) == 2, "those at work stay"
    assert not (tmp_path / RUNNING).exists()


def test_a_planted_link_is_named_and_stays(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine").write_text("mine")
    study = tmp_path / "study"
    link = study / "stages" / "knn" / "x" / ".partial-0123456789abcdef"
    link.parent.mkdir(parents=True)
    link.symlink_to(other)
    (work,) = unfinished(Artifacts(study), set())
    assert (work.path, work.user) == (link, None)
    with alone(study), pytest.raises(ConfigError, match="link"):
        remove(work.path)
    with pytest.raises(ConfigError, match="link"):
        Artifacts(study).fresh_partial("knn/x", "0123456789abcdef", keep=False)
    assert (link.is_symlink(), (other / "mine").read_text()) == (True, "mine")
