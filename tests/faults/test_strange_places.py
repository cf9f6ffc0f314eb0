"""Places at which no output can be, words without content, a removed current folder: one line, exit code 2."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.errors import ConfigError, DataError, guard
from dinoskip.io.files import write_text
from dinoskip.io.folders import make_folder
from dinoskip.io.locks import directory_lock
from dinoskip.io.output import Output, given_folder, own_folder
from dinoskip.pipeline.artifacts import Artifacts
from dinoskip.pipeline.cleaning import RUNNING
from dinoskip.pipeline.graph import Node, record_of
from dinoskip.pipeline.making import Assignment, Maker


def refused(*words: object) -> int | str | None:
    """The exit code of a command that ends by itself or by its parser."""
    try:
        return main(list(map(str, words)))
    except SystemExit as ended:
        return ended.code


def _lock(path: Path) -> None:
    with directory_lock(path):
        pass


def _fill(path: Path) -> None:
    with Output(given_folder(path), "board").filled():
        pass


PLACES: dict[str, Callable[[Path], Path]] = {
    "below a circle of links": lambda folder: folder / "circle" / "x",
    "below a file": lambda folder: folder / "file" / "x",
    "a name that is too long": lambda folder: folder / ("a" * 300),
    "in /proc": lambda folder: Path("/proc/dinoskip-test"),
}
CALLS: dict[str, Callable[[Path], object]] = {
    "make_folder": make_folder,
    "own_folder": own_folder,
    "lock": _lock,
    "Output": _fill,
    "write_text": lambda path: write_text(path / "a.txt", "a"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("place", PLACES)
def test_no_output_can_be_there(place: str, call: str, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError) as caught:
        CALLS[call](PLACES[place](tmp_path))
    assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_path_that_is_too_long_is_one_line_wherever_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / ("a" * 300)
    assert refused("board", long, "--out", tmp_path / "b") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "File name too long" in line


@pytest.mark.parametrize("words", [["board", "ROWS", "--out", ""], ["board", "ROWS", "--out="], ["init-study", ""]])
def test_a_shell_variable_without_a_value_is_not_the_current_folder(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(*words) == 2
    assert "nothing is given" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_current_folder_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for words in (["init-study", "new"], ["board", "rows", "--out", "new"], ["data", "scenes", "new", "images=1"]):
        assert refused(*words) == 2
        assert "current folder is there no more" in capsys.readouterr().err


def test_a_zero_byte_in_a_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "s.yaml"
    config.write_text('name: s\ndata: {d: {kind: folder, root: "a\\0b"}}\n')
    assert refused("plan", config) == 2
    assert "s.yaml:2: data.d.root: a zero byte" in capsys.readouterr().err


def test_a_link_beside_a_lock_is_not_written_through_and_files_of_others_stay(tmp_path: Path) -> None:
    """The names were made of the process's and the thread's number, which another user could know before."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    place = tmp_path / "out"
    place.mkdir()
    planted = place / f".lock.{os.getpid()}.{threading.get_ident()}"
    planted.symlink_to(mine)
    (place / ".lock.saved").write_text("a note")
    with directory_lock(place):
        assert mine.read_text() == "mine"
    assert (place / ".lock.saved").read_text() == "a note"
    assert [path.name for path in place.iterdir()] == [".lock.saved"], "what looks as an earlier version's is swept"


@pytest.mark.parametrize("name", ["probe", "probe/vit", "probe/vit/.partial-0123456789abcdef"])
def test_no_stage_writes_into_anothers_folder_by_a_link_among_its_own(name: str, tmp_path: Path) -> None:
    artifacts, others = Artifacts(tmp_path / "study"), tmp_path / "others"
    others.mkdir()
    link = artifacts.root / name
    link.parent.mkdir(parents=True)
    link.symlink_to(others)
    with pytest.raises(ConfigError, match=name):
        artifacts.fresh_partial("probe/vit", "0123456789abcdef", keep=True)
    assert list(others.iterdir()) == []


@pytest.mark.parametrize("room", ["records", RUNNING])
@pytest.mark.parametrize("name", ["probe", "probe/vit"])
def test_no_record_or_lock_is_written_into_anothers_folder_by_a_link(name: str, room: str, tmp_path: Path) -> None:
    """A run of ``tests/chaos`` (2026-11-27, seed 401) wrote a record through a link among the folders of records."""
    study, others, node = tmp_path / "study", tmp_path / "others", Node("probe/vit/b", "probe", {})
    others.mkdir()
    link = study / room / name
    link.parent.mkdir(parents=True)
    link.symlink_to(others)
    work = Assignment(study, node, "0" * 64, record_of(node, {}, {}), {})

    def begin() -> None:
        with Maker(study).alone(work):
            Artifacts(study).fresh_partial(node.id, work.key, keep=False)

    with pytest.raises(ConfigError, match=name):
        begin()
    assert list(others.iterdir()) == []


def test_stages_on_another_disk_by_a_link_of_the_users_are_written(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "stages").symlink_to(tmp_path / "disk")
    assert Artifacts(tmp_path / "study").fresh_partial("probe/vit", "0" * 16, keep=False).is_dir()
    assert (tmp_path / "disk" / "probe" / "vit").is_dir()


@pytest.mark.parametrize("number", [24, 23, 12])  # EMFILE, ENFILE, ENOMEM
def test_what_the_system_lacks_is_no_fault_of_the_file(number: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=os.strerror(number)), guard(tmp_path, "image"):
        raise OSError(number, os.strerror(number))
    with pytest.raises(DataError), guard(tmp_path, "image"):
        raise OSError(5, os.strerror(5))
