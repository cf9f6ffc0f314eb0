"""The parts in order, each in a process of its own: killed at its limit, and none begun that has no time left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from benchmarks.gpu.lines import LOG, PART_ENDED, RESULTS, SUMMARY, append, read, summary

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Part:
    """A part: the module of this package whose ``run`` it is, the most seconds that it gets, what it measures."""

    module: str
    seconds: float
    measures: str


PARTS: Mapping[str, Part] = MappingProxyType(
    {
        "env": Part("environment", 45, "versions, `dinoskip doctor`, ceilings of products and copies"),
        "tests": Part("device_tests", 120, "tests marked gpu; the table of what each path asks of the device"),
        "agree": Part("agreement", 80, "training steps against a CPU's"),
        "eager": Part("step_eager", 50, "a DINO step without compiling, beside the public style"),
        "compiled": Part("step_compiled", 200, "a compiled step, its profile, the public style compiled"),
        "tokencut": Part("cuts", 30, "TokenCut in batches, and where its time goes"),
        "export": Part("exports", 60, "feature export and frozen passes in fp32, TF32, bf16"),
        "tasks": Part("every_task", 120, "every task and the gallery once, their rows against a CPU's"),
        "optimizers": Part("optimizers", 60, "steps of each optimizer; a refresh's QR by several ways"),
        "loop": Part("pretraining", 200, "`dinoskip pretrain` on JPEGs"),
        "data": Part("data_paths", 100, "images a second into views, of each data path"),
        "probe": Part("probes", 45, "a sweep of probes, k-NN"),
    }
)
"""By name, the most valuable first: what is cut off by the deadline is the end of this table."""
LEAST = 12.0  # a part that has less is not begun: importing torch alone takes some seconds
PATIENCE = 4  # times its limit that a part gets at tiny sizes, on a CPU that others use, too


@dataclass(frozen=True)
class Plan:
    """Parts to run by name, folder of the results, seconds for all parts, and whether sizes are a CPU's (``tiny``)."""

    parts: Sequence[str]
    out: Path
    seconds: float
    tiny: bool = False


def run(plan: Plan) -> list[str]:
    """Run the parts; return the summary's lines, which ``summary.txt`` has, too."""
    plan.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    append(plan.out, {"part": "kit", "name": "begin", "day": str(datetime.now(UTC).date()), "tiny": plan.tiny})
    with (plan.out / LOG).open("a") as log:
        for name in plan.parts:
            left = plan.seconds - (time.monotonic() - began)
            if left < LEAST:
                append(plan.out, {"part": name, "name": PART_ENDED, "code": "no time left", "s": 0.0})
                continue
            limit = min(PARTS[name].seconds * (PATIENCE if plan.tiny else 1), left - 3)
            log.write(f"== {name}, {limit:.0f} s\n")
            log.flush()
            command = [sys.executable, "-m", "benchmarks.gpu", "--child", name, "--out", str(plan.out.resolve())]
            command += ["--seconds", f"{limit:.0f}", *(["--tiny"] if plan.tiny else [])]
            start = time.monotonic()
            code = limited(command, limit, log.fileno())
            took = round(time.monotonic() - start, 1)
            append(plan.out, {"part": name, "name": PART_ENDED, "code": code, "s": took})
    lines = summary(read([plan.out / RESULTS]))
    (plan.out / SUMMARY).write_text("\n".join(lines) + "\n")
    return lines


def limited(command: Sequence[str], seconds: float, log: int) -> str:
    """Run a command with all that it starts for so many seconds at most; return how it ended."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
    child = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, start_new_session=True
    )
    try:
        code = child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return "ended at its limit"
    return "done" if code == 0 else f"exit code {code}"
