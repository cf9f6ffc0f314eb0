"""Errors a user can act on. Each carries one line, an optional hint and the exit code of the command line.

Exit codes: 0 ok, 1 internal, 2 usage or config, 3 bad data or weights, 4 non-finite training,
5 output in use by another run, 6 disk full, 75 preempted, 130 interrupted.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class DinoskipError(Exception):
    """Base of all errors that are shown as one line (message, then hint) and without a traceback.

    One may hold several ``problems``, which are shown in a line each.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.problems = problems or (str(self),)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its kind where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class ConfigError(DinoskipError):
    """A configuration or command-line value that cannot be used."""

    exit_code = 2


class ReadError(ConfigError, ValueError):
    """A block, facet, norm or image size that a network does not have: of Python's callers a ValueError, too."""


class DataError(DinoskipError):
    """An image, mask, annotation or data folder that cannot be used."""

    exit_code = 3


class WeightsError(DinoskipError):
    """A weights file or checkpoint that cannot be used."""

    exit_code = 3


class NonFiniteError(DinoskipError):
    """Training met non-finite gradients too many times in a row."""

    exit_code = 4


class OutputInUse(DinoskipError):
    """The output directory belongs to another run, living or of another configuration."""

    exit_code = 5


class ForeignOutput(ConfigError, OutputInUse):
    """The output directory holds what is not of this kind of command: it is named wrongly, and nobody is at work."""


class DiskFull(DinoskipError):
    """Writing failed because no space (or quota) is left."""

    exit_code = 6


class Preempted(DinoskipError):
    """SIGTERM or SIGUSR2 asked the run to stop; its state is saved."""

    exit_code = 75


class RankLost(Preempted):
    """A process of the job has died or hangs; the last checkpoint stands."""


class Interrupted(DinoskipError):
    """Ctrl-C asked the run to stop; its state is saved."""

    exit_code = 130


def did_you_mean(name: str, options: Iterable[str], before: str = "", after: str = "") -> str | None:
    """``did you mean X?`` with the one of ``options`` nearest to ``name``; None if none is near.

    ``before`` and ``after`` are set around it.
    """
    known = list(options)
    near = [option for option in (f"{name}_patch16",) if option in known]  # of a model without its patch: the usual one
    near = near or difflib.get_close_matches(name, known, 1, 0.5)
    return f"did you mean {before}{near[0]}{after}?" if near else None


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_PLACE = {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EILSEQ}  # no file can have the name
_NOT_WRITABLE = {*_REFUSED, *_NO_PLACE, errno.EIO, errno.ESTALE}  # the last two: of the disk, of a network's
_FULL_TEXTS = ("no space left", "file too large", "disk quota exceeded", "unexpected pos")
_MEMORY_TEXTS = (
    "can't allocate memory",  # torch, DefaultCPUAllocator
    "cannot allocate memory",  # the system: ENOMEM, also of a library that cannot be mapped
    "unable to allocate",  # NumPy
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "failed to map segment",  # the loader, of a library that does not fit in ulimit -v
    "can't start new thread",
)


_OPEN_FILES = {errno.EMFILE, errno.ENFILE}
_SCARCE = {*_OPEN_FILES, errno.ENOMEM}


def is_scarce(error: BaseException) -> bool:
    """Whether the system lacks memory or open files, which is no fault of the file that was to be opened."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SCARCE)


def is_no_place(error: BaseException) -> bool:
    """Whether a path was given at which there can be no file: too long, below a file, links in a circle."""
    return isinstance(error, OSError) and error.errno in _NO_PLACE


def is_disk_full(error: BaseException) -> bool:
    """Whether ``error`` is any of the ways torch, safetensors and the system say "no space left"."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    text = str(error).lower()
    # HDF5's error is an OSError without a number, in whose text is what the system said.
    tells = isinstance(error, shutil.Error | OSError) or type(error).__name__ in {"SafetensorError", "RuntimeError"}
    return tells and any(t in text for t in _FULL_TEXTS)


def memory_refused(error: BaseException | None) -> DinoskipError | None:
    """Return an error if the system refused memory, a thread or an open file, here or as the cause; else None.

    NumPy, torch and the loader of libraries each report this in their own words, with the size that was requested. A
    library that cannot be built for this reason reports only that it cannot be built.
    """
    while error is not None:
        text = str(error).lower()
        if isinstance(error, OSError | RuntimeError) and "too many open files" in text:
            said = first_line(error)
            return DinoskipError(f"the system refused one more open file: {said}", "see ulimit -n; fewer --workers")
        if isinstance(error, MemoryError) or (
            isinstance(error, OSError | RuntimeError | ImportError) and any(t in text for t in _MEMORY_TEXTS)
        ):
            said = first_line(error)
            return DinoskipError(f"the system refused memory or a thread: {said}", "see ulimit -v, -m and -u, or free")
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def guard(path: Path | str, what: str) -> Iterator[None]:
    """Turn all that reading an untrusted file may raise into one :class:`DataError` that names it.

    ``what`` says what it should have been: "image", "VOC annotation". Errors of ours pass as they are, and so does
    what is no fault of the file: memory or open files that the system lacks.
    """
    try:
        yield
    except (DinoskipError, MemoryError):
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such {what}") from None
    except Exception as error:  # parsers raise OSError, ValueError, struct.error, SyntaxError, RecursionError, ...
        if is_scarce(error):
            raise
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = (text.splitlines() or [type(error).__name__])[0]
        reason = re.sub(r" ?<[\w.]+ [^<>]*>", "", reason)  # an object's address says nothing
        raise DataError(f"{path}: not a readable {what}: {reason}") from error


@contextmanager
def named(where: Callable[[], str], what: str) -> Iterator[None]:
    """Turn any error but ours into one :class:`DataError`, ``WHERE: what: kind of error: reason``.

    Memory and open files that the system lacks pass as they are, as of :func:`guard`.
    """
    try:
        yield
    except (DinoskipError, MemoryError):
        raise
    except Exception as error:
        if is_scarce(error):
            raise
        reason = (str(error).splitlines() or [""])[0]
        raise DataError(f"{where()}: {what}: {type(error).__name__}: {reason}") from error


def is_not_permitted(error: BaseException) -> bool:
    """Whether the system refused a file for its mode or owner, or because its disk is read-only."""
    if isinstance(error, shutil.Error):  # of copytree: no number, a list of what happened to each file
        return any(os.strerror(number) in str(error) for number in _REFUSED)
    return isinstance(error, OSError) and error.errno in _REFUSED


@contextmanager
def translate_write_errors(path: Path) -> Iterator[None]:
    """Turn "no space" and "not permitted" while writing ``path`` into one-line errors."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DinoskipError):
            raise
        if is_disk_full(error):
            raise DiskFull(
                f"{path}: no space left while writing", "free some space and run the same command again"
            ) from error
        if is_not_permitted(error) or (isinstance(error, OSError) and error.errno in _NOT_WRITABLE):
            reason = getattr(error, "strerror", None) or "not permitted, or the disk is read-only"
            raise ConfigError(
                f"{path}: cannot write here: {reason}", "choose an output directory you may write"
            ) from error
        raise
