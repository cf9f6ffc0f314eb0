"""``make test-core``: the core's tests in a tree and an environment without any plug-in.

``python -m tests.core_alone [PYTEST ARGUMENTS]`` copies the sources without ``plugins/`` and what pyproject.toml says
of it to build/core/source, makes the environment build/core/venv, in which that copy is installed and what is
installed here is borrowed, and runs pytest there. Nothing is downloaded. ``--site`` builds the documentation instead.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

from tests.helpers.wheel import ROOT, without_plugins

NAMES = ("dinoskip", "eval", "visualize", "benchmarks", "studies", "configs", "docs", "tests", ".ci", ".github")
FOLDER = ROOT / "build" / "core"


def copy_core(source: Path) -> None:
    """Copy the tree without plug-ins; ``shared`` stands beside it where it stands beside the tree."""
    source.mkdir(parents=True)
    for name in NAMES:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source / path.name)
    (source / "pyproject.toml").write_text(without_plugins((ROOT / "pyproject.toml").read_text()))
    if (ROOT.parent / "shared").is_dir():
        (source.parent / "shared").symlink_to(ROOT.parent / "shared")


def install(source: Path, folder: Path) -> Path:
    """Make an environment in which ``source`` is installed; its interpreter.

    It borrows the packages that are installed here by a .pth file. Ours are not among them: what Python finds by .pth
    files of a borrowed folder, as an editable installation is, it does not find.
    """
    venv.create(folder, with_pip=False)
    (own,) = folder.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    (own / "borrowed.pth").write_text("\n".join(borrowed or site.getsitepackages()) + "\n")
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", str(source)], check=True)
    packages = sorted(path.name for path in ROOT.glob("plugins/*/dinoskip_*"))
    code = f"import importlib.util as i; print(*filter(i.find_spec, {packages}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=source).stdout.strip()
    if found:  # dinoskip was installed here as files, and these are borrowed
        sys.exit(f"{found}: installed in {sys.prefix}; install dinoskip there with -e, as make does")
    return python


def main(arguments: list[str]) -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    copy_core(FOLDER / "source")
    python = install(FOLDER / "source", FOLDER / "venv")
    command = ["mkdocs", "build", "--strict"] if arguments == ["--site"] else ["pytest", *arguments]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    environment.pop("PYTHONPATH", None)  # it would lead to plug-ins
    return subprocess.run([python, "-m", *command], cwd=FOLDER / "source", env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
