"""Result rows: one measured number with everything that says what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from dinoskip.errors import DataError
from dinoskip.files import read_json, write_json


@dataclass(frozen=True)
class EvalResult:
    """One number. ``block`` is 1..depth, or several joined by + for multiscale (``"3+6+9+12"``).

    ``value`` is in percent for mIoU, accuracy and CorLoc (0..100). ``note`` marks what must not be mistaken,
    such as ``"best on validation"``.
    """

    metric: str
    value: float
    task: str  # probe | tokencut | knn | classify
    block: str
    dataset: str
    split: str
    n: int
    model: str = ""
    initialisation: str = ""
    optimizer: str = ""
    depth: int = 0
    epoch: int = 0
    facet: str = ""
    norm: str = ""
    protocol: str = ""
    resolution: str = ""
    classes: int = 0
    seed: int = 0
    weights: str = ""
    version: str = ""
    note: str = ""

    def plain(self) -> dict[str, Any]:
        """JSON-able fields; a NaN value (nothing to average) is None."""
        return {**asdict(self), "value": self.value if math.isfinite(self.value) else None}

    def with_context(self, context: Mapping[str, Any]) -> EvalResult:
        """Return a copy in which ``context`` (model, optimizer, epoch, ...) is filled in."""
        return replace(self, **context)


def write_rows(path: Path, rows: Iterable[EvalResult]) -> None:
    """Write rows as JSON, atomically; a NaN value (nothing to average) becomes null."""
    write_json(path, [row.plain() for row in rows])


def read_rows(path: Path) -> list[EvalResult]:
    """Read rows; unknown fields are refused with a :class:`DataError`."""
    names = {field.name for field in fields(EvalResult)}
    rows = []
    for entry in read_json(path):
        if not isinstance(entry, dict) or set(entry) - names:
            raise DataError(f"{path}: not result rows of this version")
        rows.append(EvalResult(**{**entry, "value": math.nan if entry["value"] is None else float(entry["value"])}))
    return rows
