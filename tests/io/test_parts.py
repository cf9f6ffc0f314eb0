"""Work in parts that several processes share: who makes what, what a stopped run leaves, when a helper ends."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dinoskip.io import parts as module
from dinoskip.io.files import find_below
from dinoskip.io.parts import ALONE, HelpEnded, Parts, parts_left


def made_by(who: list[int], wait: float = 0.0):
    """A function that makes a part of two arrays and a file, and notes its number in ``who``."""

    def make(number: int, folder: Path) -> dict[str, np.ndarray]:
        time.sleep(wait)
        who.append(number)
        (folder / "drawn").mkdir(exist_ok=True)
        (folder / "drawn" / f"{number}.txt").write_text(str(number))
        return {"square": np.array([number**2]), "a name / with signs": np.zeros((0, 2), np.float16)}

    return make


def squares(parts: Parts, count: int, make, out: Path) -> list[int]:
    found = list(parts.each("work", count, make, out))
    assert all(arrays["a name / with signs"].shape == (0, 2) for arrays in found)
    return [int(arrays["square"][0]) for arrays in found]


@pytest.mark.parametrize("shared", [False, True])
def test_one_process_makes_all_in_order(tmp_path: Path, shared: bool) -> None:
    parts, who = Parts(tmp_path / "parts") if shared else ALONE, list[int]()
    (tmp_path / "out").mkdir()
    assert squares(parts, 5, made_by(who), tmp_path / "out") == [0, 1, 4, 9, 16]
    assert who == [0, 1, 2, 3, 4]
    assert sorted(path.name for path in (tmp_path / "out/drawn").iterdir()) == [f"{i}.txt" for i in range(5)]
    assert parts_left(tmp_path / "parts") == 0
    parts.end()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_helpers_make_the_last_ones_and_nothing_is_made_twice(tmp_path: Path) -> None:
    folder, own, other = tmp_path / "parts", list[int](), list[int]()
    ended = list[str]()

    def help_out() -> None:
        while parts_left(folder) == 0:
            time.sleep(0.01)
        try:
            list(Parts(folder, helps=True).each("work", 12, made_by(other, 0.05), tmp_path))
        except HelpEnded:
            ended.append("ended")

    helper = threading.Thread(target=help_out)
    helper.start()
    found = squares(Parts(folder), 12, made_by(own, 0.05), tmp_path / "out")
    helper.join()
    assert found == [number**2 for number in range(12)]
    assert ended == ["ended"]
    assert sorted(own + other) == list(range(12))
    assert other == sorted(other, reverse=True)
    assert other[0] == 11
    assert len(find_below(tmp_path / "out", "*.txt")) == 12


def test_what_a_stopped_run_has_made_is_not_made_again(tmp_path: Path) -> None:
    def stops(number: int, folder: Path) -> dict[str, np.ndarray]:
        if number == 3:
            raise KeyboardInterrupt
        return made_by([])(number, folder)

    with pytest.raises(KeyboardInterrupt):
        squares(Parts(tmp_path / "parts"), 5, stops, tmp_path / "out")
    who = list[int]()
    assert squares(Parts(tmp_path / "parts"), 5, made_by(who), tmp_path / "out") == [0, 1, 4, 9, 16]
    assert who == [3, 4]
    assert len(find_below(tmp_path / "out", "*.txt")) == 5, "files of parts of the first run, too"


def test_a_helper_has_only_so_much_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, who = tmp_path / "parts", list[int]()
    next(iter(Parts(folder).each("work", 1, made_by([]), tmp_path / "out")))  # announced
    monkeypatch.setattr(module, "HELPING", -1.0)
    with pytest.raises(HelpEnded):
        list(Parts(folder, helps=True).each("work", 9, made_by(who), tmp_path))
    assert who == []


def test_a_helper_that_comes_late_makes_nothing(tmp_path: Path) -> None:
    who = list[int]()
    with pytest.raises(HelpEnded):
        list(Parts(tmp_path / "parts", helps=True).each("work", 9, made_by(who), tmp_path))
    assert who == []
    assert not (tmp_path / "parts").exists()


def test_what_all_parts_read_is_made_once(tmp_path: Path) -> None:
    parts, calls = Parts(tmp_path / "parts"), list[Path]()
    parts.folder.mkdir() if parts.folder else None
    with pytest.raises(HelpEnded):
        Parts(tmp_path / "parts", helps=True).once("memory", calls.append)
    first = parts.once("memory", lambda folder: (folder / "a.txt").write_text("a") and None)
    assert parts.once("memory", calls.append) == first
    assert Parts(tmp_path / "parts", helps=True).once("memory", calls.append) == first
    assert (first / "a.txt").read_text() == "a"
    assert calls == []


def test_parts_of_nobody(tmp_path: Path) -> None:
    assert parts_left(tmp_path / "parts") == 0
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "parts.json").write_text("{")
    assert parts_left(tmp_path / "parts") == 0


def test_threads_of_one_process_share_no_part(tmp_path: Path) -> None:
    """A lock is of a process, so that a lock held by this process is in use for its other threads, too."""
    who, lists = list[int](), list[list[int]]()

    def work() -> None:
        lists.append(squares(Parts(tmp_path / "parts"), 6, made_by(who, 0.02), tmp_path / "out"))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(who) == list(range(6))
    assert lists == [[0, 1, 4, 9, 16, 25]] * 3
