"""What the commands share: how one is declared, options that several have, and how results are printed.

No torch at import, here and in all of this package: ``dinoskip --help`` answers at once, and a handler imports what it
needs when it runs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

from dinoskip.errors import ConfigError, did_you_mean
from dinoskip.runtime.console import say, table, visible
from dinoskip.settings.config import RawConfig, apply_overrides, read_yaml
from dinoskip.settings.read_points import FACETS

Args = argparse.Namespace
Handler = Callable[[Args], int]
SPEC = (
    "dinoskip:skip, dinoskip:skipless, a checkpoint's path, run:DIR, weights:FILE.safetensors, timm:NAME, tv:NAME, "
    "hub:REPO:NAME, hf:NAME or python:FILE.py:FUNCTION, which runs the file"
)
LIKE_DATA = (
    "--images", "--image", "--dataset", "--datasets", "--data-dir", "--data-path", "--folder", "--input", "--root",
)  # fmt: skip
MEANT = {
    **dict.fromkeys(LIKE_DATA, "--data"),
    **dict.fromkeys(("--model", "--weights", "--checkpoint", "--ckpt", "--run"), "--backbone"),
    **dict.fromkeys(("--output", "--output-dir", "--out-dir", "--save", "-o"), "--out"),
}
"""What other programs call our options."""
CHECKING = ("validate", "check", "lint")
"""What other programs call a look at a configuration."""


class Parser(argparse.ArgumentParser):
    """Errors in one line, exit code 2; for a command or an option that there is not, the one that may be meant."""

    _commands: Any = None

    def add_subparsers(self, **settings: Any) -> Any:
        """Add commands as argparse does; a name that is no command is answered by the nearest one."""
        self._commands = super().add_subparsers(**settings)
        return self._commands

    @property
    def command_names(self) -> list[str]:
        """Names of the commands that help lists: those with a description."""
        return [command for command, parser in self._commands.choices.items() if parser.description]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, after checking the names of commands and options."""
        given = list(sys.argv[1:] if args is None else args)
        if self._commands is not None and given and not given[0].startswith("-"):
            self._check_command(given[0])
        elif self._commands is None:
            self._check_options(given[: given.index("--")] if "--" in given else given)
        return super().parse_known_args(given, namespace)

    def _check_command(self, name: str) -> None:
        if name in CHECKING and name not in self._commands.choices and "plan" in self._commands.choices:
            checks = "checks every setting and the data and computes nothing, without the data with --assume-data"
            self.error(f"{name!r} is no command: `dinoskip plan CONFIG` {checks}")
        if name not in self._commands.choices:
            near = did_you_mean(name, self.command_names)
            self.error(f"{name!r} is no command: {near or 'there are ' + ', '.join(self.command_names)}")

    def _check_options(self, given: Sequence[str]) -> None:
        known = [option for action in self._actions for option in action.option_strings]
        for option in (text.partition("=")[0] for text in given if re.match(r"--?[a-z]", text)):
            if option in known or (option.startswith("--") and any(name.startswith(option) for name in known)):
                continue
            if MEANT.get(option) in known:
                self.error(f"no option {option}: this command takes {MEANT[option]}")
            if near := did_you_mean(option, [name for name in known if name.startswith("--")]):
                self.error(f"no option {option}: {near}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End as argparse does; what was given, and is told again, is made visible."""
        super().exit(status, None if message is None else f"{visible(message.rstrip(chr(10)))}\n")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is."""
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def command(commands: Any, name: str, handler: Handler, text: str, *, details: str = "") -> argparse.ArgumentParser:
    """Declare a command: its name, what it does (a phrase for the list), and the function that does it."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=details or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(handler=handler, prog=parser.prog)
    parser.add_argument(
        "--plugin", action="append", metavar="FILE", help="run a Python file with parts of your own; may be repeated"
    )
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument(
        "-q", "--quiet", action="store_const", const=-1, default=0, dest="verbosity", help="print warnings only"
    )
    loudness.add_argument("-v", "--verbose", action="store_const", const=1, dest="verbosity", help="print everything")
    return parser


def group(commands: Any, name: str, text: str) -> Any:
    """Declare a command that has commands of its own; returns what they are added to."""
    parser = command(commands, name, _nothing, text)
    return parser.add_subparsers(metavar="ACTION", required=True, parser_class=Parser)


def _nothing(args: Args) -> int:
    return 2  # never called: an action is required


def count(text: str) -> int:
    """A whole number of 0 or more."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def data_option(parser: argparse.ArgumentParser, text: str, *, required: bool = True) -> None:
    """``--data``: the images or the data set that the command reads."""
    parser.add_argument("--data", required=required, metavar="DIR", help=text)


def everything_option(parser: argparse.ArgumentParser) -> None:
    """``--everything``: all images of a folder, without a look at what they are."""
    parser.add_argument(
        "--everything",
        action="store_true",
        help="take every image below the folder, label maps too (default: photographs by evidence)",
    )


def accept_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--accept`` to a command that looks at data before it computes."""
    parser.add_argument(
        "--accept", action="append", default=[], metavar="NAME",
        help="go on though the data are doubtful in this respect; NAME is in the message, such as equal-files:voc2012; "
        "recorded with the results; may be repeated",
    )  # fmt: skip


def computing_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``, ``--workers`` and ``--verify-data`` to a command that computes."""
    parser.add_argument(
        "--verify-data",
        action="store_true",
        help="compare sets over 1 GiB by all bytes, not a sample; give it each time (or DINOSKIP_VERIFY_DATA=1)",
    )
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda"), help="where to compute (default: auto)"
    )
    parser.add_argument(
        "--workers",
        type=count,
        default=0,
        metavar="N",
        help="processes or threads that read images or work on them (default: 0, automatic)",
    )


def overrides_argument(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the settings that a command takes as ``a.b=value``, with ``text`` as their help."""
    parser.add_argument("overrides", nargs="*", metavar="a.b=value", help=text)


def json_option(parser: argparse.ArgumentParser, what: str = "the result") -> None:
    """Add ``--json``, with which a command prints ``what`` for other programs."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON on stdout")


def blocks_of(text: str) -> Literal["all"] | list[int]:
    """Read ``--blocks``, all or numbers; :class:`ConfigError` for anything else."""
    if text == "all":
        return "all"
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--blocks {text}: is neither all nor numbers such as 3,6,9,12") from None


def facets_of(text: str) -> list[str]:
    """Read ``--facet``, names with commas between; :class:`ConfigError` for an unknown one."""
    facets = text.split(",")
    for facet in facets:
        if facet not in FACETS:
            raise ConfigError(f"--facet {facet}: is none of {', '.join(FACETS)}", did_you_mean(facet, FACETS))
    return facets


def recipe_source(args: Args, recipe: str) -> RawConfig:
    """What a single run reads of ``CONFIG [a.b=value ...]``: of a study's YAML, seed, model, optimizer and recipe."""

    from dinoskip.pipeline.study import Study  # not before a foreign package eval can be named

    overrides = list(args.overrides)
    if args.config and "=" in args.config:  # no file was given, the first override took its place
        overrides.insert(0, args.config)
        args.config = None
    source = apply_overrides(read_yaml(args.config) if args.config else RawConfig(), overrides)
    for key in Study.model_fields.keys() - {"seed", "model", "optimizer", recipe}:
        source.tree.pop(key, None)
    if isinstance(source.tree.get(recipe), dict):
        source.tree[recipe].pop("dataset", None)
    return source


def print_json(value: Any) -> None:
    """Print a result as JSON on stdout."""
    say(*json.dumps(value, indent=1).split("\n"))


def print_table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> None:
    """Print left-aligned columns on stdout."""
    say(*table(rows, header).split("\n"))
