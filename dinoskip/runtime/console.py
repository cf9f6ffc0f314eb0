"""Output of a run: log lines on stderr, ``metrics.jsonl``, progress as a bar on a terminal and plain lines in a log."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from dinoskip.errors import translate_write_errors
from dinoskip.io.files import read_text, write_text

MAX_LOG = 2**30  # bytes of a metrics.jsonl that is read: a row of 1 kB at each of a million steps
log = logging.getLogger("dinoskip")

_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters (a line's end is one, ESC and BEL are), marks that turn or hide text, other line separators, and
Unicode's tags, letters that no terminal shows."""


def visible(text: object) -> str:
    """A text in one line, with characters that act on a terminal as escapes: ``\\x1b``, ``\\n``, ``\\u202e``.

    Names of images, values of a YAML file and fields of rows may hold any: a name with a line's end in it looked like
    an error, one with ESC could move the cursor.
    """
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


def say(*lines: object, error: bool = False) -> None:
    """Print lines to stdout, or to stderr: the only call that does. Each is made :func:`visible`; none is an empty one.

    Texts of several lines are to be split before, where none of their lines can hold a name that is not visible yet.
    """
    for line in lines or ("",):
        print(visible(line), file=sys.stderr if error else sys.stdout)


class _VisibleFormatter(logging.Formatter):
    """Log messages are :func:`visible`; so is each line of a traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"  {visible(line)}" for line in super().formatException(ei).split("\n"))


def configure(verbosity: int = 0) -> None:
    """Send log lines to stderr; called once by the command line, never on import. -1 quiet, 0 normal, 1 debug."""
    level = {-1: logging.WARNING, 0: logging.INFO}.get(verbosity, logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_VisibleFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.handlers[:] = [handler]
    log.setLevel(level)
    log.propagate = False


def duration(seconds: float) -> str:
    """Format seconds as 42s, 3m05s or 2h07m."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02d}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def table(rows: Iterable[Sequence[object]], header: Sequence[str], *, right: bool = False) -> str:
    """Rows below a header in aligned columns, to the left or ``right``; floats have three digits, cells one line."""
    given = ([f"{cell:.3g}" if isinstance(cell, float) else visible(cell) for cell in row] for row in rows)
    cells = [list(map(visible, header)), *given]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        [f"{cell:{'>' if right else '<'}{width}}" for cell, width in zip(row, widths, strict=True)] for row in cells
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


class Progress:
    """A progress bar with rate and time left on a terminal; elsewhere a log line every ``every`` seconds.

    Use as a context manager and call :meth:`advance`. Nothing is shown on ranks other than 0 (``show=False``).
    """

    _hidden: ClassVar[bool] = False

    def __init__(
        self, label: str, total: int, unit: str = "it", *, start: int = 0, show: bool = True, every: float = 15.0
    ) -> None:
        self.label, self.total, self.unit, self.done, self.every = label, total, unit, start, every
        self._start, self._began = start, time.monotonic()
        self._last = self._began
        self._show = show and not Progress._hidden and log.isEnabledFor(logging.INFO)
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self._show and sys.stderr.isatty():
            from rich.console import Console  # rich: only on a terminal
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
            )
            self._bar = RichProgress(*columns, console=Console(stderr=True), transient=False)
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.done, note="")
        return self

    @classmethod
    @contextmanager
    def hidden(cls) -> Iterator[None]:
        """Show no progress of what begins inside: work within work that shows its own."""
        before, cls._hidden = cls._hidden, True
        try:
            yield
        finally:
            cls._hidden = before

    def rate(self) -> float:
        """Units a second since the start."""
        return (self.done - self._start) / max(time.monotonic() - self._began, 1e-9)

    def advance(self, count: int = 1, note: str = "") -> None:
        """Report ``count`` more units done, with a short note such as the loss."""
        self.done += count
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, note=f"{self.rate():.1f} {self.unit}/s {note}")
        elif self._show and time.monotonic() - self._last >= self.every:
            self._last = time.monotonic()
            left = (self.total - self.done) / max(self.rate(), 1e-9)
            log.info(
                "%s %d/%d %.1f %s/s, %s left%s",
                self.label,
                self.done,
                self.total,
                self.rate(),
                self.unit,
                duration(left),
                f", {note}" if note else "",
            )

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class MetricsLog:
    """``metrics.jsonl``: one JSON object a line, flushed. At a resume, rows after its step and torn lines are cut."""

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        self.path = Path(path)
        if resume_step is not None and self.path.exists():
            rows = [row for row in read_metrics(self.path) if row.get("step", 0) <= resume_step]
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        with translate_write_errors(self.path):
            self._stream = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - open for the whole run

    def write(self, **row: Any) -> None:
        """Append one row and flush it."""
        with translate_write_errors(self.path):
            self._stream.write(json.dumps(row) + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Close the file of the log."""
        self._stream.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read ``metrics.jsonl``; torn or damaged lines are skipped with a warning. A missing file gives []."""
    path = Path(path)
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(read_text(path, MAX_LOG).splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            log.warning("%s:%d: skipped a damaged line", path, number)
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def human_bytes(count: float) -> str:
    """Format bytes as 26 kB or 1.2 GB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
