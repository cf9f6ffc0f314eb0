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
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import dinoskip
from dinoskip import __version__
from dinoskip.errors import (
    ConfigError,
    DataError,
    DinoskipError,
    DiskFull,
    Interrupted,
    Preempted,
    is_disk_full,
    is_no_place,
    is_not_permitted,
    memory_refused,
)
from dinoskip.runtime import console

if TYPE_CHECKING:
    from dinoskip.cli.arguments import Parser

TEARDOWN = 10.0
"""Seconds after a signal in which further ones are ignored."""
IMPORTING = 20.0
"""Seconds that a signal waits for the end of an import."""
EXITS = __doc__.split("\n\n", 1)[1].strip() if __doc__ else ""
GROUPS = {
    "begin": ("start", "look", "datasets"),
    "studies": ("studies", "settings", "clusters"),
    "train one network": ("training",),
    "frozen networks": ("backbones", "figure", "cuts", "analysis", "models"),
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


class _Terminated(BaseException):
    """SIGTERM or SLURM's SIGUSR2, as an exception that nothing on the way takes for a damaged file."""

    signal = signal.SIGTERM


class _Stop:
    """Raises at the first signal; those that follow within :data:`TEARDOWN` seconds change nothing.

    What the first one promised (an exit code, files put away) is kept, and a signal that was swallowed on its way can
    be sent again. While a module is imported the signal waits for the end of that, :data:`IMPORTING` seconds at most:
    what is raised there, packages take for a dependency that is missing, and Python's own C code for an error of its
    own.
    """

    def __init__(self) -> None:
        self.last = -math.inf
        self.raised: BaseException | None = None
        self.dropping = False
        self._waits_until = math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.tears_down():
            return
        if _is_import(frame):
            self._waits_until = min(self._waits_until, now + IMPORTING)
            if now < self._waits_until:
                threading.Thread(target=self._again, args=(number,), daemon=True).start()
                return
        self.last, self._waits_until = now, math.inf
        self.raised = KeyboardInterrupt() if number == signal.SIGINT else _Terminated()
        raise self.raised

    def tears_down(self) -> bool:
        """Whether a signal has raised lately."""
        return time.monotonic() - self.last < TEARDOWN

    def _again(self, number: int) -> None:
        time.sleep(0.05)
        os.kill(os.getpid(), number)


def _is_import(frame: FrameType | None) -> bool:
    """Whether Python is importing a module where ``frame`` is at work."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


@contextmanager
def _stopped_by_signals(*, at_end: bool) -> Iterator[None]:
    """SIGTERM, SIGUSR2 and SIGINT raise in the block, wherever they arrive; a second one is ignored.

    ``at_end``: the process ends after the block, and signals stay ignored, so that its exit code is what the block
    decided. In a destructor or a callback of a weak reference Python drops what is raised: the signal is then sent once
    more. An error that ends the block within :data:`TEARDOWN` seconds is what became of it on its way, in C code or in
    a clean-up.
    """
    shown = sys.unraisablehook

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, _Terminated | KeyboardInterrupt):
            shown(unraisable)
            return
        again = getattr(unraisable.exc_value, "signal", signal.SIGINT)  # of a plain KeyboardInterrupt
        stop.dropping = True
        threading.Thread(target=send, args=(again,), daemon=True).start()
        stop.dropping = False  # nothing follows in which the signal could arrive and be dropped again

    def send(number: int) -> None:
        while stop.dropping:
            time.sleep(0.01)
        stop.last = -math.inf
        os.kill(os.getpid(), number)

    sys.unraisablehook = dropped
    stop, numbers = _Stop(), [signal.SIGTERM, signal.SIGUSR2]
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # else a background job, which Ctrl-C does not concern
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except Exception as error:
        if stop.raised is None or not stop.tears_down() or isinstance(error, Preempted | Interrupted):
            raise
        raise stop.raised from error
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if at_end else handler)
        sys.unraisablehook = shown


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without ``argv`` the program's, which ends then."""
    try:
        with _stopped_by_signals(at_end=argv is None):
            claim_common_names()
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, io.TextIOWrapper):  # letters that the terminal does not have: as \\u2265
                    stream.reconfigure(errors="backslashreplace")
            args = _parse(argv)
            console.configure(args.verbosity)
            if getattr(args, "verify_data", False):
                os.environ["DINOSKIP_VERIFY_DATA"] = "1"  # of this process, its ranks and its workers
            return int(args.handler(args))
    except DinoskipError as error:
        return _report(memory_refused(error) or error)
    except _Terminated:
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
