"""The core's tests ask for no plug-in: ``make test-core`` runs them without; here is what can be seen in the files."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests.helpers.absent_parts import PARTS

ROOT = Path(__file__).parents[2]
BESIDE = ("benchmarks", "studies")
"""Rooms of tests of scripts that stand beside the core and may import all; skipped where their plug-in is not there."""
GROUPS_WITHOUT_NAMES = {"added_losses"}
"""Named by the objective that they extend; their settings are in the table."""


def imported(path: Path) -> set[str]:
    """Top-level packages that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def test_no_test_of_the_core_imports_a_plugin() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.relative_to(ROOT).parts[1] not in BESIDE]
    assert len(files) > 300
    asking = {
        path.relative_to(ROOT).as_posix(): plugins
        for path in files
        if (plugins := {name for name in imported(path) if name == "plugins" or name.startswith("dinoskip_")})
    }
    assert asking == {}, "such a test belongs below plugins/NAME/tests"


def test_the_page_has_every_part_of_every_plugin() -> None:
    """Documents and configurations of a core alone may name these, and nothing else that is not installed."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("entry-points")
    if groups is None:
        pytest.skip("a tree without plugins/")
    by_plugin: dict[str, set[str]] = {}
    for group, points in groups.items():
        for name, target in points.items():
            if group.partition(".")[2] not in GROUPS_WITHOUT_NAMES:
                by_plugin.setdefault(target.partition(".")[0].removeprefix("dinoskip_"), set()).add(name)
    assert by_plugin.keys() == PARTS.keys()
    assert {name: parts - PARTS[name] for name, parts in by_plugin.items() if parts - PARTS[name]} == {}
