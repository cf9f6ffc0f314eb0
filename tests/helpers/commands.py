"""`dinoskip` commands and programs as processes that start at once: children of the fork server (tests/conftest.py)."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
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


_FORKED = """
import json, os, sys, traceback
import dinoskip, matplotlib.figure, timm, torch, torchvision

codes = []
for number, text in enumerate(json.loads(sys.argv[1])):
    process = os.fork()
    if process == 0:
        code = 1
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{sys.argv[2]}/{number}.{name}", os.O_WRONLY | os.O_CREAT), stream)
        try:
            exec(compile(text, "<program>", "exec"), {"__name__": "__main__"})
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
print(json.dumps(codes))
"""


def programs(*texts: str, cwd: Path, site: Path | None = None) -> list[CompletedProcess[str]]:
    """Run programs one after another, each in a process of its own, with the packages below ``site`` installed.

    They are children of one new interpreter, which imports torch once and, other than the fork server, no module of
    ours that has asked for plug-ins.
    """
    paths = [str(path) for path in (site, ROOT) if path is not None]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _FORKED, json.dumps(texts), folder]
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280, check=True
        )
        return [
            CompletedProcess(
                text, code, Path(folder, f"{number}.out").read_text(), Path(folder, f"{number}.err").read_text()
            )
            for number, (text, code) in enumerate(zip(texts, json.loads(done.stdout), strict=True))
        ]


def command(*arguments: str) -> str:
    """The program that runs ``dinoskip ARGUMENTS``."""
    return f"import sys; from dinoskip.cli import main; sys.exit(main({list(arguments)!r}))"
