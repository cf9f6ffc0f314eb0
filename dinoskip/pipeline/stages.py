"""The one table of stages. ``eval`` and ``visualize`` are reached from here alone, by name, when a stage runs."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import dinoskip
from dinoskip.errors import DinoskipError
from dinoskip.pipeline.runner import Stage, Task

# stage: (module, function, whether a killed stage resumes in its partial output)
_TABLE: dict[str, tuple[str, str, bool]] = {
    "data": ("dinoskip.pipeline.make", "compose_scenes", False),
    "pretrain": ("dinoskip.pipeline.make", "pretrain", True),
    "weights": ("dinoskip.pipeline.make", "export_weights", False),
    "analyze": ("dinoskip.pipeline.make", "analyze", False),
    "features": ("dinoskip.pipeline.measure", "export_features", True),
    "probe": ("dinoskip.pipeline.measure", "probe", False),
    "tokencut": ("dinoskip.pipeline.measure", "tokencut", False),
    "knn": ("dinoskip.pipeline.measure", "knn", False),
    "gallery": ("dinoskip.pipeline.show", "gallery", False),
    "report": ("dinoskip.pipeline.show", "report", False),
}


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


def _lazily(module: str, function: str) -> Any:
    def run(task: Task) -> None:
        getattr(importlib.import_module(module), function)(task)

    return run


def stage_table() -> dict[str, Stage]:
    """All stages by name."""
    return {
        name: Stage(name, _lazily(module, function), resumes) for name, (module, function, resumes) in _TABLE.items()
    }
