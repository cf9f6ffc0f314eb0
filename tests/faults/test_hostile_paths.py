"""A FIFO, a device, a socket or a folder as any option that takes a path: refused at once, by exit code 2 or 3.

The options are found by walking the parsers. Each is given to a command whose other options are good, in a process
with little memory to take, each with a time limit: a FIFO that is opened blindly waits for ever, and ``/dev/zero`` has
no end.
"""

import argparse
import multiprocessing
import os
import resource
import signal
import socket
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dinoskip.cli import _parser, main
from dinoskip.io.files import read_json, write_json
from tests.helpers.tiny import make_images

SECONDS = 60.0  # for one command, which takes less than one; the first may import a library
MEMORY = 4 << 30  # bytes that all commands of a process may take besides what it began with
NETWORK = "timm:vit_tiny_patch16_224,pretrained=false,depth=1"
IS_A_PATH = {
    "DIR", "FILE", "FILE.md", "FOLDER", "ROOT", "STORE", "PHOTO", "ROW", "ROWS", "STUDY", "STUDY_FOLDER",
    "STUDY|STORE", "KIND:DIR", "NETWORK", "PAPER|STUDY_FOLDER",
}  # fmt: skip
PATHS_WITHOUT = {"config", "out", "folder", "output"}
"""Positional arguments without a name of their own for the help that are paths."""
NO_PATH = {
    "ID,ID", "NAME,NAME", "MM", "PT", "T",
    "a.b=value", "NAME", "STAGE", "KEY", "X", "F,F", "T,T", "W,W", "LIST", "TEXT", "ID", "WORD", "COMMAND", "NORM", "N",
    "name", "blocks", "facet", "model", "NODE",
}  # fmt: skip
DATA = {"--data", "PHOTOS"}
GOOD = {
    "demo": [], "init-study": ["new"], "look": [NETWORK, "--data", "PHOTOS", "--out", "NEW"],
    "cuts": [NETWORK, "PHOTO", "--out", "NEW.png"], "run": ["STUDY"], "plan": ["STUDY"], "status": ["STUDY"],
    "report": ["STUDY"], "gc": ["STUDY"], "logs": ["STUDY"], "resume": ["EMPTY"],
    "rehearse": ["STUDY", "--out", "NEW"], "settings": ["probe"],
    "pretrain": ["--data", "PHOTOS", "--out", "NEW", "pretrain.epochs=1"],
    "supervise": ["--data", "CLASSES", "--out", "NEW"], "submit": ["--dry-run", "run", "STUDY"], "requeue": ["NEW"],
    "features export": [NETWORK, "--data", "PHOTOS", "--out", "NEW"],
    "features convert": ["EMPTY", "NEW"],
    "gallery": [NETWORK, "--kind", "images", "--data", "PHOTOS", "--out", "NEW"],
    "figure": ["EMPTY", "--out", "NEW"],
    "compare": ["EMPTY", "EMPTY"], "board": ["ROWS", "--out", "NEW"], "paper": ["EMPTY", "--out", "NEW"],
    "analyze": [NETWORK, "--data", "PHOTOS", "--size", "32", "--count", "1"],
    "data check": ["images", "--data", "PHOTOS"], "data prepare": ["voc2012", "LIST", "--out", "NEW"],
    "data scenes": ["NEW", "images=1"], "data pack": ["NEW", "--data", "PHOTOS"],
    "models list": [], "models show": [NETWORK], "models layers": [NETWORK],
    "models convert": [NETWORK, "NEW"], "verify": ["EMPTY"], "doctor": [],
}  # fmt: skip
"""A command's arguments, all of which it could take: words in capitals are files made for the test."""
TASK = [NETWORK, "--data", "CLASSES", "--kind", "folder", "--out", "NEW"]
FOLDERS_ARE_FINE = {
    "PAPER|STUDY_FOLDER",
    "STUDY|STORE",
    "DIR",
    "FOLDER",
    "ROOT",
    "ROW",
    "ROWS",
    "STUDY_FOLDER",
    "STORE",
    "STUDY",
    "out",
    "folder",
}


@cache
def _every() -> list[tuple[str, str, str]]:
    return list(options(_parser()))


def options(parser: argparse.ArgumentParser, command: str = "") -> Iterator[tuple[str, str, str]]:
    """Command, option (or place among the positional ones) and metavar of every argument that takes a text."""
    place = 0
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from options(inner, f"{command} {name}".strip())
        elif action.nargs != 0 and not action.choices and getattr(action.type, "__name__", "") not in {"count", "int"}:
            yield command, action.option_strings[-1] if action.option_strings else str(place), _kind(action)
            place += not action.option_strings
        elif not action.option_strings:
            place += 1


def _kind(action: argparse.Action) -> str:
    return str(action.metavar or action.dest)


def path_options() -> list[tuple[str, str, str]]:
    """Options that take a path; those that many commands share, declared by one function, once."""
    found = [one for one in _every() if one[2] in IS_A_PATH | PATHS_WITHOUT and one[0] in known(one[0])]
    once = {(one[0] if one[0] in GOOD and one[1] != "--plugin" else "", one[1]): one for one in found}
    return list(once.values())


def known(command: str) -> dict[str, list[str]]:
    """The good arguments of a command; those of all tasks are alike."""
    return {command: GOOD.get(command, TASK)} if command not in {"features", "data", "models", ""} else {}


def test_every_option_is_a_path_or_is_none() -> None:
    """A new option must be put into one of the lists, and what is a path is then tried below."""
    unknown = {one for one in _every() if one[2] not in IS_A_PATH | PATHS_WITHOUT | NO_PATH}
    assert not unknown
    assert len(path_options()) > 50


def _variants(command: str, option: str, hostile: str) -> Iterator[list[str]]:
    """The command's arguments with ``hostile`` in one place: also with the prefix that says what a spec is."""
    good = list(known(command)[command])
    metavar = next(kind for name, at, kind in _every() if (name, at) == (command, option))
    given = [hostile, f"weights:{hostile}", f"dino:{hostile}", f"run:{hostile}", f"hf:{hostile}",
             f"python:{hostile}:f", f"{NETWORK.replace('depth=1', 'depth=2')},file={hostile}"]  # fmt: skip
    for text in given if metavar == "NETWORK" and command == "models show" else given[:2]:
        if text != hostile and metavar != "NETWORK":
            continue
        text = f"folder:{text}" if metavar == "KIND:DIR" else text
        if not option.startswith("-"):
            arguments, place = list(good), int(option)
            arguments[place : place + 1] = [text]
        elif option in good:
            arguments = list(good)
            arguments[good.index(option) + 1] = text
        else:
            arguments = [*good, option, text]
        yield [*command.split(), *arguments]


class _Expired(BaseException):
    """Nothing on the way takes it for an error of the file."""


def _expired(number: int, frame: FrameType | None) -> None:
    raise _Expired(f"no end after {SECONDS:.0f} s")


def _try_all(kind: str, folder: str, result: str) -> None:
    """Run every command with a hostile path; write what is not as it should be."""
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_DATA, (int(_data_bytes()) + MEMORY,) * 2)
    signal.signal(signal.SIGALRM, _expired)
    wrong, tried = [], 0
    for command, option, metavar in path_options():
        if kind == "folder" and (metavar in FOLDERS_ARE_FINE or command in {"requeue"}):
            continue
        for arguments in _variants(command, option, os.path.join(folder, kind)):
            tried += 1
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                code: Any = main([*arguments, "-q"] if command != "submit" else arguments)
            except SystemExit as error:
                code = error.code
            except BaseException:
                code = traceback.format_exc()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if code not in {2, 3}:
                wrong.append([" ".join(arguments), code])
    write_json(Path(result), {"tried": tried, "wrong": wrong})


def _data_bytes() -> int:
    """Return the bytes of this process that count towards RLIMIT_DATA now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_images(tmp_path / "PHOTOS", 2)
    for split in ("train", "val"):
        make_images(tmp_path / "CLASSES" / split / "a", 2)
        make_images(tmp_path / "CLASSES" / split / "b", 2)
    (tmp_path / "PHOTO").write_bytes((tmp_path / "PHOTOS" / "image 00.png").read_bytes())
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "LIST").write_text("a\n")
    (tmp_path / "ROWS").write_text("[]")
    (tmp_path / "STUDY").write_text("name: s\ndata: {scenes: {kind: scenes, images: 4}}\n")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(  # none of the first three is a regular file, which is what is asked
    "kind", ["fifo", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("device", "socket")), "folder"]
)
def test_no_path_hangs_or_takes_memory(kind: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)  # a socket's name may have 107 bytes
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        process = multiprocessing.get_context("forkserver").Process(
            target=_try_all, args=(kind, str(place), str(place / "result.json"))
        )
        process.start()
        process.join(300)
        process.kill()
    found = read_json(place / "result.json")
    assert found["wrong"] == []
    assert found["tried"] > 10
