"""`dinoskip` commands as processes that start at once: children of the fork server (see tests/conftest.py)."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess

ROOT = Path(__file__).parents[2]


def _command(arguments: tuple[str, ...], out: str, err: str, cwd: str) -> None:
    from dinoskip.cli import main

    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    sys.exit(main(arguments))


def dinoskip(*arguments: str, cwd: Path = ROOT) -> CompletedProcess[str]:
    """Run ``dinoskip ARGUMENTS`` to its end; its exit code, stdout and stderr."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = multiprocessing.get_context("forkserver").Process(
            target=_command, args=(arguments, str(out), str(err), str(cwd))
        )
        process.start()
        process.join(120)
        process.kill()
        assert process.exitcode is not None, f"still running after two minutes: {arguments}"
        return CompletedProcess(arguments, process.exitcode, out.read_text(), err.read_text())
