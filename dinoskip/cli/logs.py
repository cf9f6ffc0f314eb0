"""The command ``logs``: what workers said of a study's stages."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from dinoskip.cli.arguments import Args, command, count, print_table
from dinoskip.errors import ConfigError, did_you_mean
from dinoskip.io.files import find_below
from dinoskip.pipeline.executor import LOGS
from dinoskip.pipeline.study import load_study
from dinoskip.runtime.console import say


def add_commands(commands: Any) -> None:
    parser = command(commands, "logs", logs, "show what the workers of `run --jobs` said of a stage")
    parser.add_argument("config", help="a study's YAML")
    parser.add_argument(
        "node", nargs="?", metavar="NODE", help="a stage as `plan` names it, or worker-1; without, all are listed"
    )
    parser.add_argument("--lines", type=count, default=100, metavar="N", help="of its end (default: 100)")
    parser.set_defaults(overrides=[])


def logs(args: Args) -> int:
    """``dinoskip logs``: the end of a stage's log, or the last line of each, the newest last."""
    node = args.node
    if node and "=" in node:  # a setting that overrides the file, which may stand anywhere
        args.overrides, node = [node, *args.overrides], None
    study, _ = load_study(args.config, args.overrides)
    folder = study.directory / LOGS
    files = {path.relative_to(folder).as_posix().removesuffix(".log"): path for path in find_below(folder, "*.log")}
    if node is None:
        newest = sorted(files.items(), key=lambda entry: entry[1].stat().st_mtime)
        print_table([(name, *_end(path, 1)) for name, path in newest], ("stage", "last line"))
        return 0
    if node not in files:
        hint = did_you_mean(node, sorted(files)) if files else "only `run --jobs` and other workers write logs"
        raise ConfigError(f"{folder}: no log of {node}", hint)
    say(*_end(files[node], args.lines))
    return 0


def _end(path: Path, lines: int) -> list[str]:
    """The last lines of a log, which a worker may be writing."""
    with path.open(encoding="utf-8", errors="replace") as stream:
        return [line.rstrip("\n") for line in deque(stream, lines)]
