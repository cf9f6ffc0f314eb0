"""Settings are light, and every public name of a task is there."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

TASKS = sorted(path.parent.name for path in (Path(__file__).parents[2] / "eval").glob("*/__init__.pyi"))


def test_settings_of_all_tasks_import_no_torch() -> None:
    imports = (
        "; ".join(f"import eval.{task}.config" for task in TASKS) + "; import dinoskip.settings.tasks as t; t.tasks()"
    )
    heavy = "{'torch', 'numpy', 'scipy', 'timm', 'faiss'} & set(sys.modules)"
    code = f"import sys; {imports}; assert not {heavy}, {heavy}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("task", TASKS)
def test_public_names_are_there_and_hidden_by_no_module(task: str) -> None:
    package = importlib.import_module(f"eval.{task}")
    modules = {path.stem for path in Path(package.__file__ or "").parent.glob("*.py")}
    assert modules.isdisjoint(package.__all__)
    for name in package.__all__:
        assert getattr(package, name).__class__ is not type(package)
