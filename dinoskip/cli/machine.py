"""Commands on what lies on this machine, and on the machine itself: verify, doctor."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dinoskip.cli.arguments import Args, command, print_table
from dinoskip.errors import DataError
from dinoskip.io.files import MANIFEST, find_below, verify_manifest
from dinoskip.runtime.console import say
from dinoskip.runtime.environment import describe, gpu_problem


def add_commands(commands: Any) -> None:
    parser = command(commands, "verify", verify, "re-hash every finished output below a folder")
    parser.add_argument("folder", help="a study, run, checkpoint or feature store")
    command(commands, "doctor", doctor, "say what this machine has and lacks")


def verify(args: Args) -> int:
    """``dinoskip verify``; exit code 3 if anything differs."""
    folder = Path(args.folder)
    manifests = find_below(folder, MANIFEST)
    if not manifests:
        raise DataError(f"{folder}: holds no finished output (no {MANIFEST})")
    problems = [problem for manifest in manifests for problem in verify_manifest(manifest.parent)]
    for problem in problems:
        say(problem)
    say(f"{len(manifests)} outputs checked, {len(problems)} problems", error=True)
    return 3 if problems else 0


def doctor(args: Args) -> int:
    """``dinoskip doctor``; exit code 2 where a GPU is visible that torch cannot use."""
    import torch  # heavy

    free = shutil.disk_usage(".").free / 2**30
    print_table([*describe().items(), ("free disk here", f"{free:.1f} GiB")], ("what", "found"))
    problem = gpu_problem(torch.version.cuda, torch.cuda.is_available())
    if problem is not None:
        raise problem
    return 0
