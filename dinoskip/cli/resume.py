"""``dinoskip resume RUN``: the command that began a training or a study, from where it was given."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from dinoskip.cli import read_words
from dinoskip.cli.arguments import Args, command
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import read_json
from dinoskip.runtime.console import log

COMMANDS = ("run", "pretrain", "supervise", "submit")
"""Commands that may be resumed: a file in a folder that somebody sent runs nothing else."""
OF_STUDY, OF_TRAINING = "command.json", "env.json"


def add_commands(commands: Any) -> None:
    parser = command(
        commands,
        "resume",
        resume,
        "go on with a training or a study by its folder alone",
        details="dinoskip resume runs/mine\ntorchrun --standalone --nproc-per-node 8 -m dinoskip resume runs/mine",
    )
    parser.add_argument("run", metavar="FOLDER", help="the folder of a run or of a study")


def noted(run: Path) -> tuple[Path, list[str]]:
    """Return the folder in which the run's command was given, and the words of the command.

    Raises :class:`ConfigError` where they are not recorded, :class:`DataError` where the record is no command.
    """
    if not run.is_dir():
        raise ConfigError(f"{run}: no such folder", "name the folder of a run or of a study")
    for name in (OF_STUDY, OF_TRAINING):
        if not (run / name).is_file():
            continue
        given = read_json(run / name)
        words, folder = (given.get("command"), given.get("folder")) if isinstance(given, dict) else (None, None)
        if words is None and name == OF_TRAINING:
            continue
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words) and isinstance(folder, str)):
            raise DataError(f"{run / name}: does not name a command", "give the command itself once more")
        if not words or words[0] not in COMMANDS:
            raise DataError(f"{run / name}: {' '.join(words[:1])!r} is none of {', '.join(COMMANDS)}")
        return Path(folder), words
    raise ConfigError(f"{run}: does not say by which command it was begun", "give that command once more")


def resume(args: Args) -> int:
    folder, words = noted(Path(args.run))
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: the folder in which {args.run} was started does not exist", f"give: {shlex.join(words)}"
        )
    os.chdir(folder)
    log.info("in %s: dinoskip %s", folder, shlex.join(words))
    again = read_words(words)
    return int(again.handler(again))
