"""Build the distributions, out of the tree."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def without_plugins(pyproject: str) -> str:
    """The text of a pyproject.toml without what it says of plugins/: entry points, places of packages."""
    tables = re.split(r"(?m)^(?=\[)", pyproject)
    core = "".join(table for table in tables if not table.startswith('[project.entry-points."dinoskip.'))
    return re.sub(r',? ?"plugins/\w+"', "", core)


def build_distributions(folder: Path, *, plugins: bool = (ROOT / "plugins").is_dir()) -> Path:
    """The folder with wheel and sdist, the wheel built from the sdist, from a copy of the sources below ``folder``.

    Without ``plugins`` the sources are those of the core alone.
    """
    source = folder / "source"
    source.mkdir()
    for name in ("dinoskip", "eval", "visualize", *(["plugins"] if plugins else [])):  # the tree stays as it is
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    if not plugins:
        (source / "pyproject.toml").write_text(without_plugins((ROOT / "pyproject.toml").read_text()))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert built.returncode == 0, built.stderr[-2000:] + built.stdout[-2000:]
    return folder / "dist"
