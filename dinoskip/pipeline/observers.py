"""What measures a network while it trains (section ``online``): built when a run begins, from its data sets.

It changes no weight, so it is no part of a stage's key: what has been trained is not trained again to be measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dinoskip.pipeline.inputs import OPENERS
from dinoskip.pipeline.stage import Task
from eval.online import OnlineEvaluation, OnlineKnn, OnlineProbe
from eval.online.config import OnlineConfig, OnlineKnnConfig


def build_observer(section: OnlineConfig, data: Mapping[str, tuple[Any, Path | None]]) -> OnlineEvaluation | None:
    """The observer that measures ``section``; None if that is nothing.

    ``data`` gives each part's data set: its configuration, and its folder where a stage composed it. Raises
    :class:`ConfigError` or :class:`DataError` for a data set that does not suit.
    """
    measures: list[OnlineKnn | OnlineProbe] = []
    for name, part in section.parts.items():
        config, root = data[name]
        sets = [OPENERS[part.use](config, split, root) for split in part.splits]
        if isinstance(part, OnlineKnnConfig):
            measures.append(OnlineKnn(sets[0], sets[1] if len(sets) > 1 else None, part))
        else:
            measures.append(OnlineProbe(sets[0], sets[1], part))
    return OnlineEvaluation(measures) if measures else None


def observer_of(task: Task) -> OnlineEvaluation | None:
    """The observer of a task that trains."""
    parts = task.runtime["online"]
    data = {name: (config, task.inputs.get(f"online {name}")) for name, (_, config) in parts.items()}
    return build_observer(OnlineConfig(**{name: section for name, (section, _) in parts.items()}), data)
