"""A task with a metric of which lower is better; the core's own metrics are all better when higher."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dinoskip.settings import tasks
from dinoskip.settings.tasks import TASKS, TaskMetric

METRIC, ANGLE = "distance error", "angle error"


@pytest.fixture(autouse=True)
def distance_is_a_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let metrics be looked up in a task ``distance``, too, whose rows may have an error in metres or degrees."""
    error = TaskMetric(METRIC, unit="m", range=(0.0, math.inf), lower_is_better=True)
    angle = TaskMetric(ANGLE, unit="°", range=(0.0, 180.0), lower_is_better=True)
    distance = replace(TASKS["knn"], name="distance", further=(error, angle))
    cached = (tasks.headline, tasks.range_of, tasks.is_error)
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "tasks", lambda: [*TASKS.values(), distance])  # whom metrics are looked up in
        for answer in cached:
            answer.cache_clear()
        yield
    for answer in cached:
        answer.cache_clear()
