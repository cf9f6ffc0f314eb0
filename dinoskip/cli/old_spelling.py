"""Command lines as version 0.2 wrote them, for one more version: ``dinoskip probe --backbone NETWORK``.

To end it, remove this file, its two calls in ``dinoskip.cli`` and ``tests/cli/test_old_spelling.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dinoskip.runtime.console import say
from dinoskip.settings.tasks import TASKS

OPTION = "--backbone"
SHORTEST = 6  # letters of --bac: what argparse took for --backbone beside --batch
ACTIONS = ("gallery", "features", "eval")
"""Commands whose network was named by an option; the second word of the last two is an action."""


def as_now(words: Sequence[str], commands: Collection[str]) -> list[str]:
    """``words`` of a command line in today's grammar; where they were in another, one warning says how to write it."""
    now = list(words)
    at = next((place for place, word in enumerate(now) if not word.startswith("-")), 0)
    if now and now[at] in TASKS and now[at] not in commands:
        now.insert(at, "eval")
    if now and now[at] in ACTIONS:
        now = _positional(now, at + (1 if now[at] == "gallery" else 2))
    if now != list(words):
        first = " ".join(now[at : at + (1 if now[at] == "gallery" else 2)])
        say(f"warning: this spelling ends with the next version: write `dinoskip {first} NETWORK ...`", error=True)
    return now


def _positional(words: list[str], at: int) -> list[str]:
    """``words`` with what stood after ``--backbone`` as words at the place ``at``."""
    networks, left, follows = [], [], False
    for word in words:
        name, equals, value = word.partition("=")
        if follows:
            networks.append(word)
            follows = False
        elif len(name) >= SHORTEST - 1 and OPTION.startswith(name):
            follows = not equals
            networks += [value] if equals else []
        else:
            left.append(word)
    return [*left[:at], *networks, *left[at:]]
