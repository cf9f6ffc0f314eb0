"""The one table of stages, in order of execution: each is the module of its name, with its ``STAGE``."""

from __future__ import annotations

import importlib

from dinoskip.pipeline.stage import Stage

NAMES = (
    "data",
    "sweep",
    "pretrain",
    "supervise",
    "weights",
    "features",
    "probe",
    "tokencut",
    "knn",
    "retrieve",
    "analyze",
    "gallery",
    "report",
)
ON_BACKBONES = ("probe", "tokencut", "knn", "retrieve", "gallery")
"""Stages that are commands of their own, on any backbone. Their modules do not import torch: ``--help`` reads them."""


def load(name: str) -> Stage:
    """The stage of a name."""
    stage: Stage = importlib.import_module(f"{__name__}.{name}").STAGE
    return stage


def load_all() -> dict[str, Stage]:
    """Every stage by name, in order of execution."""
    return {name: load(name) for name in NAMES}
