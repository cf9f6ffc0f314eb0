"""Memory that the system refuses is said in one line with what was asked for, whoever asked."""

import multiprocessing
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from dinoskip import cli
from dinoskip.errors import ConfigError, DataError, memory_refused
from dinoskip.io.files import read_json, write_json
from tests.helpers.tiny import make_images

HUGE = 1 << 50


def _numpy() -> None:
    np.zeros(HUGE)


def _torch() -> None:
    torch.empty(HUGE)


def _python() -> None:
    bytearray(HUGE)


def _wrapped() -> None:
    try:
        _torch()
    except RuntimeError as error:
        raise ConfigError("timm cannot build it") from error


def _library() -> None:
    raise ImportError("libtorch_cpu.so: failed to map segment from shared object")


def _system() -> None:
    raise OSError(12, os.strerror(12))


def _open_files() -> None:
    try:
        raise OSError(24, os.strerror(24), "a.png")
    except OSError as error:
        raise RuntimeError("the loader failed") from error


@pytest.mark.parametrize(
    "ask", [_open_files, _numpy, _torch, _python, _wrapped, _library, _system], ids=lambda ask: ask.__name__
)
def test_a_command_says_it_in_one_line(
    ask: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Parsed:
        verbosity = -1
        handler = staticmethod(lambda args: ask())  # type: ignore[operator]

    monkeypatch.setattr(cli, "_parse", lambda argv: Parsed())
    assert cli.main(["any"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: the system refused {'one more open file' if ask is _open_files else 'memory'}")
    assert err.count("\n") == 1


def test_other_errors_stay_what_they_are() -> None:
    assert memory_refused(DataError("a.jpg: damaged")) is None
    assert memory_refused(RuntimeError("shape mismatch")) is None
    assert memory_refused(None) is None


def _with_little(megabytes: int, folder: str) -> None:
    os.chdir(folder)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, ((used + (megabytes << 20)),) * 2)
    spec = "timm:vit_base_patch16_224,pretrained=false"
    arguments = ["features", "export", spec, "--data", "photos", "--out", "out", "-q"]
    with open("said", "w") as said:
        os.dup2(said.fileno(), 2)
        code = cli.main(arguments)
    write_json(Path("code.json"), code)


@pytest.mark.parametrize("megabytes", [20, 120, 300])
def test_a_limit_of_memory(megabytes: int, tmp_path: Path) -> None:
    """ulimit -v: a traceback, or `timm cannot build it`."""
    make_images(tmp_path / "photos", 1)
    process = multiprocessing.get_context("forkserver").Process(target=_with_little, args=(megabytes, str(tmp_path)))
    process.start()
    process.join(100)
    assert process.exitcode == 0
    assert read_json(tmp_path / "code.json") == 1
    said = (tmp_path / "said").read_text()
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "memory or a thread" in line
