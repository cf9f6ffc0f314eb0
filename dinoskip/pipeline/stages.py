"""The one table of stages. ``eval`` and ``visualize`` are reached from here alone, by name, when a stage runs."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from types import ModuleType

import dinoskip
from dinoskip.errors import DinoskipError
from dinoskip.pipeline.runner import Stage, Task


def ours(module: str) -> ModuleType:
    """Import ``eval.x`` or ``visualize.x``; an error if a user's own folder of that name hides ours."""
    root = Path(dinoskip.__file__).resolve().parent.parent
    package = importlib.import_module(module.partition(".")[0])
    places = [Path(place).resolve() for place in package.__path__]
    if root / package.__name__ not in places[:1]:
        raise DinoskipError(
            f"{module}: another package named {package.__name__!r} ({places[0]}) hides dinoskip's",
            "run from another folder, or rename that one",
        )
    return importlib.import_module(module)


def _call(module: str, function: str, task: Task) -> None:
    getattr(importlib.import_module(f"dinoskip.pipeline.{module}"), function)(task)


# In order of execution.
STAGES: dict[str, Stage] = {
    "data": Stage(partial(_call, "make", "compose_scenes")),
    "sweep": Stage(partial(_call, "sweep", "sweep"), resumes=True, together=True),
    "pretrain": Stage(partial(_call, "make", "pretrain"), resumes=True, together=True),
    "supervise": Stage(partial(_call, "make", "supervise"), resumes=True, together=True),
    "weights": Stage(partial(_call, "make", "export_weights")),
    "features": Stage(partial(_call, "measure", "export_features"), resumes=True, together=True, version=2),
    "probe": Stage(partial(_call, "measure", "probe"), version=4),
    "tokencut": Stage(partial(_call, "measure", "tokencut"), version=3),
    "knn": Stage(partial(_call, "measure", "knn"), version=2),
    "retrieve": Stage(partial(_call, "measure", "retrieve"), version=2),
    "analyze": Stage(partial(_call, "make", "analyze"), version=4),
    "gallery": Stage(partial(_call, "show", "gallery"), version=5),
    "report": Stage(partial(_call, "report", "report"), version=10),
}
