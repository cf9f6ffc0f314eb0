"""Settings are light, and every public name of a task is there."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUBS = [(ROOT, path) for path in ROOT.glob("eval/*/__init__.pyi")]
STUBS += [(plugin, path) for plugin in ROOT.glob("plugins/*") for path in plugin.glob("dinoskip_*/**/__init__.pyi")]
TASKS = sorted(".".join(path.parent.relative_to(top).parts) for top, path in STUBS)


def test_settings_of_all_tasks_import_no_torch() -> None:
    imports = "; ".join(f"import {task}.config" for task in TASKS) + "; import dinoskip.settings.tasks as t; t.tasks()"
    heavy = "{'torch', 'numpy', 'scipy', 'timm', 'faiss'} & set(sys.modules)"
    code = f"import sys; {imports}; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("task", TASKS)
def test_public_names_are_there_and_hidden_by_no_module(task: str) -> None:
    package = importlib.import_module(task)
    modules = {path.stem for path in Path(package.__file__ or "").parent.glob("*.py")}
    assert modules.isdisjoint(package.__all__)
    for name in package.__all__:
        assert getattr(package, name).__class__ is not type(package)
