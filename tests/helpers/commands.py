"""`dinoskip` commands and programs as processes that start at once: children of the fork server (tests/conftest.py)."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

ROOT = Path(__file__).parents[2]


def _in_folder(out: str, err: str, cwd: str, function: Callable[..., int | None], arguments: tuple[Any, ...]) -> None:
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    sys.exit(function(*arguments))


def child(
    function: Callable[..., int | None], *arguments: Any, cwd: Path = ROOT, seconds: float = 120
) -> CompletedProcess[str]:
    """Call a module's function in a process of its own, whose exit code it returns (None: 0); what that wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = multiprocessing.get_context("forkserver").Process(
            target=_in_folder, args=(str(out), str(err), str(cwd), function, arguments)
        )
        process.start()
        process.join(seconds)
        process.kill()
        assert process.exitcode is not None, f"still running after {seconds:g} seconds: {arguments}"
        return CompletedProcess(arguments, process.exitcode, out.read_text(), err.read_text())


def _command(arguments: tuple[str, ...]) -> int:
    from dinoskip.cli import main

    return main(arguments)


def dinoskip(*arguments: str, cwd: Path = ROOT, seconds: float = 120) -> CompletedProcess[str]:
    """Run ``dinoskip ARGUMENTS`` to its end; its exit code, stdout and stderr."""
    return child(_command, arguments, cwd=cwd, seconds=seconds)


def _program(text: str) -> None:
    exec(compile(text, "<program>", "exec"), {"__name__": "__main__"})


def program(text: str) -> CompletedProcess[str]:
    """Run a program as ``python -c`` does, but for what happens while Python starts and ends."""
    return child(_program, text)
