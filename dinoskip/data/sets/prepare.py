"""Data sets out of the archives that their authors publish: which go where, their md5, and where to get them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dinoskip.data.archives import md5_file, unpack
from dinoskip.data.sets import KINDS, published_kinds
from dinoskip.data.sets.kind import Archives, Published
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import MAX_JSON, read_regular, write_bytes


def archives_of(kind: str) -> Archives:
    """Return what is known of a kind's archives; :class:`ConfigError` for a kind that has none."""
    archives = KINDS[kind].archives if kind in KINDS else None
    if archives is None:
        raise ConfigError(f"{kind}: has no published archives", f"use kind {', '.join(published_kinds())}")
    return archives


def _published(archives: Archives, path: Path) -> Published | None:
    """The published file of this name, its md5 checked where one is known."""
    entry = next((entry for entry in archives.published if entry.name == path.name), None)
    if entry is not None and entry.md5 and (md5 := md5_file(path)) != entry.md5:
        raise DataError(
            f"{path}: its md5 is {md5}, that of the published file {entry.md5}",
            "download it again; if it is another file on purpose, give it another name",
        )
    return entry


def _copy_list(path: Path, folder: Path) -> str:
    """Put a list of ids where its kind looks for it."""
    target = folder / path.name
    content = read_regular(path, MAX_JSON)
    if target.exists() and read_regular(target, MAX_JSON) != content:
        raise DataError(f"{target}: differs from {path}", "move it away, or choose another --out")
    write_bytes(target, content)
    return f"{path.name}: copied to {target}"


def prepare(kind: str, files: Sequence[str | Path], out: str | Path) -> list[str]:
    """Unpack archives (and copy .txt and .csv lists) of one kind below ``out``; return a line of each on what was done.

    Where an md5 is known for a file of that name it is checked first. Files already there stay. Raises
    :class:`DataError` naming the archive, and the member, that is damaged or refused; what came before it stays.
    """
    archives, out, lines = archives_of(kind), Path(out).expanduser(), []
    for path in map(Path, files):
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        if path.suffix in archives.in_place:
            if not path.resolve().is_relative_to(out.resolve()):
                raise DataError(f"{path}: is read where it lies", f"put it into {out}")
            continue
        entry = _published(archives, path)
        if path.suffix in {".txt", ".csv"}:
            lines.append(_copy_list(path, out / archives.list_folders.get(path.name, "")))
            continue
        into = entry.into if entry else ""
        count = unpack(path, out, lambda names, into=into: into or archives.folder_for(names))  # type: ignore[misc]
        checked = "md5 as published" if entry and entry.md5 else "md5 not known, not checked"
        lines.append(f"{path.name}: {count:,} files, {checked}")
    return lines + archives.finish(out)


def missing(kind: str, out: str | Path) -> list[str]:
    """Say in a line each which published files are still wanted below ``out``, and where to get them."""
    archives, out, lines = archives_of(kind), Path(out).expanduser(), []
    for entry in archives.published:
        if all((out / path).exists() for path in entry.gives):
            continue
        md5 = f" (md5 {entry.md5})" if entry.md5 else ""
        lines.append(f"{'missing' if entry.needed else 'optional'}: {', '.join(entry.gives)}: get {entry.url}{md5}")
    return lines
