"""A SLURM of three small programs on PATH: sbatch and scontrol note their arguments, srun plays ranks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

PROGRAM = """#!{python}
import json, sys
from pathlib import Path
here = Path({here!r})
with (here / "calls.jsonl").open("a") as log:
    log.write(json.dumps([{name!r}, *sys.argv[1:]]) + "\\n")
{body}
"""
SBATCH = 'print("4711;cluster")'
SCONTROL = ""
# Each call of srun acts out the next of the given [exit code, steps saved]; steps go where a run writes them.
SRUN = """
plays = json.loads((here / "plays.json").read_text())
(here / "plays.json").write_text(json.dumps(plays[1:]))
code, step = plays[0]
output = Path((here / "output").read_text())
if step is not None:
    (output / "checkpoints" / f"step-{step:08d}").mkdir(parents=True, exist_ok=True)
sys.exit(code)
"""


class Slurm:
    """The fake programs in ``folder``, which tests put on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name, body in (("sbatch", SBATCH), ("scontrol", SCONTROL), ("srun", SRUN)):
            path = folder / name
            path.write_text(PROGRAM.format(python=sys.executable, here=str(folder), name=name, body=body))
            path.chmod(0o755)
        self.path = f"{folder}{os.pathsep}{os.environ['PATH']}"

    def play(self, output: Path, *ends: tuple[int, int | None]) -> None:
        """Set what the next calls of srun leave in ``output``: exit code and saved step (None: nothing written)."""
        (self.folder / "output").write_text(str(output))
        (self.folder / "plays.json").write_text(json.dumps(ends))

    def calls(self, program: str) -> list[list[str]]:
        """Arguments of each call of a program so far."""
        log = self.folder / "calls.jsonl"
        lines = map(json.loads, log.read_text().splitlines()) if log.exists() else []
        return [line[1:] for line in lines if line[0] == program]


class RunningSlurm:
    """A SLURM in ``folder`` that runs what it is given: sbatch with arrays, srun with ranks, sacct and scancel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("sbatch", "srun", "sacct", "scancel"):
            path = folder / name
            beside = str(Path(__file__).parent)
            lines = [f"#!{sys.executable}", "import sys", f"sys.path.append({beside!r})"]
            lines += [f"from running_slurm import {name}", f"sys.exit({name}({str(folder)!r}, sys.argv[1:]))"]
            path.write_text("\n".join(lines))
            path.chmod(0o755)
        self.path = f"{folder}{os.pathsep}{os.environ['PATH']}"

    def jobs(self) -> dict[str, str]:
        """The state of every job so far."""
        return {path.stem: json.loads(path.read_text())["state"] for path in sorted(self.folder.glob("*_*.json"))}

    def arrays(self) -> list[str]:
        """The array that each script asked for, "" for none."""
        found = []
        for path in sorted(self.folder.glob("script-*")):
            lines = [line for line in path.read_text().splitlines() if line.startswith("#SBATCH --array=")]
            found.append(lines[0].partition("=")[2] if lines else "")
        return found
