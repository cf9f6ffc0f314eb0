"""The command line: each file of this package has commands, their options and what they do.

Exit codes: 0 ok, 1 internal, 2 usage or config, 3 bad data or weights, 4 non-finite training, 5 output in use by
another run, 6 disk full, 75 preempted (SIGTERM, SIGUSR2), 130 interrupted (Ctrl-C). Results go to stdout, all else to
stderr.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import itertools
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import dinoskip
from dinoskip import __version__
from dinoskip.errors import (
    ConfigError,
    DataError,
    DinoskipError,
    DiskFull,
    Preempted,
    is_disk_full,
    is_no_place,
    is_not_permitted,
    memory_refused,
)
from dinoskip.runtime import console
from dinoskip.runtime.environment import note_command
from dinoskip.runtime.stopping import Terminated, stopped_by_signals

if TYPE_CHECKING:
    from dinoskip.cli.arguments import Parser

EXITS = __doc__.split("\n\n", 1)[1].strip() if __doc__ else ""
GROUPS = {
    "begin": ("start", "look", "datasets"),
    "studies": ("studies", "logs", "rehearse", "settings", "clusters"),
    "train one network": ("training", "resume"),
    "frozen networks": ("backbones", "figure", "cuts", "models"),
    "results": ("results", "reproduce"),
    "this machine": ("machine",),
}
"""Modules of this package by the heading under which help lists their commands, in its order."""


def _parser() -> Parser:
    from dinoskip.cli.arguments import Parser  # here, so that a signal meets our handlers

    parser = Parser(
        prog="dinoskip",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train DINO ViTs with and without skip connections, and measure every layer's dense features.",
    )
    parser.add_argument("--version", action="version", version=f"dinoskip {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    # imported here, so that a package that hides ours is an error like all others
    modules = {heading: tuple(f"cli.{name}" for name in names) for heading, names in GROUPS.items()}
    groups: dict[str, list[str]] = {}
    for heading, names in {**modules, "of plug-ins": ("plugins",)}.items():
        before = set(commands.choices)
        for name in names:
            importlib.import_module(f"dinoskip.{name}").add_commands(commands)
        groups[heading] = [name for name in commands.choices if name not in before]
    parser.groups = {heading: names for heading, names in groups.items() if names}
    return parser


def _use_plugins(words: Sequence[str]) -> None:
    """Import the plug-ins' files that ``--plugin`` or a study among the words names, before there is any parser.

    What is wrong with a study is said by the command that reads it.
    """
    from dinoskip.plugins import use_files
    from dinoskip.settings.config import read_yaml

    named = [after for word, after in itertools.pairwise(words) if word == "--plugin"]
    named += [word.partition("=")[2] for word in words if word.startswith("--plugin=")]
    for word in words:
        if Path(word).suffix in {".yaml", ".yml"} and Path(word).is_file():
            with suppress(ConfigError, DataError):
                files = read_yaml(word).tree.get("plugins", ())
                named += [str(file) for file in files] if isinstance(files, list) else []
    use_files(named)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse; networks and overrides (``a.b=value``) may stand anywhere among the options.

    Of submit also the command it submits.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    _use_plugins(given)
    parser = _parser()
    if given[:1] == ["submit"]:
        return _parse_submit(parser, given[1:])
    from dinoskip.cli.old_spelling import as_now

    args: argparse.Namespace
    args, rest = parser.parse_known_args(as_now(given, parser.command_names))
    networks = getattr(args, "network", None)
    for text in rest:
        if isinstance(networks, list) and not text.startswith("-"):
            networks.append(text)
        elif "=" in text and not text.startswith("-") and hasattr(args, "overrides"):
            args.overrides.append(text)
        else:
            parser.exit(2, f"error: unrecognized argument {text!r} (see {args.prog} --help)\n")
    return args


def read_words(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command that is given as words; runs note it as the one that began them."""
    note_command(words)
    return _parse(words)


def _parse_submit(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    from dinoskip.cli.clusters import split_words
    from dinoskip.cli.old_spelling import as_now

    command, job, sbatch = split_words(words, parser.command_names)
    job = as_now(job, parser.command_names)
    args: argparse.Namespace = parser.parse_args(["submit", *command])
    if not job or job[0] == "submit":
        parser.error("submit: name a study or a command, as `dinoskip submit --help` shows")
    args.job, args.sbatch, args.parsed = job, sbatch, _parse(job)
    return args


def _report(error: DinoskipError) -> int:
    for line in error.problems:
        console.say(f"error: {line}", error=True)
    return error.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without ``argv`` the program's, which ends then."""
    try:
        with stopped_by_signals(at_end=argv is None):
            claim_common_names()
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, io.TextIOWrapper):  # letters that the terminal does not have: as \\u2265
                    stream.reconfigure(errors="backslashreplace")
            args = read_words(sys.argv[1:] if argv is None else argv)
            console.configure(args.verbosity)
            if getattr(args, "verify_data", False):
                os.environ["DINOSKIP_VERIFY_DATA"] = "1"  # of this process, its ranks and its workers
            return int(args.handler(args))
    except DinoskipError as error:
        return _report(memory_refused(error) or error)
    except Terminated:
        return _report(Preempted("stopped by a signal; run the same command again to continue"))
    except KeyboardInterrupt:
        console.say("interrupted; run the same command again to continue", error=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if is_disk_full(error):
            return _report(DiskFull(f"no space left while writing: {error}", "free some space and run again"))
        if is_not_permitted(error):
            return _report(
                ConfigError(f"not permitted: {error}", "see the modes of the files, and how the disk is mounted")
            )
        if (refused := memory_refused(error)) is not None:
            return _report(refused)
        if is_no_place(error):
            return _report(ConfigError(f"there can be no such file: {error}", "name another"))
        if isinstance(error, FileNotFoundError) and _folder_is_gone():
            return _report(ConfigError("the current folder is there no more", "cd into one that is"))
        raise


def _folder_is_gone() -> bool:
    """Whether the current folder was removed: no relative path leads anywhere, and the system has no name for it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


COMMON = ("eval", "visualize")


def claim_common_names() -> None:
    """Import ``eval`` and ``visualize`` from beside the package ``dinoskip``, before a folder of the user's is found.

    ``python -m dinoskip`` and torchrun search the current folder first, and people have folders of these names. A
    command runs no code of theirs, so nothing else needs the names. One that is imported already is left as it is:
    :mod:`dinoskip.pipeline` says so if it is not ours.
    """
    for name in COMMON:
        place = Path(dinoskip.__file__).resolve().parent.parent / name
        if name in sys.modules or not (place / "__init__.py").is_file():
            continue
        spec = importlib.util.spec_from_file_location(
            name, place / "__init__.py", submodule_search_locations=[str(place)]
        )
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
