"""The stages, in order of execution: modules of this package with their ``STAGE``, one for each evaluation task, and
those of plug-ins."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from dinoskip.pipeline.stage import Stage
from dinoskip.pipeline.stages.tasks import stage_of
from dinoskip.plugins import Table
from dinoskip.settings.tasks import TASKS

BEFORE = ("data", "calibrate", "sweep", "pretrain", "supervise", "accuracy", "weights", "features", "pixels")
AFTER = ("gallery", "report")
ADDED: Mapping[str, Stage] = Table("stages", {}, Stage)
"""Stages of plug-ins, which come after the tasks."""


def names() -> tuple[str, ...]:
    """Names of all stages, in order of execution."""
    return (*BEFORE, *TASKS, *ADDED, *AFTER)


def commands() -> tuple[str, ...]:
    """Names of those that are commands of their own, too: ``dinoskip --help`` reads them; they import no torch."""
    return (*TASKS, "gallery")


def load(name: str) -> Stage:
    """The stage of a name."""
    if name in TASKS:
        return stage_of(name)
    if name in ADDED:
        return ADDED[name]
    stage: Stage = importlib.import_module(f"{__name__}.{name}").STAGE
    return stage


def load_all() -> dict[str, Stage]:
    """Every stage by name, in order of execution."""
    return {name: load(name) for name in names()}
