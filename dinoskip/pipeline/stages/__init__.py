"""The one table of stages, in order of execution: each is the module of its name, with its ``STAGE``."""

from __future__ import annotations

import importlib

from dinoskip.pipeline.stage import Stage

IN_STUDIES, ON_BACKBONES = "in studies", "on backbones"
TABLE = {
    "data": IN_STUDIES,
    "calibrate": IN_STUDIES,
    "sweep": IN_STUDIES,
    "pretrain": IN_STUDIES,
    "supervise": IN_STUDIES,
    "weights": IN_STUDIES,
    "features": IN_STUDIES,
    "probe": ON_BACKBONES,
    "tokencut": ON_BACKBONES,
    "knn": ON_BACKBONES,
    "retrieve": ON_BACKBONES,
    "depth": ON_BACKBONES,
    "normals": ON_BACKBONES,
    "linear": ON_BACKBONES,
    "saliency": ON_BACKBONES,
    "objects": ON_BACKBONES,
    "cluster": ON_BACKBONES,
    "video": ON_BACKBONES,
    "correspondence": ON_BACKBONES,
    "analyze": IN_STUDIES,
    "gallery": ON_BACKBONES,
    "report": IN_STUDIES,
}
"""Where a stage may be asked for. Those on backbones are commands of their own, too, with a ``command`` in their
``STAGE``; their modules do not import torch: ``dinoskip --help`` reads them."""
NAMES = tuple(TABLE)
COMMANDS = tuple(name for name, where in TABLE.items() if where == ON_BACKBONES)


def load(name: str) -> Stage:
    """The stage of a name."""
    stage: Stage = importlib.import_module(f"{__name__}.{name}").STAGE
    return stage


def load_all() -> dict[str, Stage]:
    """Every stage by name, in order of execution."""
    return {name: load(name) for name in NAMES}
