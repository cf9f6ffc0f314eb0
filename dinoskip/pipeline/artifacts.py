"""Outputs of stages in ``STUDY/stages/<node>/<key>/``, built under ``.partial-<key>`` and published by rename."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from dinoskip.errors import DataError
from dinoskip.io.files import (
    MANIFEST,
    file_problem,
    find_below,
    hash_of_files,
    list_files,
    publish_directory,
    read_json,
    read_manifest,
    write_json,
    write_manifest,
)
from dinoskip.io.output import own_folder, refuse_links_above, refuse_links_in, remove, remove_aside
from dinoskip.settings.keys import with_defaults

CHANGED_DATA = "changed_data.json"  # of a training: what of its data was written to meanwhile
RELEASED, TIMING = "released.json", "timing.json"  # all that is left of an output whose files were removed after use
ACCEPTED = "accepted"  # of a manifest's info: what was doubtful of the data and accepted
AS = "as"  # of a manifest's info: the hash of an earlier output that tells other stages the same
VOLATILE = (
    "metrics.jsonl",
    "status.json",
    "env.json",
    "config.json",
    "changes.jsonl",
    "nonfinite.jsonl",
    "bad_images.json",
    "provenance.json",
    CHANGED_DATA,
    TIMING,
    RELEASED,
)
LEFT_OUT = ("boards",)  # folders of side services, which may write there when all else is done
PARTIAL = ".partial-"
EVERY = "every_setting"  # of a record of what was published last: the settings with all defaults


@dataclass(frozen=True)
class Standing:
    """State of the output at its place.

    ``output`` is its hash for other stages, from its manifest; None where nothing is published or the manifest is
    damaged. ``damage`` has a line for every file that is not as published, ``changed`` one for every volatile file
    (:data:`VOLATILE`), on which no other stage's result depends.
    """

    output: str | None = None
    damage: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def is_volatile(name: str) -> bool:
    """Whether an output's hash leaves out the file of this relative name."""
    return PurePosixPath(name).name in VOLATILE


def write_marks(directory: Path) -> list[Any]:
    """Return the size, inode and times of each file of :func:`list_files`, which change with any write to the file.

    The time of the last change of an inode (ctime) cannot be set back, unlike that of the contents.
    """
    marks = []
    for name in list_files(directory):
        with suppress(FileNotFoundError):
            status = (directory / name).stat()
            marks.append((name, status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns))
    return marks


@dataclass(frozen=True)
class Record:
    """Record of the settings and inputs that a key is computed from."""

    stage: str
    version: int
    settings: dict[str, Any]
    inputs: dict[str, str]
    external: dict[str, str]

    def plain(self) -> dict[str, Any]:
        """The record's fields as JSON can hold them; the key is their hash."""
        return asdict(self)


class Artifacts:
    """The stage outputs of one study."""

    def __init__(self, study: Path) -> None:
        self.root = study / "stages"
        self.records = study / "records"

    def path(self, node: str, key: str) -> Path:
        """Directory of a published output."""
        return self.root / node / key[:16]

    def record_path(self, node: str) -> Path:
        """File of the record of the output of a node that was published last."""
        return self.records / f"{node}.json"

    def is_there(self, node: str, key: str) -> bool:
        """Whether anything stands, or stood and was removed after use, where the output with this key is published."""
        return any((self.path(node, key) / name).is_file() for name in (MANIFEST, RELEASED))

    def made_as(self, node: str, record: Record, every: Mapping[str, Any], *, any_version: bool) -> str | None:
        """The key of an output of this node whose record says the same as ``record``, whatever the rule of its key was.

        ``every`` are the settings of ``record`` with all defaults. ``any_version``: rows may name another version of
        dinoskip, as those beside a training with labels do, whose weights it does not change. Of several the one made
        last.
        """
        ignored = {"version"} if any_version else set[str]()
        asked = _comparable(every, ignored)
        found: list[tuple[int, str]] = []
        for mark in sorted((self.root / node).glob(f"[0-9a-f]*/{MANIFEST}")):
            try:
                info = read_manifest(mark.parent).info
                old, key = Record(**info["record"]), str(info["key"])
            except (DataError, KeyError, TypeError):
                continue
            same = replace(old, settings=record.settings) == record
            if same and _comparable(with_defaults(old.settings, every, record.settings), ignored) == asked:
                found.append((mark.stat().st_mtime_ns, key))
        return max(found)[1] if found else None

    def partial(self, node: str, key: str) -> Path:
        """Directory in which the output is built; kept when a run is killed, so that a stage can resume in it."""
        return self.root / node / f"{PARTIAL}{key[:16]}"

    def parts(self, node: str, key: str) -> Path:
        """Folder of the parts of the output that several processes make (:mod:`dinoskip.io.parts`)."""
        return self.root / node / f"{PARTIAL}{key[:16]}-parts"

    def find(self, node: str, key: str) -> str | None:
        """Output hash of a complete output with this key, else None. Sizes are checked, contents by ``verify``."""
        standing = self.standing(node, key)
        return None if standing.damage else standing.output

    def standing(self, node: str, key: str, *, contents: bool = False) -> Standing:
        """Return the state of the output with this key at its place; with ``contents``, all bytes are compared."""
        path = self.path(node, key)
        if not (path / MANIFEST).exists() and ((path / RELEASED).is_file() or not _holds_anything(path)):
            return Standing()
        try:
            manifest = read_manifest(path)
        except DataError as error:
            return Standing(damage=(str(error),))
        if manifest.info.get("key") != key or manifest.hash != hash_of_files(manifest.files, VOLATILE):
            return Standing(damage=(f"{path / MANIFEST}: damaged: it is not that of this output",))
        found = {name: file_problem(path / name, entry, contents=contents) for name, entry in manifest.files.items()}
        damage = tuple(text for name, text in found.items() if text and not is_volatile(name))
        changed = tuple(text for name, text in found.items() if text and is_volatile(name))
        return Standing(str(manifest.info.get(AS, manifest.hash)), damage, changed)

    def release(self, node: str, key: str) -> None:
        """Remove the files of a complete output that is not needed any more; its hash and its time stay.

        Killed anywhere, it is either complete or released.
        """
        path, output = self.path(node, key), self.find(node, key)
        write_json(path / RELEASED, {"key": key, "node": node, "hash": output})
        remove(path / MANIFEST)
        for left in path.iterdir():
            if left.is_dir() or left.name not in {RELEASED, TIMING}:
                remove(left)

    def released(self, node: str, key: str) -> str | None:
        """Output hash of an output with this key whose files were removed after use, else None."""
        path = self.path(node, key)
        if (path / MANIFEST).is_file() or not (path / RELEASED).is_file():
            return None
        try:
            left = read_json(path / RELEASED)
        except DataError:
            return None
        return str(left["hash"]) if left.get("key") == key else None

    def publish(
        self,
        node: str,
        key: str,
        record: Record,
        info: dict[str, Any],
        *,
        replace: bool = True,
        every: Mapping[str, Any] | None = None,
    ) -> str:
        """Write the manifest of a finished partial output and rename it into place; return the output hash.

        It is that of an earlier output if ``info`` says :data:`AS` which. Unless it may ``replace`` one,
        :class:`OutputInUse` if there is one already. ``every`` are the settings with all defaults, kept to say what
        another plan changes.
        """
        partial = self.partial(node, key)
        digest = write_manifest(
            partial, {"key": key, "node": node, "record": record.plain(), **info}, VOLATILE, LEFT_OUT
        )
        kept = {"key": key, **record.plain(), **({} if every is None else {EVERY: every})}
        refuse_links_above(self.record_path(node), self.records)  # planted since the beginning
        # The record first: where a run is killed between the two, the output is made again, and none lacks its record.
        write_json(self.record_path(node), kept)
        publish_directory(partial, self.path(node, key), replace=replace)
        return str(info.get(AS, digest))

    def telling(self, node: str, tells: Callable[[Path], object], told: object) -> str | None:
        """Output hash of the output of this node that was published last, if what it tells is ``told``."""
        path = self.record_path(node)
        if not path.is_file():
            return None
        try:
            key = str(read_json(path)["key"])
            output = self.find(node, key)
            return output if output is not None and tells(self.path(node, key)) == told else None
        except (DataError, KeyError, TypeError):
            return None

    def last_record(self, node: str) -> tuple[str, Record] | None:
        """Key and record of the output of this node that was published last, to say what has changed since.

        Its settings have all defaults, if it was published with them.
        """
        path = self.record_path(node)
        if not path.is_file():
            return None
        try:
            stored = read_json(path)
            record = Record(**{name: stored[name] for name in ("stage", "version", "settings", "inputs", "external")})
            return str(stored["key"]), replace(record, settings=stored.get(EVERY, record.settings))
        except (DataError, KeyError, TypeError):
            return None

    def fresh_partial(self, node: str, key: str, *, keep: bool) -> Path:
        """The partial directory, a new one unless the stage can resume (``keep``).

        An earlier one is renamed before it is removed: a file that cannot be deleted stays in no output. Raises
        :class:`ConfigError` for a link in its place, in one that is kept, or among the folders of the node and of its
        record.
        """
        partial = self.partial(node, key)
        refuse_links_above(partial, self.root)
        refuse_links_above(self.record_path(node), self.records)
        refuse_links_in(partial)
        if not keep and partial.exists():
            remove_aside(partial, "old")
        return own_folder(partial)

    def published(self) -> Iterator[Path]:
        """Directories of all published outputs of the study."""
        for manifest in find_below(self.root, MANIFEST):
            if any(part.startswith(PARTIAL) for part in manifest.relative_to(self.root).parts):
                continue
            try:
                of_output = "node" in read_manifest(manifest.parent).info  # not of something inside an output
            except DataError:
                continue
            if of_output:
                yield manifest.parent

    def newest(self) -> set[Path]:
        """Outputs that were published last, one for every node of any study in this folder."""
        records = [(path, read_json(path)) for path in find_below(self.records, "*.json")]
        return {self.path(str(path.relative_to(self.records).with_suffix("")), meta["key"]) for path, meta in records}

    def unused(self, current: set[Path]) -> list[Path]:
        """Published outputs that the current plan does not use, and what is left of those released."""
        there = set(self.published()) | {path.parent for path in self.root.rglob(RELEASED)}
        return sorted(path for path in there if path not in current)


def _comparable(settings: Mapping[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    """Settings as JSON has them, without some fields of the context that rows repeat."""
    context = {key: value for key, value in settings.get("context", {}).items() if key not in ignored}
    return dict(json.loads(json.dumps({**settings, "context": context})))


def _holds_anything(path: Path) -> bool:
    return path.is_dir() and next(path.iterdir(), None) is not None
