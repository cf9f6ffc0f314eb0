"""Build the distributions, out of the tree."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_distributions(folder: Path) -> Path:
    """The folder with wheel and sdist, the wheel built from the sdist, from a copy of the sources below ``folder``."""
    source = folder / "source"
    source.mkdir()
    for name in ("dinoskip", "eval", "visualize"):  # a copy, so that the build leaves nothing in the tree
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert built.returncode == 0, built.stderr[-2000:] + built.stdout[-2000:]
    return folder / "dist"
