"""Description of the machine, recorded with every run and printed by ``dinoskip doctor``."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip import __version__
from dinoskip.errors import ConfigError
from dinoskip.runtime.arithmetic import arithmetic
from dinoskip.runtime.cores import available_cores

if TYPE_CHECKING:
    import torch  # heavy, and doctor says where it is missing

MATMUL_SECONDS = 0.1  # for which matrix products are timed

_PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "scipy",
    "scikit-learn",
    "opencv-python-headless",
    "pillow",
    "pydantic",
)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _commit() -> str:
    """The git commit of this source tree, with + if it has changes; empty outside a checkout, or where git is slow."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return ""
    run: dict[str, Any] = {"cwd": root, "capture_output": True, "text": True, "timeout": 10}
    try:
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **run)
        changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **run)
    except subprocess.TimeoutExpired:
        return ""
    if commit.returncode:
        return ""
    return str(commit.stdout).strip() + ("+" if str(changed.stdout).strip() else "")


def memory_limit() -> int:
    """Return the bytes of host memory that a probe run may take: the variable DINOSKIP_MEMORY, in GiB; default 4.

    Half of it may hold tokens and a quarter targets, the rest is for a batch. What the program has before (about half
    a GiB, most of it torch) is not in it. Raises :class:`ConfigError` if it is not a positive number.
    """
    text = os.environ.get("DINOSKIP_MEMORY", "4")
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0 < limit < float("inf"):
        raise ConfigError(f"DINOSKIP_MEMORY={text!r} is not a number of GiB", "for example DINOSKIP_MEMORY=8")
    return int(limit * 2**30)


def matmul_gflops(device: torch.device, dtype: torch.dtype, clock: Callable[[], float] = time.perf_counter) -> float:
    """GFLOP/s of large square matrix products of ``dtype``: the best that a tenth of a second gives, of two at least.

    On a CPU with the threads that torch has now, sides of 384 and more by their number: a product takes so little time
    that on a busy machine one is left alone, and time that others have is not in the tenth of a second. On a GPU sides
    of 8,192; how float32 products are computed (TF32) is as it is set. ``clock`` tells the seconds of one product.
    """
    import torch  # heavy, and doctor says where it is missing

    on_gpu = device.type == "cuda"
    side = 8192 if on_gpu else 384 * math.isqrt(torch.get_num_threads())
    spent = time.perf_counter if on_gpu else time.thread_time
    factor = torch.arange(side**2, device=device).sin().view(side, side).to(dtype)
    best, until = math.inf, 0.0
    while best == math.inf or spent() < until:
        began = clock()
        torch.mm(factor, factor)
        if on_gpu:
            torch.cuda.synchronize(device)
        if until:  # the first product loads the library
            best = min(best, clock() - began)
        until = until or spent() + MATMUL_SECONDS
    return 2 * side**3 / best / 1e9


def visible_gpu() -> str | None:
    """Return the device file or variable by which the system shows a GPU to this process; None if it shows none.

    An empty ``CUDA_VISIBLE_DEVICES``, or -1, hides all GPUs, whatever else there is.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and chosen.strip() in ("", "-1", "NoDevFiles"):
        return None
    files = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    if files:
        return files[0]
    numbers = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
    shown = [name for name in numbers if os.environ.get(name)]
    shown += [name for name in ("SLURM_GPUS_ON_NODE",) if os.environ.get(name, "0") != "0"]  # a count
    return f"{shown[0]}={os.environ[shown[0]]}" if shown else None


def gpu_problem(cuda_build: str | None, available: bool) -> ConfigError | None:
    """Return the error for a GPU that the system shows but torch cannot use; None if there is no such GPU.

    ``cuda_build`` is ``torch.version.cuda``, ``available`` is ``torch.cuda.is_available()``. A CUDA 13 build needs a
    driver of the series 580 or later, a CUDA 12 build of 525 or later (NVIDIA's table of minor-version compatibility).
    """
    where = None if available else visible_gpu()
    if where is None:
        return None
    if cuda_build is None:
        reason = "this torch is built for the CPU alone"
    else:
        needed = "580" if cuda_build.split(".")[0] == "13" else "525"
        reason = f"this torch (CUDA {cuda_build}) needs a driver of series {needed} or later, {_driver()}"
    return ConfigError(
        f"a GPU is visible ({where}), but torch cannot use it: {reason}",
        "docs/cluster.md, Drivers, has the torch for each driver; --device cpu computes without the GPU",
    )


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "and no driver is loaded"
    version = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return f"this one is {version[1]}" if version else "this one does not say which it is"


def machine(device: str = "auto") -> str:
    """Return a line on the processor, its threads (``OMP_NUM_THREADS``, else its cores), and whether a GPU is used.

    ``device`` is as commands have it. Times of two runs may be compared if this is equal.
    """
    try:
        names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    threads = os.environ.get("OMP_NUM_THREADS") or available_cores()
    gpu = "" if device == "cpu" or visible_gpu() is None else ", GPU"
    return f"{names[0] if names else platform.machine()}, threads: {threads}{gpu}"


COMMAND = "DINOSKIP_COMMAND"
"""Environment variable with the command that this process and those that it starts belong to, as JSON."""


def note_command(words: Sequence[str]) -> None:
    """Note the command that runs from here on, and the folder in which it was given."""
    with suppress(OSError):  # the folder is not there any more: nothing can be begun again in it
        os.environ[COMMAND] = json.dumps({"command": list(words), "folder": os.getcwd()})


def this_command() -> dict[str, Any]:
    """``command`` (words) and ``folder`` of the command that runs; {} of a program of the user's."""
    with suppress(ValueError):
        noted = json.loads(os.environ.get(COMMAND, "{}"))
        return noted if isinstance(noted, dict) else {}
    return {}


def describe() -> dict[str, str]:
    """Versions, processor and its arithmetic, memory, GPUs and optional parts, as short strings. No secrets."""
    import torch  # heavy, and doctor says where it is missing

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    described = {
        "dinoskip": f"{__version__} {_commit()}".strip(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(available_cores()),
        "memory": f"{memory:.1f} GiB",
        "threads": str(torch.get_num_threads()),
        **arithmetic(),
    }
    gpus = (
        [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    described["GPUs"] = ", ".join(gpus) or "none: everything runs on the CPU"
    described |= {package: _version(package) for package in _PACKAGES}
    described["faiss"] = "found" if importlib.util.find_spec("faiss") else "missing"
    return described
