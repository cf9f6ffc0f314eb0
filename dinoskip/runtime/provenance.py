"""Date, version and kernels of a computation; in files that are compared to the byte the date is a day."""

from __future__ import annotations

import os
import time

from dinoskip import __version__
from dinoskip.runtime.arithmetic import kernels

EPOCH = "SOURCE_DATE_EPOCH"
"""The variable of reproducible builds (reproducible-builds.org): seconds since 1970 that stand for now."""


def utc_date() -> str:
    """Now, in UTC, as ``2026-11-27T09:30:00Z``; the time of ``SOURCE_DATE_EPOCH`` where that variable is a number."""
    given = os.environ.get(EPOCH, "")
    seconds = int(given) if given.isdecimal() and len(given) < 12 else time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def today() -> str:
    """The day of :func:`utc_date`, as ``2026-11-27``: equal computations of one day have equal bytes."""
    return utc_date()[:10]


def made() -> dict[str, str]:
    """``date`` (UTC), ``version`` of dinoskip and ``kernels`` (:func:`dinoskip.runtime.arithmetic.kernels`) of now."""
    return {"date": utc_date(), "version": __version__, "kernels": kernels()}
