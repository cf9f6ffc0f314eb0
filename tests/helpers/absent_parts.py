"""Parts of our own plug-ins that are not installed: documents and configurations name them, and cannot be checked.

docs/plugins/index.md has the parts of each; tests/house/test_core_alone.py compares it with the entry points.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| \[(\w+)\]\(\w+\.md\) \|(.*?)\|", re.MULTILINE)
PARTS = {
    name: frozenset(re.findall(r"`([\w.]+)`", cells))
    for name, cells in ROW.findall((ROOT / "docs/plugins/index.md").read_text(encoding="utf-8"))
}
"""Names of the parts of each plug-in."""
ABSENT = frozenset().union(*(parts for name, parts in PARTS.items() if find_spec(f"dinoskip_{name}") is None))
"""Those of which the plug-in is not installed."""


def is_there(path: str) -> bool:
    """Whether a file of the project is there, or is of a plug-in that is not."""
    return (ROOT / path).exists() or names_an_absent_part(path)


def names_an_absent_part(text: str) -> bool:
    """Whether a text has the name of a part that is not installed, or of a file or module of its plug-in."""
    packages = {name for name in PARTS if find_spec(f"dinoskip_{name}") is None}
    found = set(re.findall(r"(?:\bdinoskip_|\bplugins/)(\w+)", text))
    return bool(found & packages) or any(re.search(rf"\b{re.escape(part)}\b", text) for part in ABSENT)
