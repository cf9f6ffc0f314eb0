"""Work in parts of fixed size that several processes share: each part is made by one of them, and stays if they stop.

The process whose work it is makes the parts from the first one on, and reads all of them in their order; helpers make
them from the last one on. A part is a file of arrays in a folder beside the output, and which parts there are does not
depend on how many processes are at them, so that neither does what is made of them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.errors import DataError, OutputInUse
from dinoskip.io.files import TEMPORARY, read_json, write_json
from dinoskip.io.locks import directory_lock
from dinoskip.io.output import move_new, own_folder, remove, remove_aside, remove_empty

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = Mapping[str, "NDArray[Any]"]
IMAGES = 128
"""Images of a part: of 2,000 there are 16 parts, so that two workers end within a sixteenth of each other; on a GPU
one part has enough images of one size for batches."""
POLL = 0.2  # seconds between looks for parts that others are at: small against a part, which takes seconds or more
HELPING = 300.0
"""Seconds after which a helper begins no further part: its worker may be needed for a stage that has become ready."""
_LARGEST = 1 << 40  # bytes of a part that are read back; we have written it ourselves
_SHARED = "parts.json"  # how many parts there are, by the name of the work


class HelpEnded(Exception):
    """Signal that a helper has made what it could: no result comes of it but the parts."""


@dataclass(frozen=True)
class Parts:
    """Parts of one output's work, in ``folder``; without one nothing is shared and nothing is left.

    ``helps``: this process helps another one, whose output it is.
    """

    folder: Path | None = None
    helps: bool = False

    def each(
        self,
        name: str,
        count: int,
        make: Callable[[int, Path], Arrays],
        out: Path,
        made: Callable[[], None] = lambda: None,
    ) -> Iterator[Arrays]:
        """Yield the arrays of ``count`` parts in their order; files that a part has written are in ``out`` then.

        ``make`` gets the part's number and a folder for its files, and must not depend on the other parts. ``made`` is
        called after each part that is there. Raises :class:`HelpEnded` in a helper when no part is left to begin, and
        whatever ``make`` raises.
        """
        if self.folder is None:
            for number in range(count):
                arrays = make(number, out)
                made()
                yield arrays
            return
        if self.helps:
            self._help(self.folder, name, count, make)
            raise HelpEnded
        place = own_folder(self.folder / name)
        write_json(self.folder / _SHARED, {"name": name, "count": count})
        left = list(range(count))
        while left:
            there = set[int]()
            for number in left:
                if _make(place, number, make):
                    there.add(number)
                    made()
            left = [number for number in left if number not in there]
            if left and not there:
                time.sleep(POLL)
        for number in range(count):
            written = place / f"{number:06d}"
            if written.is_dir():
                shutil.copytree(written, out, dirs_exist_ok=True)
            yield _on_disk().read_arrays(written.with_suffix(".npz"), limit=_LARGEST)

    @staticmethod
    def _help(folder: Path, name: str, count: int, make: Callable[[int, Path], Arrays]) -> None:
        until = time.monotonic() + HELPING
        for number in reversed(range(count)):
            if time.monotonic() > until or not (folder / _SHARED).is_file():
                return
            _make(folder / name, number, make)

    def once(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the folder ``name`` that ``make`` fills: all parts read it, and it is made once, before they begin.

        Raises :class:`HelpEnded` in a helper that finds none.
        """
        assert self.folder is not None
        place = self.folder / name
        if not place.is_dir():
            if self.helps:
                raise HelpEnded
            aside = own_folder(self.folder / f"{TEMPORARY}{name}")
            make(aside)
            move_new(aside, place)
        return place

    def end(self) -> None:
        """Remove all parts: what was made of them is complete."""
        if self.folder is not None and self.folder.is_dir():
            remove_aside(self.folder, "parts")


ALONE = Parts()
"""For callers that share no work: everything is made here, and nothing stays of a run that is stopped."""


def _on_disk() -> Any:
    """The module that reads and writes arrays, for settings name :class:`Parts`."""
    from dinoskip.io import arrays  # numpy: heavy

    return arrays


def _make(place: Path, number: int, make: Callable[[int, Path], Arrays]) -> bool:
    """Make a part, unless it is there or another process is at it; whether it is there now."""
    written = place / f"{number:06d}"
    file, claim = written.with_suffix(".npz"), written.with_suffix(".claim")
    if file.is_file():
        return True
    try:
        with directory_lock(claim):
            if not file.is_file():
                remove(written)  # of a process that was killed
                arrays = make(number, own_folder(written))
                remove_empty(written)
                _on_disk().write_arrays(file, arrays)
    except OutputInUse:
        return False
    remove(claim, quiet=True)
    return True


def parts_left(folder: Path) -> int:
    """Number of parts below ``folder`` that are not there and that nobody has begun; 0 where none are announced."""
    try:
        shared = read_json(folder / _SHARED)
        place = folder / shared["name"]
        begun = {path.stem for path in place.glob("*.npz")} | {path.parent.stem for path in place.glob("*.claim/.lock")}
        return max(0, int(shared["count"]) - len(begun))
    except (DataError, OSError, KeyError, TypeError, ValueError):  # none yet, or its process has just ended
        return 0
