"""Functions that the training stages call when they run: torch is imported here, and not by a stage's own file.

The observers that measure a network during training (section ``online``) are built when a run begins, from its data
sets. They change no weight, so they are no part of a stage's key: a network is not trained again to be measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dinoskip.data.sets import open_labels
from dinoskip.data.sets.labels import LABELS
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.stages.settings import TrainingSettings
from dinoskip.runtime.distributed import on_main
from dinoskip.training import checkpoint
from dinoskip.training.journal import best_step
from dinoskip.training.loop import Observer
from dinoskip.training.pretraining import pretrain
from dinoskip.training.supervised import Accuracy, supervise
from eval.online import OnlineEvaluation, OnlineKnn, OnlineProbe
from eval.online.config import OnlineConfig, OnlineKnnConfig

__all__ = [
    "Accuracy", "Observer", "build_observer", "keep_checkpoints", "observer_of", "on_main", "pretrain", "supervise",
]  # fmt: skip


def build_observer(section: OnlineConfig, data: Mapping[str, tuple[Any, Path | None]]) -> OnlineEvaluation | None:
    """The observer that measures ``section``; None if that is nothing.

    ``data`` gives each part's data set: its configuration, and its folder where a stage composed it. Raises
    :class:`ConfigError` or :class:`DataError` for a data set that does not suit.
    """
    measures: list[OnlineKnn | OnlineProbe] = []
    for name, part in section.parts.items():
        config, root = data[name]
        train, *others = [open_labels(LABELS[part.use], config, split, root) for split in part.splits]
        val = others[0] if others else None
        if isinstance(part, OnlineKnnConfig):
            measures.append(OnlineKnn(train, val, part))
        else:
            measures.append(OnlineProbe(train, val, part))
    return OnlineEvaluation(measures) if measures else None


def observer_of(task: Task) -> OnlineEvaluation | None:
    """The observer of a task that trains."""
    settings: TrainingSettings = task.settings
    parts = settings.online.parts.items()
    data = {name: (settings.data[part.dataset], task.inputs.get(f"online {name}")) for name, part in parts}
    return build_observer(settings.online, data)


def keep_checkpoints(run_dir: Path, epochs: Sequence[int], final: Path, score: str | None) -> None:
    """Keep the checkpoints of ``epochs``, the final and the best one.

    Which others retention has left depends on when the run was killed; the output must not.
    """
    kept = {*(checkpoint.of_epoch(run_dir, epoch) for epoch in epochs), final}
    best = {best_step(run_dir, score)} if score else set()
    checkpoint.prune(run_dir, {checkpoint.step_of(path) for path in kept} | best)
