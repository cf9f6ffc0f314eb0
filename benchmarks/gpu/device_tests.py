"""Part ``tests``: what is marked ``gpu``, and the table of what each hot path asks of the device."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.kit import ROOT, Kit

TABLE = """
from tests.device import table
from tests.device.paths import PATHS, measure
device = table.chosen_device()
for name in PATHS:
    try:
        reading = measure(name, device)
        faults = table.STATED[name].faults(reading, exact=not device.real)
        print(name, '|', round(reading.reads, 2), round(reading.uploads, 2), round(reading.kernels), '|', *faults)
    except Exception as error:
        print(name, '| failed |', type(error).__name__, str(error)[:200].replace(chr(10), ' '))
"""
"""``python -m tests.device.table`` ends at the first path that fails; here the others are wanted, too."""


WHOLE = ("tests/device/test_tasks.py",)
"""Those of whole tasks, which the part ``tasks`` runs."""
TOGETHER = 12  # processes of tests on one GPU: each has a few GiB of it, and a core of the sixteen
_MARKED = re.compile(r"mark\.gpu|^from tests\.helpers\.devices import .*\bDEVICES\b", re.MULTILINE)


def files() -> list[str]:
    """Test files in which a test is marked ``gpu``: collecting the whole suite would take minutes."""
    found = (path for path in (ROOT / "tests").rglob("test_*.py") if _MARKED.search(path.read_text()))
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def run(kit: Kit) -> None:
    """Run both; on a CPU the tests are collected alone."""
    run_marked(kit, "gpu tests", [name for name in files() if name not in WHOLE], 35)  # what the table then has
    with kit.attempt("table of paths"):
        limit = 300.0 if kit.tiny else max(10.0, kit.left() - 3)
        environment = {"DINOSKIP_TEST_DEVICE": "cuda"} if kit.cuda else {}
        lines = [line for line in _output(kit.command("-c", TABLE), limit, environment).splitlines() if " | " in line]
        wrong = [line for line in lines if " failed " in line or "stated" in line.rpartition("|")[2]]
        kit.say("table of paths", measured=len(lines), not_as_stated=len(wrong), wrong=wrong[:40])


def run_marked(kit: Kit, name: str, tests: Sequence[str], spared: float) -> None:
    """Run tests marked ``gpu`` in all of the part's time but ``spared`` seconds; on a CPU they are collected."""
    with kit.attempt(name):
        command = kit.command("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "--no-header", "--tb=short")
        command += ["-p", "no:benchmark"]  # its warnings, one a process, would be all that the tail shows
        limit, more = 300.0 if kit.tiny else max(10.0, kit.left() - spared), {}
        if kit.cuda and importlib.util.find_spec("xdist"):  # compiling takes most of the time, on one core each
            command += ["-n", str(TOGETHER)]
            more = {"OMP_NUM_THREADS": "1"}  # with all cores' threads in each of eight, seven tests took 85 s
        out = _output([*command, "-rfE", *([] if kit.cuda else ["--collect-only"]), *tests], limit, more)
        kit.say(name, files=len(tests), tail=out.strip().splitlines()[-40:])


def _output(command: list[str], seconds: float, more: dict[str, str]) -> str:
    """Return the output of a command up to its end or its time limit, and print the last part."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, env=environment, cwd=Path(ROOT),
            check=False,
        )  # fmt: skip
        text = done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as over:
        text = (over.stdout or b"").decode(errors="replace") + "\nended at its limit"
    print(text[-7000:])
    return text
