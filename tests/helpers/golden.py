"""Cases recorded of reference code, which lie beside the repository: none where they are absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2].parent / "shared" / "golden"


def recorded(folder: str, task: str | None = None) -> tuple[Path, list[dict[str, Any]]]:
    """A folder below golden, and the cases in its index, of one task if one is named."""
    index = ROOT / folder / "index.json"
    cases = json.loads(index.read_text())["cases"] if index.is_file() else []
    return index.parent, [case for case in cases if task is None or case["task"] == task]


def recorded_outlines() -> list[dict[str, Any]]:
    """Outlines in COCO's format with what becomes of each (``golden/meaning/SPEC.md``, section 5)."""
    path = ROOT / "meaning" / "outlines.json"
    cases: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    return cases
