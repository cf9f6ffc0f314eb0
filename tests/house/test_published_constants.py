"""The code's constants are those of the tables in docs/protocols.md, which name a source for each."""

from __future__ import annotations

import json
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from dinoskip.training import PretrainJob
from dinoskip.training.dino import DinoSchedules
from dinoskip.training.supervised import SupervisedJob
from eval.knn.config import KnnConfig
from eval.probe.config import ProbeConfig
from eval.retrieval.config import RetrievalConfig
from eval.tokencut.config import TokenCutConfig

PAGE = Path(__file__).parents[2] / "docs" / "protocols.md"
EVALUATE = {"probe": ProbeConfig(), "knn": KnnConfig(), "retrieve": RetrievalConfig(), "tokencut": TokenCutConfig()}


def _tables() -> list[list[list[str]]]:
    """The page's tables whose first column is ``setting`` and last is ``source``, as rows of cells."""
    tables: list[list[list[str]]] = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("| ") else []
        if cells[:1] == ["setting"] and cells[-1].strip("| ") == "source":
            tables.append([cells])
        elif cells and tables and len(cells) == len(tables[-1][0]) and cells[0].startswith("`"):
            tables[-1].append(cells)
    return tables


def _rows() -> list[tuple[str, str, Any]]:
    """(preset or "", key, published value) of every row."""
    rows = []
    for header, *lines in _tables():
        for key, *values, _ in lines:
            for column, value in zip(header[1:-1], values, strict=True):
                preset = column.strip("`") if column.startswith("`") else ""
                rows.append((preset, key.strip("`"), json.loads(value)))
    return rows


def _schedule(job: PretrainJob, name: str) -> float:
    per_epoch = 3
    schedules = DinoSchedules(job.pretrain, job.optimizer, per_epoch)
    rates = [schedules.at(step) for step in range(job.pretrain.epochs * per_epoch)]
    return {
        "peak_lr": max(rate.lr for rate in rates),
        "first_teacher_temp": rates[0].teacher_temp,
        "last_teacher_temp": rates[-1].teacher_temp,
    }[name]


def _value(preset: str, key: str) -> Any:
    """What the code has, through the configuration that a user gets."""
    if ":" in key:
        module, _, path = key.partition(":")
        name, _, argument = path.partition(".")
        value = getattr(import_module(module), name)
        return signature(value).parameters[argument].default if argument else value
    section, *rest = key.split(".")
    if section == "evaluate":
        owner: Any = EVALUATE[rest.pop(0)]
    elif section in {"supervise", "supervised"}:
        job = SupervisedJob()
        owner = job.supervise if section == "supervise" else job
    else:
        pretraining = PretrainJob.model_validate({"pretrain": {"preset": preset}})
        if section == "schedule":
            return _schedule(pretraining, rest[0])
        owner, rest = pretraining, [section, *rest]
    for name in rest:
        owner = getattr(owner, name)
    return owner


@pytest.mark.parametrize(("preset", "key", "published"), _rows(), ids=lambda value: str(value))
def test_the_code_has_the_published_value(preset: str, key: str, published: Any) -> None:
    value = _value(preset, key)
    if isinstance(published, float):
        assert value == pytest.approx(published, rel=1e-9)
    else:
        assert (list(value) if isinstance(value, tuple) else value) == published


def test_the_tables_are_read() -> None:
    rows = _rows()
    assert {preset for preset, _, _ in rows} == {"dino_vits16_100ep", "dino_vits16_300ep", ""}
    assert len(rows) > 110
