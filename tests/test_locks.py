"""One writer a directory: living holders are named, dead ones replaced."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from dinoskip import locks
from dinoskip.errors import OutputInUse
from dinoskip.locks import directory_lock


def test_second_holder_is_told_who_holds_it(tmp_path: Path) -> None:
    with directory_lock(tmp_path):
        with pytest.raises(OutputInUse) as caught, directory_lock(tmp_path):
            pass
        assert str(os.getpid()) in str(caught.value)
        assert socket.gethostname() in str(caught.value)
        assert caught.value.exit_code == 5
    assert os.listdir(tmp_path) == []


def _holder(host: str, pid: int, started: str | None = "1") -> str:
    return json.dumps({"host": host, "pid": pid, "started": started, "job": "77"})


def test_dead_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(_holder(socket.gethostname(), 2**22 + 1))
    with directory_lock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_a_killed_process_that_nobody_waited_for_is_replaced(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = Path(f"/proc/{child.pid}/stat")
    (tmp_path / ".lock").write_text(
        _holder(socket.gethostname(), child.pid, stat.read_text().rsplit(")", 1)[1].split()[19])
    )
    with pytest.raises(OutputInUse), directory_lock(tmp_path):
        pass
    child.kill()
    while ") Z " not in stat.read_text():
        time.sleep(0.01)
    with directory_lock(tmp_path):
        pass
    child.communicate()


def test_reused_pid_is_noticed(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(_holder(socket.gethostname(), os.getpid(), "0"))
    with directory_lock(tmp_path):
        pass


def test_other_host_is_believed_while_it_beats(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    lock.write_text(_holder("elsewhere", 1))
    with pytest.raises(OutputInUse, match="elsewhere, job 77"), directory_lock(tmp_path):
        pass
    old = time.time() - locks.STALE - 1
    os.utime(lock, (old, old))
    with directory_lock(tmp_path):
        pass


def _contend(folder: str, start: float, results: "multiprocessing.Queue[str]", over: Event) -> None:
    time.sleep(max(0.0, start - time.time()))
    try:
        with directory_lock(Path(folder)):
            results.put("held")
            over.wait(60)
    except OutputInUse:
        results.put("refused")


def _outcomes(folder: Path, contenders: int) -> list[str]:
    """What processes that reach for a lock at one moment come to; who has it keeps it until all have been told."""
    context = multiprocessing.get_context("fork")
    results, over = context.Queue(), context.Event()
    start = time.time() + 0.3
    arguments = (str(folder), start, results, over)
    processes = [context.Process(target=_contend, args=arguments) for _ in range(contenders)]
    for process in processes:
        process.start()
    outcomes = sorted(results.get(timeout=60) for _ in processes)
    over.set()
    for process in processes:
        process.join(60)
    return outcomes


@pytest.mark.parametrize("left", [_holder(socket.gethostname(), 2**22 + 1), "", "{}", "torn"])
def test_exactly_one_of_many_takes_a_stale_lock(tmp_path: Path, left: str) -> None:
    (tmp_path / ".lock").write_text(left)
    assert _outcomes(tmp_path, 6) == ["held", *["refused"] * 5]
    assert os.listdir(tmp_path) == []


def test_a_take_over_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    for name in (".lock", ".lock.turn", ".lock.turn.turn", ".lock.4194305.7", ".lock.turn.4194305.7"):
        (tmp_path / name).write_text(_holder(socket.gethostname(), 2**22 + 1))
    assert _outcomes(tmp_path, 4) == ["held", *["refused"] * 3]
    assert os.listdir(tmp_path) == []


def test_a_lock_that_another_has_taken_over_is_left(tmp_path: Path) -> None:
    lock, mine = tmp_path / ".lock", tmp_path / "mine"
    stale = json.loads(_holder(socket.gethostname(), 2**22 + 1))
    lock.write_text(_holder(socket.gethostname(), 2**22 + 2))
    mine.write_text("mine")
    assert not locks._take_over(lock, stale, mine)
    assert json.loads(lock.read_text())["pid"] == 2**22 + 2
