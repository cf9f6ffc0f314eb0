"""Verdicts on what data mean, and what follows from them: a command goes on, says something, or stops.

A check of data gives a :class:`DataVerdict`. ``said`` is a line in plans and on pages. ``doubtful`` stops a command
unless it is accepted by its name; what was accepted is recorded. ``refused`` stops it always.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from dinoskip.errors import ConfigError, DataError

State = Literal["said", "doubtful", "refused"]


@dataclass(frozen=True)
class DataVerdict:
    """Verdict of a check on the data.

    Args:
        check: the name of the check, such as ``equal-files``.
        data: the data set's name in the study.
        state: what follows.
        text: what was found, in one line that names the data set, a number and an example.
        remedy: what to do about it.
        by: whether it is the settings that are refused, or what lies in files: exit code 2, or 3.
    """

    check: str
    data: str
    state: State
    text: str
    remedy: str = ""
    by: Literal["settings", "data"] = "settings"

    @property
    def name(self) -> str:
        """The name for ``--accept``: ``equal-files:voc2012``."""
        return f"{self.check}:{self.data}"

    @property
    def line(self) -> str:
        """The text of the verdict on pages."""
        return self.text if self.state == "said" else f"{self.text} ({self.state})"


def accepted_checks(lines: Iterable[str], data: str) -> str:
    """Return the names of the checks of a data set among the lines of :func:`settle`, with commas; "" without one."""
    named = (line.split(":", 2) for line in lines)
    return ", ".join(sorted({check for check, of, _ in named if of == data}))


def settle(verdicts: Iterable[DataVerdict], accepted: Collection[str]) -> list[str]:
    """Return the lines of doubtful verdicts whose names are among ``accepted``.

    Raises, with a line for each, if one is refused, or doubtful and not accepted: :class:`ConfigError` if settings are
    refused, else :class:`DataError`.
    """
    found = list(verdicts)
    refused = [one for one in found if one.state == "refused"]
    doubtful = [one for one in found if one.state == "doubtful"]
    lines = (
        *(f"{one.text} ({one.remedy})" for one in refused),
        *(
            f"{one.text} ({one.remedy}, or go on with --accept {one.name})"
            for one in doubtful
            if one.name not in accepted
        ),
    )
    if lines:
        error = ConfigError if any(one.by == "settings" for one in refused) else DataError
        raise error("\n".join(lines), problems=lines)
    return [f"{one.name}: {one.text}" for one in doubtful]
