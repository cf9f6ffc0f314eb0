"""One writer a directory: living holders are named, dead ones replaced."""

import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from dinoskip.errors import ConfigError, OutputInUse
from dinoskip.io import locks
from dinoskip.io.locks import directory_lock
from tests.helpers.lockfiles import lock_of
from tests.helpers.system import obey_modes


def test_second_holder_is_told_who_holds_it(tmp_path: Path) -> None:
    with directory_lock(tmp_path):
        with pytest.raises(OutputInUse) as caught, directory_lock(tmp_path):
            pass
        assert str(os.getpid()) in str(caught.value)
        assert socket.gethostname() in str(caught.value)
        assert caught.value.exit_code == 5
    assert os.listdir(tmp_path) == []


def _age(lock: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(lock, (then, then))


def test_dead_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(lock_of(socket.gethostname(), 2**22 + 1))
    with directory_lock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_a_killed_process_that_nobody_waited_for_is_replaced(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = Path(f"/proc/{child.pid}/stat")
    (tmp_path / ".lock").write_text(
        lock_of(socket.gethostname(), child.pid, stat.read_text().rsplit(")", 1)[1].split()[19])
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
    (tmp_path / ".lock").write_text(lock_of(socket.gethostname(), os.getpid(), "0"))
    with directory_lock(tmp_path):
        pass


@pytest.mark.parametrize(
    "holder",
    [
        lock_of("elsewhere", 1, boot="another-boot"),
        lock_of(socket.gethostname(), 2**22 + 1, boot="another-boot"),
        lock_of(socket.gethostname(), 2**22 + 1, space="pid:[1]"),
        lock_of(socket.gethostname(), 2**22 + 1, clock="time:[1]"),
        lock_of(socket.gethostname(), os.getpid(), None),
        json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1, "started": "1", "job": "77"}),
    ],
    ids=[
        "host",
        "boot",
        "container of this host's name",
        "other boot clock",
        "no /proc",
        "written before boots were recorded",
    ],
)
def test_a_holder_that_cannot_be_seen_is_believed_while_it_beats(tmp_path: Path, holder: str) -> None:
    lock = tmp_path / ".lock"
    lock.write_text(holder)
    with pytest.raises(OutputInUse, match="job 77"), directory_lock(tmp_path):
        pass
    _age(lock, locks.STALE + 1)
    with directory_lock(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_heartbeats_are_judged_by_the_clock_that_dates_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock is 700 s ahead of the file system's: the living holder elsewhere was taken for dead."""
    (tmp_path / ".lock").write_text(lock_of("elsewhere", 1, boot="another-boot"))
    real = time.time
    with monkeypatch.context() as context:
        context.setattr(time, "time", lambda: real() + locks.STALE + 100)
        assert locks.held_by(tmp_path) is not None
    assert os.listdir(tmp_path) == [".lock"]
    _age(tmp_path / ".lock", locks.STALE + 1)
    assert locks.held_by(tmp_path) is None


def test_where_nothing_can_be_written_a_holder_elsewhere_counts_as_living(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".lock").write_text(lock_of("elsewhere", 1, boot="another-boot"))
    _age(tmp_path / ".lock", locks.STALE + 1)

    def refused(directory: Path) -> float:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(locks, "file_system_time", refused)
    assert locks.held_by(tmp_path) is not None


def test_a_lock_from_before_a_restart_says_so(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(lock_of(socket.gethostname(), 2**22 + 1, boot="another-boot"))
    with pytest.raises(OutputInUse) as raised, directory_lock(tmp_path):
        pass
    assert "died when this machine was restarted" in str(raised.value.hint)


PIDS = ("null", '"x"', "true", "-1", "1.5")
DAMAGED = ["", "{}", "torn", "x", "[]", "null", "[" * 9999, *(f'{{"pid": {pid}}}' for pid in PIDS)]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_lock_is_held_until_it_is_old(tmp_path: Path, content: str) -> None:
    lock = tmp_path / ".lock"
    lock.write_text(content)
    with pytest.raises(OutputInUse, match="damaged and does not say by whom"), directory_lock(tmp_path):
        pass
    assert lock.read_text() == content
    _age(lock, locks.STALE + 1)
    with directory_lock(tmp_path):
        pass


def test_a_lock_that_is_no_file_hangs_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(OutputInUse, match="damaged"), directory_lock(tmp_path):
        pass


def test_two_containers_of_one_host_name_do_not_share(tmp_path: Path) -> None:
    """A process in a PID namespace of its own cannot see the holder in /proc, and must not take that for dead."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c"]
    if subprocess.run([*command, "pass"], capture_output=True, check=False).returncode:
        pytest.skip("PID namespaces need a privilege that is not given here")
    code = (
        "import sys; from pathlib import Path; from dinoskip.errors import OutputInUse\n"
        "from dinoskip.io.locks import directory_lock\n"
        "try:\n    with directory_lock(Path(sys.argv[1])): print('held')\n"
        "except OutputInUse: print('refused')\n"
    )
    with directory_lock(tmp_path) as lock:
        told = subprocess.run([*command, code, str(tmp_path)], capture_output=True, text=True, check=True).stdout
        lock.check()
    assert told == "refused\n"


def test_two_boot_clocks_do_not_share(tmp_path: Path) -> None:
    """/proc gives other start times in another time namespace: the holder must not be taken for dead."""
    command = ["unshare", "--time", "--boottime", "1000", sys.executable, "-c"]
    if subprocess.run([*command, "pass"], capture_output=True, check=False).returncode:
        pytest.skip("time namespaces need a privilege that is not given here")
    code = (
        "import sys; from pathlib import Path; from dinoskip.io.locks import held_by; print(held_by(Path(sys.argv[1])))"
    )
    with directory_lock(tmp_path):
        told = subprocess.run([*command, code, str(tmp_path)], capture_output=True, text=True, check=True).stdout
    assert f"in use by process {os.getpid()} on" in told


def test_a_lock_of_a_version_before_time_namespaces_is_looked_up(tmp_path: Path) -> None:
    holder = json.loads(lock_of(socket.gethostname(), 2**22 + 1))
    del holder["time_namespace"]
    (tmp_path / ".lock").write_text(json.dumps(holder))
    with directory_lock(tmp_path):
        pass


def _fail_where_the_lock_stays(folder: str) -> None:
    obey_modes()
    try:
        with directory_lock(Path(folder)):
            os.chmod(folder, 0o555)
            raise OutputInUse("the cause")
    except OutputInUse:
        os._exit(7)


def test_a_lock_that_cannot_be_removed_hides_no_error(tmp_path: Path) -> None:
    process = multiprocessing.get_context("forkserver").Process(
        target=_fail_where_the_lock_stays, args=(str(tmp_path),)
    )
    process.start()
    process.join(60)
    tmp_path.chmod(0o755)
    assert process.exitcode == 7
    with directory_lock(tmp_path):
        pass


@pytest.mark.parametrize("how", ["removed", "replaced", "taken over"])
def test_a_writer_notices_that_its_directory_is_another(tmp_path: Path, how: str) -> None:
    place = tmp_path / "run"
    with pytest.raises(OutputInUse, match="run: not the directory that this run locked") as caught:  # noqa: PT012, SIM117
        with directory_lock(place) as lock:
            lock.check()
            if how == "taken over":
                (place / ".lock").write_text(lock_of("elsewhere", 7))
            else:
                shutil.rmtree(place)
            if how == "replaced":
                place.mkdir()
            lock.check()
    assert caught.value.exit_code == 5
    assert (place / ".lock").exists() == (how == "taken over"), "another's lock is left alone"


def test_a_lock_is_not_left_where_its_heartbeat_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(self: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(locks.threading.Thread, "start", cannot)
    with pytest.raises(RuntimeError), directory_lock(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def _contend(folder: str, start: float, results: "multiprocessing.Queue[str]", over: Event) -> None:
    time.sleep(max(0.0, start - time.time()))
    try:
        with directory_lock(Path(folder)):
            results.put("held")
            over.wait(60)
    except OutputInUse:
        results.put("refused")


def _outcomes(folder: Path, contenders: int) -> list[str]:
    """Return the outcomes of processes that reach for a lock at once; its owner keeps it until all have an answer."""
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


@pytest.mark.parametrize("left", [lock_of(socket.gethostname(), 2**22 + 1), "", "{}", "torn"])
def test_exactly_one_of_many_takes_a_stale_lock(tmp_path: Path, left: str) -> None:
    (tmp_path / ".lock").write_text(left)
    _age(tmp_path / ".lock", locks.STALE + 1)
    assert _outcomes(tmp_path, 6) == ["held", *["refused"] * 5]
    assert os.listdir(tmp_path) == []


def test_a_take_over_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    for name in (".lock", ".lock.turn", ".lock.turn.turn", ".lock.4194305.7", ".lock.turn.4194305.7"):
        (tmp_path / name).write_text(lock_of(socket.gethostname(), 2**22 + 1))
    assert _outcomes(tmp_path, 4) == ["held", *["refused"] * 3]
    assert os.listdir(tmp_path) == []


def test_a_lock_that_another_has_taken_over_is_left(tmp_path: Path) -> None:
    lock, mine = tmp_path / ".lock", tmp_path / "mine"
    stale = lock_of(socket.gethostname(), 2**22 + 1).encode()
    lock.write_text(lock_of(socket.gethostname(), 2**22 + 2))
    mine.write_text("mine")
    assert not locks._take_over(lock, stale, mine)
    assert json.loads(lock.read_text())["pid"] == 2**22 + 2


def test_a_folder_that_another_removes_meanwhile_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two exports that ended at once had a traceback: mkdir said that the folder exists, and then it did not."""
    made, there = os.mkdir, []

    def made_and_removed_by_another(path: str, mode: int = 0o777) -> None:
        if not there:
            there.append(path)
            raise FileExistsError(17, os.strerror(17), str(path))
        made(path, mode)

    monkeypatch.setattr(os, "mkdir", made_and_removed_by_another)
    with directory_lock(tmp_path / "a"):
        assert (tmp_path / "a" / ".lock").is_file()
    assert there
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="/file: "), directory_lock(tmp_path / "file"):
        pass
