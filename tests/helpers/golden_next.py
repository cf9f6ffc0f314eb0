"""Golden cases of ``../shared/golden/next`` by task; tests that need them are skipped by name where they are absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden" / "next"


def cases(task: str, **wanted: Any) -> list[dict[str, Any]]:
    """The golden cases of a task."""
    if not (GOLDEN / "index.json").exists():
        return []
    every = json.loads((GOLDEN / "index.json").read_text())["cases"]
    return [one for one in every if one["task"] == task and wanted.items() <= one.items()]


def arrays(case: dict[str, Any]) -> dict[str, Tensor]:
    """Its arrays."""
    with np.load(GOLDEN / case["file"]) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def golden(task: str, **wanted: Any) -> Any:
    """Parametrises by the cases; one that is skipped by name where the folder is absent."""
    found = cases(task, **wanted)
    return pytest.mark.parametrize(
        "case", found or [pytest.param({}, marks=pytest.mark.skip(reason="../shared/golden/next is absent"))],
        ids=[case["name"] for case in found] or None,
    )  # fmt: skip


def assert_close(got: Tensor, wanted: Tensor, share: float) -> None:
    """Within a share of the largest."""
    torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=share * float(wanted.abs().max()))
