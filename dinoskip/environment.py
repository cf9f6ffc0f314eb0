"""What a machine has: recorded with every run, printed by ``dinoskip doctor``."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dinoskip import __version__
from dinoskip.errors import ConfigError

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
    """The git commit of this source tree, with + if it has changes; empty outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists() or shutil.which("git") is None:
        return ""
    run = {"cwd": root, "capture_output": True, "text": True, "timeout": 10}
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **run)  # type: ignore[call-overload]
    if commit.returncode:
        return ""
    changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **run)  # type: ignore[call-overload]
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


def describe() -> dict[str, str]:
    """Versions, processor, memory, GPUs and optional parts, as short strings. No environment variables, no secrets."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = {
        "dinoskip": f"{__version__} {_commit()}".strip(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.1f} GiB",
        "threads": str(torch.get_num_threads()),
    }
    gpus = (
        [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    found["GPUs"] = ", ".join(gpus) or "none: everything runs on the CPU"
    found |= {package: _version(package) for package in _PACKAGES}
    found["faiss"] = "found" if importlib.util.find_spec("faiss") else "missing"
    return found
