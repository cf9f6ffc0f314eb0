"""Tasks run on what a test has made: features or a network, and labelled sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dinoskip.io.parts import HelpEnded, Parts, parts_left
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


class Stopped(Exception):
    """End of a process that shares its work, after its first part."""


class _StopsAfterOne(Parts):
    """Parts of a process that is gone after the first."""

    def each(self, name: str, count: int, make: Any, out: Path, made: Any = None) -> Any:
        def stops(number: int, folder: Path) -> Any:
            if number:
                raise Stopped
            return make(number, folder)

        return super().each(name, count, stops, out)


class _OnlyReads(Parts):
    """Parts of a process that makes none."""

    def each(self, name: str, count: int, make: Any, out: Path, made: Any = None) -> Any:
        def fails(number: int, folder: Path) -> Any:
            raise AssertionError(f"part {number} of {count} was not made before")

        return super().each(name, count, fails, out)


def in_parts(evaluate: Callable[[Path, Parts], object], folder: Path) -> Path:
    """Evaluate so that one process makes the first part, a helper all others, and a third reads them; its output."""
    parts = folder / "parts"
    with pytest.raises(Stopped):
        evaluate(folder / "stopped", _StopsAfterOne(parts))
    left = parts_left(parts)
    with pytest.raises(HelpEnded):
        evaluate(folder / "helper", Parts(parts, helps=True))
    assert (left > 0, parts_left(parts)) == (True, 0), "a helper makes all that nobody is at"
    evaluate(folder / "shared", _OnlyReads(parts))
    return folder / "shared"
