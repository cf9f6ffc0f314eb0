"""Declaration of commands, options that several of them have, and printing of results.

Nothing in this package imports torch when it is imported: ``dinoskip --help`` answers at once, and a handler imports
the modules that it needs when it runs.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
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
    **dict.fromkeys(("--backbone", "--network", "--model", "--weights", "--checkpoint", "--ckpt", "--run"), "NETWORK"),
    **dict.fromkeys(("--output", "--output-dir", "--out-dir", "--save", "-o"), "--out"),
}
"""Names of options and arguments in other programs and in earlier versions."""
MOST_KEYS = 3
"""Settings of one name that an error shows: enough to see how they are written."""
MOST_BLOCKS = 1000
"""The highest number of a block that an option takes: above any network's depth, below a list that fills memory."""
BLOCKS = "all, or blocks such as 3,6,9-12 (default: all)"
"""Values of ``--blocks``."""
CHECKING = ("validate", "check", "lint")
"""Commands of other programs that check a configuration."""


class Parser(argparse.ArgumentParser):
    """Errors in one line, exit code 2; for a command or an option that there is not, the one that may be meant.

    ``groups`` are names of commands by heading, in which the help of the program lists them. ``settings`` gives the
    dotted keys that a command takes as ``a.b=value``, and ``further`` a text for the end of its help.
    """

    _commands: Any = None
    groups: Mapping[str, Sequence[str]] = MappingProxyType({})
    settings: Callable[[], Sequence[str]] = tuple
    further: Callable[[], str] = str

    def add_subparsers(self, **settings: Any) -> Any:
        """Add commands as argparse does; a name that is no command is answered by the nearest one."""
        self._commands = super().add_subparsers(**settings)
        return self._commands

    @property
    def command_names(self) -> list[str]:
        """Names of the commands that help lists: those with a description."""
        return [command for command, parser in self._commands.choices.items() if parser.description]

    def format_help(self) -> str:
        """Help as argparse has it; where there are groups of commands, one line a command."""
        if not self.groups:
            return super().format_help() + self.further()
        helps = {action.dest: action.help or "" for action in self._commands._choices_actions}
        width, columns = max(map(len, helps)) + 2, shutil.get_terminal_size().columns
        lines = [f"usage: {self.prog} COMMAND ...", "", *textwrap.wrap(self.description or "", columns)]
        for heading, names in self.groups.items():
            lines += ["", f"{heading}:"]
            for name in (name for name in names if name in helps):
                text = f"    {name:{width}}{helps[name]}"
                lines += textwrap.wrap(text, columns, subsequent_indent=" " * (4 + width))
        ends = f"Options of a command: {self.prog} COMMAND --help. {self.epilog}"
        return "\n".join([*lines, "", *textwrap.wrap(ends, columns), ""])

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, after checking the names of commands and options."""
        given = list(sys.argv[1:] if args is None else args)
        self._refuse_empty(given)
        if self._commands is not None and given and not given[0].startswith("-"):
            self._check_command(given[0])
        elif self._commands is None:
            self._check_options(given[: given.index("--")] if "--" in given else given)
        return super().parse_known_args(given, namespace)

    def _refuse_empty(self, given: Sequence[str]) -> None:
        """An empty word is a variable of the shell without a value: as a folder's name it would be the current one."""
        for before, word in itertools.pairwise(["", *given]):
            if not word or (word.startswith("--") and word.endswith("=")):
                where = f"after {before}" if before else "as the first word"
                self.error(f"{word or where}: nothing is given where a name or a value must be")

    def _check_command(self, name: str) -> None:
        if name in CHECKING and name not in self._commands.choices and "plan" in self._commands.choices:
            checks = "checks every setting and the data and computes nothing, without the data with --assume-data"
            self.error(f"{name!r} is no command: `dinoskip plan CONFIG` {checks}")
        if name not in self._commands.choices:
            whole = {name: name for name in self.command_names}
            for first, parser in self._commands.choices.items():
                inner = parser.command_names if isinstance(parser, Parser) and parser._commands is not None else []
                whole |= {name: f"{first} {name}" for name in inner if name not in whole}
            near = difflib.get_close_matches(name, whole, 1, 0.5)
            there = f"did you mean {whole[near[0]]}?" if near else f"there are {', '.join(self.command_names)}"
            self.error(f"{name!r} is no command: {there}")

    def _check_options(self, given: Sequence[str]) -> None:
        known = [option for action in self._actions for option in action.option_strings]
        for option in (text.partition("=")[0] for text in given if re.match(r"--?[a-z]", text)):
            if option in known or (option.startswith("--") and any(name.startswith(option) for name in known)):
                continue
            if hint := self._hint(option, known):
                self.error(f"no option {option}: {hint}")

    def _hint(self, option: str, known: Sequence[str]) -> str:
        """Return a hint for an unknown option: the argument, setting or option that it may stand for; empty if none."""
        near = difflib.get_close_matches(option, MEANT, 1, 0.85)  # a letter is wrong
        meant = MEANT[near[0]] if near else None
        if meant in known:
            return f"this command takes {meant}"
        if meant == "NETWORK" and any(action.dest == "network" for action in self._actions):
            return f"this command takes the network without an option: {self.prog} NETWORK ..."
        word = option.lstrip("-").replace("-", "_")
        keys = list(self.settings())
        if "--out" in (option, meant) and "output" in keys:
            return "a study has a setting for it: write output=FOLDER"
        if called := [key for key in keys if key.rpartition(".")[2] == word]:
            return f"it is a setting: write {' or '.join(f'{key}=VALUE' for key in called[:MOST_KEYS])}"
        # without their dashes, which are alike in all and made --quiet near to --size
        if near := difflib.get_close_matches(word, names := [name.lstrip("-") for name in known], 1, 0.6):
            return f"did you mean {known[names.index(near[0])]}?"
        last = [key.rpartition(".")[2] for key in keys]
        # Stricter than for options: there are many more settings, of which one is near any word by chance.
        if near := difflib.get_close_matches(word, last, 1, 0.75):
            return f"did you mean the setting {keys[last.index(near[0])]}=VALUE?"
        return ""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End as argparse does; what was given, and is told again, is made visible."""
        super().exit(status, None if message is None else f"{visible(message.rstrip(chr(10)))}\n")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is."""
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def command(
    commands: Any,
    name: str,
    handler: Handler,
    text: str,
    *,
    details: str = "",
    parents: Sequence[argparse.ArgumentParser] = (),
) -> Parser:
    """Declare a command: its name, what it does (a phrase for the list), and the function that does it.

    ``parents`` are parsers whose options it has, too.
    """
    parser: Parser = commands.add_parser(
        name,
        parents=list(parents),
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
    parser = command(commands, name, needs_action, text)
    return parser.add_subparsers(metavar="ACTION", required=True, parser_class=Parser)


def network_argument(parser: argparse.ArgumentParser, *, several: bool = False, required: bool = True) -> None:
    """``NETWORK``, the one way to name a network, or several of them, among which settings ``a.b=value`` may stand."""
    if not several:
        parser.add_argument("network", metavar="NETWORK", help=SPEC)
        return
    text = f"{SPEC}; several are compared; a.b=value among them is a setting"
    parser.add_argument("network", nargs="+" if required else "*", metavar="NETWORK", help=text)


def is_setting(text: str) -> bool:
    """Whether a word is ``a.b=value``, and not a checkpoint that is called so, as Lightning's ``epoch=3.ckpt``."""
    return re.match(r"[a-z_.0-9]+=", text) is not None and not Path(text).is_file()


def networks_and_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The networks and the settings of a command's words; :class:`ConfigError` without a network."""
    networks = [text for text in words if not is_setting(text)]
    if not networks:
        raise ConfigError("NETWORK: none is given", f"write {SPEC}")
    return networks, [text for text in words if is_setting(text)]


def needs_action(args: Args) -> int:
    """The handler of a command that has commands of its own."""
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


def overrides_argument(parser: Parser, text: str, settings: Callable[[], Sequence[str]] = tuple) -> None:
    """Add the settings that a command takes as ``a.b=value``, with ``text`` as their help.

    ``settings`` gives their dotted keys (:func:`dinoskip.cli.settings.keys_of`).
    """
    parser.add_argument("overrides", nargs="*", metavar="a.b=value", help=text)
    parser.settings = settings


def json_option(parser: argparse.ArgumentParser, what: str = "the result") -> None:
    """Add ``--json``, with which a command prints ``what`` for other programs."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON on stdout")


def blocks_of(text: str) -> Literal["all"] | list[int]:
    """Read ``--blocks``: all, or numbers and ranges such as 3,6 and 9-12; :class:`ConfigError` for anything else."""
    if text == "all":
        return "all"
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last <= MOST_BLOCKS:
            raise ConfigError(f"--blocks {text}: is neither all nor numbers and ranges such as 3,6,9-12")
        numbers += range(first, last + 1)
    return sorted(dict.fromkeys(numbers))


def facets_of(text: str) -> list[str]:
    """Read ``--facet``, names with commas between; :class:`ConfigError` for an unknown one."""
    facets = text.split(",")
    for facet in facets:
        if facet not in FACETS:
            raise ConfigError(f"--facet {facet}: is none of {', '.join(FACETS)}", did_you_mean(facet, FACETS))
    return facets


def recipe_source(args: Args, recipe: str) -> RawConfig:
    """Return the settings of a single run from ``CONFIG [a.b=value ...]``: seed, model, optimizer and recipe.

    The file may be that of a study: its other sections and the data set of its recipe are left out.
    """

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
