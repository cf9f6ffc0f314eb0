"""What the commands share: how one is declared, options that several have, and how results are printed.

No torch at import, here and in all of this package: ``dinoskip --help`` answers at once, and a handler imports what it
needs when it runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from dinoskip.console import log, table
from dinoskip.errors import ConfigError

if TYPE_CHECKING:
    from dinoskip.config import RawConfig

Args = argparse.Namespace
Handler = Callable[[Args], int]
SPEC = "run:DIR, weights:FILE.safetensors, dino:FILE.pth, timm:NAME, hub:REPO:NAME or hf:NAME"


class Parser(argparse.ArgumentParser):
    """Errors in one line, exit code 2."""

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
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument(
        "-q", "--quiet", action="store_const", const=-1, default=0, dest="verbosity", help="warnings only"
    )
    loudness.add_argument("-v", "--verbose", action="store_const", const=1, dest="verbosity", help="everything")
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


class _Former(argparse.Action):
    """An option under the name it had in version 0.1."""

    def __call__(self, parser: argparse.ArgumentParser, args: Args, value: Any, option: str | None = None) -> None:
        log.warning("%s is now called %s", option, self.const)
        setattr(args, self.dest, value)


def data_option(parser: argparse.ArgumentParser, text: str, *, former: str = "", required: bool = True) -> None:
    """``--data``: the images or the data set that the command reads. ``former`` is the option's old name."""
    if not former:
        parser.add_argument("--data", required=required, metavar="DIR", help=text)
        return
    either = parser.add_mutually_exclusive_group(required=required)
    either.add_argument("--data", metavar="DIR", help=text)
    either.add_argument(former, dest="data", action=_Former, const="--data", help=argparse.SUPPRESS)


def computing_options(parser: argparse.ArgumentParser) -> None:
    """``--device`` and ``--workers``."""
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
    """Settings as ``a.b=value``."""
    parser.add_argument("overrides", nargs="*", metavar="a.b=value", help=text)


def json_option(parser: argparse.ArgumentParser, what: str = "the result") -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON on stdout")


def blocks_of(text: str) -> Literal["all"] | list[int]:
    """The value of ``--blocks``."""
    if text == "all":
        return "all"
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--blocks {text}: is neither all nor numbers such as 3,6,9,12") from None


def recipe_source(args: Args, recipe: str) -> RawConfig:
    """What a single run reads of ``CONFIG [a.b=value ...]``: of a study's YAML, seed, model, optimizer and recipe."""
    from dinoskip.config import RawConfig, apply_overrides, read_yaml  # pydantic
    from dinoskip.pipeline import old_keys
    from dinoskip.pipeline.study import Study

    overrides = [old_keys.current_override(text) for text in args.overrides]
    if args.config and "=" in args.config:  # no file was given, the first override took its place
        overrides.insert(0, old_keys.current_override(args.config))
        args.config = None
    source = apply_overrides(read_yaml(args.config, old_keys.rename) if args.config else RawConfig(), overrides)
    for key in Study.model_fields.keys() - {"seed", "model", "optimizer", recipe}:
        source.tree.pop(key, None)
    if isinstance(source.tree.get(recipe), dict):
        source.tree[recipe].pop("dataset", None)
    return source


def print_json(value: Any) -> None:
    """Print a result as JSON on stdout."""
    print(json.dumps(value, indent=1))


def print_table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> None:
    """Print left-aligned columns on stdout."""
    print(table(rows, header))
