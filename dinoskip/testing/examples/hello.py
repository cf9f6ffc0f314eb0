"""The command ``hello``: what is trained here."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from dinoskip.cli.arguments import command


def hello(args: Namespace) -> int:
    """Print a line, and return the exit code."""
    print(f"hello {args.name}")
    return 0


def add_commands(commands: Any) -> None:
    """Declare the command."""
    command(commands, "hello", hello, "greet somebody").add_argument("name")
