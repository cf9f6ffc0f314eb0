"""Replays a recorded trajectory of a reference optimizer (data only; read from the shared folder)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
Build = Callable[[list[dict[str, Any]], dict[str, Any]], torch.optim.Optimizer]


def records(kind: str) -> list[dict[str, Any]]:
    """The settings recorded for ``kind``; none where the folder is absent."""
    index = GOLDEN / kind / "index.json"
    return json.loads(index.read_text()) if index.is_file() else []


class Replay:
    """The parameters after a replay: ``error[NAME]`` max abs difference, ``movement[NAME]`` relative of the norm."""

    def __init__(self, kind: str, record: dict[str, Any], build: Build, *, inject: bool = False) -> None:
        with np.load(GOLDEN / kind / record["file"]) as data:
            self.data = dict(data)
        names = list(record["params"])
        self.own = {name: torch.nn.Parameter(torch.tensor(self.data[f"init/{name}"])) for name in names}
        groups = [{"params": [self.own[n] for n in group]} for group in record.get("groups", [names])]
        self.optimizer = build(groups, record["hyperparameters"])
        self.started: set[str] = set()
        self.error = dict.fromkeys(names, 0.0)
        self.movement = dict.fromkeys(names, 0.0)
        rows = {int(step): row for row, step in enumerate(self.data["record_steps"])}
        for step in range(1, record["steps"] + 1):
            self._step(step, inject)
            for name in names if step in rows else ():
                self._compare(name, self.data[f"param/{name}"][rows[step]])

    def _step(self, step: int, inject: bool) -> None:
        for number, group in enumerate(self.optimizer.param_groups):
            for key in ("lr", "weight_decay"):
                if key in self.data:
                    group[key] = float(np.atleast_2d(self.data[key])[number, step - 1])
        for name, parameter in self.own.items():
            present = self.data.get(f"grad_present/{name}")
            absent = present is not None and not present[step - 1]
            parameter.grad = None if absent else torch.tensor(self.data[f"grad/{name}"][step - 1])
        self.optimizer.step()
        for name, parameter in self.own.items():
            if inject and parameter.grad is not None and name not in self.started:
                self.started.add(name)
                given = self.optimizer.bases(parameter)  # type: ignore[attr-defined]
                recorded = [self.data.get(f"Q_after_first_gradient/{name}/{i}") for i in range(len(given))]
                assert [one is None for one in recorded] == [one is None for one in given], name
                self.optimizer.set_bases(parameter, recorded)  # type: ignore[attr-defined]

    def _compare(self, name: str, reference: np.ndarray) -> None:
        found, start = self.own[name].detach().numpy(), self.data[f"init/{name}"]
        moved = np.linalg.norm(reference - start)
        self.error[name] = max(self.error[name], float(np.abs(found - reference).max()))
        if moved:
            change = abs(np.linalg.norm(found - start) / moved - 1)
            self.movement[name] = max(self.movement[name], float(change))
        else:
            assert not np.any(found != start), f"{name} moved where the reference does not"
