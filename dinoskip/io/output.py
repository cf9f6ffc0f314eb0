"""Whose an output is: where a command writes, what it made there, and the only calls that delete.

A command writes into what the user named, through a link if that is one. Below it nothing is followed: a link at a name
that a command uses was put there by someone, and is refused by name, as is a file that the command did not make. What
it made in a folder beside files of others stands in ``.made.json`` there, with the sha256 of every file; nothing else
is replaced or removed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinoskip.errors import ConfigError, DataError, translate_write_errors
from dinoskip.io.files import TEMPORARY, read_json, sha256_file, write_json
from dinoskip.io.folders import make_folder

MADE = ".made.json"
_REPLACED = 0.5  # seconds in which a process that has written its list renames its files
_AWAY = "move it away, or name another output"
Content = Mapping[str, str]
"""sha256 of every file of an entry, by its name in it; that of an entry that is a file has the name ''."""


def followed(given: str | Path) -> Path:
    """Return the path of a given output: the target of a link that the user named, which need not exist yet.

    Raises :class:`ConfigError` for links in a circle, and for a name that no file can have.
    """
    path = Path(given)
    with translate_write_errors(path):
        if not path.is_symlink():
            return path
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise ConfigError(f"{path}: links in a circle", "name another output")
        return target


def given_folder(given: str | Path, data: Iterable[str | Path] = ()) -> Path:
    """:func:`followed`, of an output that is a folder or is to be one.

    Raises :class:`ConfigError` for what is there and no folder, and for one inside a folder of ``data`` or around it.
    """
    place = followed(given)
    if os.path.lexists(place) and not place.is_dir():
        raise ConfigError(f"{place}: exists and is not a folder", "name another output")
    refuse_around(place, data)
    return place


def given_file(given: str | Path, ours: Callable[[Path], bool] | None = None) -> Path:
    """:func:`followed`, of an output that is a file.

    Raises :class:`ConfigError` for a folder, a FIFO or a device, and for a file that is there and not ``ours``.
    """
    place = followed(given)
    try:
        mode = os.lstat(place).st_mode
    except OSError:
        return place
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{place}: exists and is not a regular file", "name another output")
    if ours is None or not ours(place):
        raise ConfigError(f"{place}: is there already, and was not made by this command", _AWAY)
    return place


def refuse_around(output: Path, data: Iterable[str | Path]) -> None:
    """:class:`ConfigError` for an output inside a folder of data, which would become data, or for data inside it."""
    out = Path(os.path.realpath(output))
    for root in map(Path, data):
        read = Path(os.path.realpath(root))
        if out == read or out.is_relative_to(read):
            raise ConfigError(f"{output}: is inside the data folder, {root}", "name an output outside of it")
        if read.is_relative_to(out):
            raise ConfigError(f"{output}: contains the data folder, {root}", "name an output that does not hold them")


def refuse_link(path: Path) -> Path:
    """``path``; :class:`ConfigError` if it is a link: at a name of ours, that is another's."""
    with translate_write_errors(path):
        linked = path.is_symlink()
    if linked:
        raise ConfigError(f"{path}: is a link, which dinoskip did not make here", "remove it, or name another output")
    return path


def refuse_links_above(path: Path, root: Path) -> None:
    """:class:`ConfigError` if a folder of ours between ``root`` and ``path`` is a link: it would lead into another's.

    ``root`` itself is not looked at.
    """
    for folder in itertools.takewhile(lambda parent: parent != root, path.parents):
        refuse_link(folder)


def refuse_links_in(folder: Path) -> None:
    """:class:`ConfigError` if a folder of ours, or anything in it, is a link; one that is not there has none."""
    refuse_link(folder)
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            refuse_link(Path(root, name))


def own_folder(path: Path) -> Path:
    """Make a folder of our own, unless it is there; :class:`ConfigError` where its name is a link's or a file's."""
    refuse_link(path)
    return make_folder(path)


def remove(path: Path, *, quiet: bool = False) -> None:
    """Delete a file or a folder of our own, if it is there. A link is refused by name, and none below is followed.

    ``quiet``: what cannot be removed stays, and hides no other error.
    """
    if quiet and path.is_symlink():
        return
    refuse_link(path)
    with translate_write_errors(path):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=quiet)
        elif quiet:
            with suppress(OSError):
                path.unlink()
        else:
            path.unlink(missing_ok=True)


def remove_aside(path: Path, label: str) -> None:
    """Rename a folder of our own out of sight, then delete it: killed in between, no half of it has its name."""
    refuse_link(path)
    aside = path.with_name(f"{TEMPORARY}{label}-{path.name}-{uuid.uuid4().hex[:8]}")
    with translate_write_errors(path):
        os.replace(path, aside)
    remove(aside, quiet=True)


def move_new(source: Path, target: Path) -> None:
    """Rename a finished file or folder of our own into a place where nothing is; :class:`ConfigError` if there is."""
    if os.path.lexists(target):
        raise ConfigError(f"{target}: is there already", _AWAY)
    os.rename(source, target)


def reserve(path: Path, nbytes: int) -> None:
    """:class:`DiskFull` unless a file of so many bytes can be at ``path`` now, by the disk and the process's limits.

    The file is removed again: for libraries that do not survive a full disk.
    """
    with translate_write_errors(path):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            os.posix_fallocate(handle, 0, max(1, nbytes))
        finally:
            os.close(handle)
            remove(path, quiet=True)


def remove_temporaries(folder: Path) -> None:
    """Delete what a killed process left in a folder of ours under temporary names; links there stay."""
    for left in folder.glob(f"{TEMPORARY}*"):
        remove(left, quiet=True)


def remove_empty(path: Path) -> None:
    """Remove a folder of our own, if it is empty: another process may have taken it meanwhile."""
    with suppress(OSError):
        path.rmdir()


@dataclass(frozen=True)
class Output:
    """A folder in which a command of the kind ``kind`` makes entries (files, folders) beside those of others.

    :meth:`filled` writes: nothing is in place before all is made. Kinds do not replace each other's entries.
    ``adopts`` says of a folder without a list, which an earlier version may have filled, which names in it are ours.
    One that is not ``listed``, as it is made to be given to others, has no list: what is there must be what it makes.
    """

    place: Path
    kind: str
    adopts: Callable[[Path], Iterable[str]] | None = None
    listed: bool = True

    def refuse_foreign(self, names: Sequence[str]) -> None:
        """:class:`ConfigError` for the first of these entries that is there and not as this kind of command made it.

        Another process may be replacing them, and has told so in its list: they are looked at once more.
        """
        try:
            self._refuse_any(names)
        except (ConfigError, FileNotFoundError):
            time.sleep(_REPLACED)
            self._refuse_any(names)

    def _refuse_any(self, names: Sequence[str]) -> None:
        made = self._made()
        for name in names:
            if os.path.lexists(self.place / name):
                self._refuse(name, made.get(name, []))

    @contextmanager
    def filled(self, *, keep: bool = False) -> Iterator[Path]:
        """A new folder; the entries that are in it at the end take their places in the output.

        Entries that the same kind of command made before, and not now, are removed unless it is to ``keep`` them.
        Raises :class:`ConfigError` before anything is replaced if one of them is another's, or was changed since.
        """
        with translate_write_errors(self.place):
            make_folder(self.place)
            scratch = self.place / f"{TEMPORARY}{self.kind}-{uuid.uuid4().hex[:12]}"
            scratch.mkdir()
            try:
                yield scratch
                self._install(scratch, keep)
            finally:
                remove(scratch, quiet=True)

    def _install(self, built: Path, keep: bool) -> None:
        """Move the entries of ``built`` into place. Killed anywhere, it leaves entries that the next call knows."""
        made, fresh = self._made(), {path.name: _content(path) for path in sorted(built.iterdir())}
        left = {name: known for name, known in made.items() if name not in fresh}
        for name in fresh if keep else (*fresh, *left):
            if os.path.lexists(self.place / name):
                self._refuse(name, made.get(name, [] if self.listed else [fresh[name]]))
        known = {name: [content, *made.get(name, [])] for name, content in fresh.items()}
        if self.listed:
            self._write(left | known)
        for name in fresh:
            final = self.place / name
            if final.is_dir():  # a folder takes no other's place by a rename
                remove_aside(final, "old")
            os.replace(built / name, final)
        for name in () if keep else left:
            remove(self.place / name)
        if self.listed:
            self._write({name: [content] for name, content in fresh.items()} | (left if keep else {}))

    def _refuse(self, name: str, known: list[Content]) -> None:
        path = self.place / name
        refuse_links_in(path)
        found = _content(path)
        expected = {file for content in known for file in content.items()}
        others = [file for file in sorted(found.items()) if file not in expected]
        if known and not others:  # all of it, or what somebody who removed a part of it has left
            return
        other = others[0][0] if others else ""
        why = "was changed since it was made" if known else f"is not of a {self.kind} made here"
        raise ConfigError(f"{path / other if other else path}: is there already, and {why}", _AWAY)

    def _made(self) -> dict[str, list[Content]]:
        """Return the contents that this kind of command made here, by entry: one, or two if it was being replaced."""
        listed = self.place / MADE
        if not self.listed:
            return {}
        if not os.path.lexists(listed):
            names = self.adopts(self.place) if self.adopts is not None else ()
            return {name: [_content(self.place / name)] for name in names if not (self.place / name).is_symlink()}
        refuse_link(listed)
        value = read_json(listed)
        entries = value.get("entries") if isinstance(value, dict) and value.get("format") == 1 else None
        if not isinstance(entries, dict) or not all(_is_contents(known) for known in entries.values()):
            raise DataError(f"{listed}: damaged: it does not say what was made here", f"remove {self.place}")
        return entries if value.get("kind") == self.kind else {}

    def _write(self, entries: Mapping[str, list[Content]]) -> None:
        write_json(self.place / MADE, {"format": 1, "kind": self.kind, "entries": dict(entries)})


def _content(path: Path) -> Content:
    """Return the sha256 of each file of an entry, without hidden files of a folder (locks, indices of this machine)."""
    if path.is_symlink() or not path.is_dir():
        return {"": sha256_file(path)} if path.is_file() else {}
    found = {}
    for root, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith(".") and (file := Path(root, name)).is_file():
                found[file.relative_to(path).as_posix()] = sha256_file(file)
    return found


def _is_contents(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(content, dict) and all(isinstance(hashed, str) for hashed in content.values()) for content in value
    )
