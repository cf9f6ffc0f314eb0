"""Tasks run on what a test has made: features or a network, and labelled sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dinoskip.models import Backbone
from dinoskip.results.rows import EvalResult
from dinoskip.settings.config import Config
from dinoskip.settings.tasks import TaskInputs, task


def network_inputs(backbone: Backbone, config: Config, **labels: Any) -> TaskInputs:
    """Return the inputs of a task that sends images of ``labels`` through a network."""
    return TaskInputs(config, labels, {}, backbone, Path(), {}, workers=1)


def evaluation_of(name: str) -> Callable[..., list[EvalResult]]:
    """``evaluate(*given, out, config, context, **inputs)`` of the task ``name``, through its record.

    ``given`` are features and then labelled sets in the order of the record's roles, or for a task that reads none a
    network, labelled sets and its blocks. ``inputs`` are others of :class:`TaskInputs`.
    """
    record = task(name)

    def evaluate(*given: Any, **inputs: Any) -> list[EvalResult]:
        *given, out, config, context = given
        section = record.section.model_validate(config.model_dump())
        requested = [one.role for one in record.features(section)]
        if not requested:
            backbone, *given, blocks = given
            inputs |= {"backbone": backbone, "blocks": blocks}
        features = dict(zip(requested, given[: len(requested)], strict=True))
        labels = dict(zip(record.splits(section), given[len(requested) :], strict=True))
        rows: Any = record.evaluate(
            TaskInputs(section, labels, features, **{"backbone": None, "out": out, "context": context, **inputs})
        )
        return rows

    return evaluate
