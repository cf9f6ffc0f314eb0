"""docs/tutorial.md: its commands, in order, in an empty folder, with the wheel installed; small."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.wheel import build_distributions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)
SMALLER = {
    "images=240 size=128": "images=24 size=64",
    "--images 60": "--images 4 --blocks 1,12",
    "depth: 6": "depth: 2",
    "  epochs: 4\n": "  epochs: 1\n",
    "epochs: [0, 4]": "epochs: [0, 1]",
    "epochs: 10}": "epochs: 1}",
    "/ep4/": "/ep1/",
    "--size 128": "--size 64",
}
"""What the test runs in place of what the page says; all else is as it stands there."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell in which the wheel, without its dependencies, is installed."""
    folder = tmp_path_factory.mktemp("installed")
    wheel = next(build_distributions(folder).glob("*.whl"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(folder / "site"),
    ]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    programs = f"{folder / 'site' / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(folder / "site"), "PATH": programs, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_runs(installed: dict[str, str], tmp_path: Path) -> None:
    assert BLOCKS[0] == ("sh", "pip install .\n")  # the fixture's
    unused = set(SMALLER)
    said = ""
    for language, text in BLOCKS[1:]:
        for written, smaller in SMALLER.items():
            unused -= {written} if written in text else set()
            text = text.replace(written, smaller)
        shell = ["bash", "-euo", "pipefail", "-c"] if language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*shell, text], cwd=tmp_path, env=installed, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
        said += done.stdout
    assert not unused, f"the page no longer says {unused}"
    for page in ("look-scenes", "inits"):
        assert (tmp_path / "runs" / page / "index.html").is_file()
    assert "(8, 8, 3)" in said
    assert str(Path(installed["PYTHONPATH"])) in subprocess.run(
        [sys.executable, "-c", "import dinoskip; print(dinoskip.__file__)"],
        cwd=tmp_path, env=installed, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
