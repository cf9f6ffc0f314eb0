"""Files that are either complete or absent, and the only calls that open or write weights.

A file is written under a temporary name beside its target, flushed to disk and renamed. A directory is
believed only when its ``MANIFEST.json``, written last, is there; it holds the size and sha256 of every
file. Weights we write are safetensors; foreign ``.pt``/``.pth`` files are opened with ``weights_only=True``.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dinoskip.errors import ConfigError, DataError, OutputInUse, WeightsError, first_line, translate_write_errors
from dinoskip.io.folders import make_folder
from dinoskip.runtime.cores import available_cores

if TYPE_CHECKING:
    import torch

MANIFEST = "MANIFEST.json"
TEMPORARY = ".tmp-"
_START = 1024  # bytes of a file that tell text from weights; a pointer of Git LFS has fewer than 200
_PAGE = re.compile(rb"<(!doctype|html|head|body|\?xml|!--|error)|\{\s*\"\w+\"\s*:", re.IGNORECASE)
"""Beginnings of pages and server answers. A safetensors file may begin with < or {, too: the length of its header."""
MAX_JSON = 256 * 2**20  # bytes
_AWAY = "move it away, or name another output"


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success flush it, give it a new file's mode and rename it.

    Raises :class:`DiskFull` when no space is left and :class:`ConfigError` when the place is not writable, and for a
    ``path`` that is a link or no file: a link that the user gave is followed by :func:`dinoskip.io.output.followed`,
    any other was put here by somebody. In every failure the temporary file is removed and an earlier ``path`` is
    untouched."""
    path = Path(path)
    _refuse_unless_file(path)
    with translate_write_errors(path):
        make_folder(path.parent)
        temporary = path.with_name(f"{TEMPORARY}{path.name}.{secrets.token_hex(6)}")
        mode = _create(temporary)
        try:
            yield temporary
            os.chmod(temporary, mode)  # safetensors makes a file of its own, for its owner alone
            _fsync(temporary)
            os.replace(temporary, path)
            _fsync(path.parent)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()


def _create(path: Path) -> int:
    """Make an empty file that is not there yet; its mode, made of the umask (to ask for that is to set it, for all)."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        return stat.S_IMODE(os.fstat(handle).st_mode)
    finally:
        os.close(handle)


def _refuse_unless_file(path: Path) -> None:
    """:class:`ConfigError` for a link, a folder, a FIFO or a device in the place of a file that is to be written."""
    with suppress(OSError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            what = "a link, which dinoskip did not make here" if stat.S_ISLNK(mode) else "there and no regular file"
            raise ConfigError(f"{path}: is {what}", _AWAY)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically; bytes of file names that are not UTF-8 (surrogates) as ``\\udcXX``."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no spaces, no NaN. Used wherever a hash depends on it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON with sorted keys, atomically."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open a regular file to read its bytes; :class:`DataError` for a FIFO, a device or a folder.

    It never waits, as opening a FIFO that nobody writes to would. Raises OSError where it cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DataError(f"{path}: is not a regular file")
    return open(handle, "rb")


def read_regular(path: Path, limit: int, *, whole: bool = True) -> bytes:
    """Read at most ``limit`` bytes of a regular file: never waits on a FIFO, never reads a device.

    Raises :class:`DataError` for anything else than a file, and, if it is to be read ``whole``, for a longer one;
    OSError where it cannot be opened.
    """
    with open_regular(path) as stream:
        content = stream.read(min(limit, os.fstat(stream.fileno()).st_size) + 1)
    if whole and len(content) > limit:
        raise DataError(f"{path}: refused: longer than {limit} bytes")
    return content[:limit]


def read_text(path: Path, limit: int = MAX_JSON) -> str:
    """The text of a regular file; bytes that are no UTF-8 become U+FFFD. Raises as :func:`read_regular`."""
    return read_regular(path, limit).decode(errors="replace")


def is_zip(path: Path) -> bool:
    """Whether a regular file is a zip archive; :class:`DataError` for a FIFO, a device or a folder."""
    with open_regular(path) as stream:
        return zipfile.is_zipfile(stream)


def read_json(path: Path) -> Any:
    """Read JSON of at most 256 MiB; a missing or damaged file is a one-line :class:`DataError`."""
    try:
        return json.loads(read_regular(Path(path), MAX_JSON))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DataError(f"{path}: cannot be read as JSON: {reason}") from error


def _can_be_a_file(name: str) -> bool:
    """Whether a system can have files of this name: its parts have at most 255 bytes, all of it 4,095."""
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    long = len(encoded) > 4095 or max(map(len, encoded.split(b"/"))) > 255
    return bool(name) and not long and "\\" not in name and "\0" not in name


def confined(root: Path, name: Any, source: object) -> Path:
    """Return ``root / name`` for a name that a list, an annotation, an archive or a manifest (``source``) gives.

    Raises :class:`DataError` for what is no relative file name or points outside ``root``. Links below ``root`` are
    followed: they are the user's own, archives that hold any are refused.
    """
    if not isinstance(name, str) or not _can_be_a_file(name):
        raise DataError(f"{source}: refused: entry {repr(name)[:80]} is not a file name")
    if name.startswith("/") or ".." in name.split("/"):
        raise DataError(f"{source}: refused: entry {name!r} points outside its folder")
    return root / name


def sha256_bytes(content: bytes) -> str:
    """Return the hex sha256 of ``content``."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file's content; :class:`DataError` for a FIFO, a device or a folder."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_of(value: Any) -> str:
    """Return the hex sha256 of a JSON-able value in its canonical spelling."""
    return sha256_bytes(canonical_json(value).encode())


# --- weights -----------------------------------------------------------------------------------------


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors as safetensors, atomically. Tensors are made contiguous and moved to the CPU."""
    from safetensors.torch import save_file  # torch, as below

    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        # With no tensor and an empty (not absent) metadata mapping safetensors writes a header it cannot read.
        save_file(ready, temporary, metadata=dict(metadata) if metadata else None)


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read every tensor of a safetensors file; a missing or damaged one is a :class:`WeightsError`."""
    from safetensors import SafetensorError  # torch
    from safetensors.torch import load_file

    _require_regular(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        raise WeightsError(f"{path}: not a readable safetensors file: {error}") from error


@dataclass(frozen=True)
class TensorFile:
    """Header of a safetensors file, without its tensors: metadata text by key, dtype and shape by tensor name."""

    metadata: dict[str, str]
    dtypes: dict[str, str]
    shapes: dict[str, tuple[int, ...]]


def read_tensor_header(path: Path) -> TensorFile:
    """Read the header of a safetensors file; its sizes fit the file. :class:`WeightsError` for a damaged one."""
    from safetensors import SafetensorError, safe_open  # only where one is read

    _require_regular(path)
    try:
        with safe_open(path, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
            dtypes = {name: str(part.get_dtype()) for name, part in slices.items()}
            shapes = {name: tuple(map(int, part.get_shape())) for name, part in slices.items()}
            return TensorFile(dict(opened.metadata() or {}), dtypes, shapes)
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        raise WeightsError(f"{path}: not a readable safetensors file: {error}") from error


def _require_regular(path: Path) -> None:
    """:class:`WeightsError` for a path that is no file; a FIFO would be waited on, a device read without end."""
    if not Path(path).exists():
        raise WeightsError(f"{path}: no such file")
    if Path(path).is_dir():
        within = sorted(file for file in Path(path).iterdir() if file.suffix in {".safetensors", ".pt", ".pth"})
        raise WeightsError(f"{path}: a folder, not a file", f"name the file in it: {within[0]}" if within else None)
    if not Path(path).is_file():
        raise WeightsError(f"{path}: not a regular file")
    refuse_text(path)


def refuse_text(path: Path) -> None:
    """:class:`WeightsError` for what downloads leave in place of weights: a pointer of Git LFS, a page, nothing."""
    try:
        start = read_regular(Path(path), _START, whole=False)
    except OSError:  # said by the reader that comes next
        return
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"version https://git-lfs."):
        raise WeightsError(
            f"{path}: a Git LFS pointer, not the weights", "fetch them in its repository: git lfs install; git lfs pull"
        )
    if _PAGE.match(text):
        raise WeightsError(
            f"{path}: a web page or another answer of a server, not weights",
            "download the file itself by its direct link, logged in where that is asked for",
        )
    if not start:
        raise WeightsError(f"{path}: an empty file, not weights", "download or copy it again")


def refuse_text_in(folder: Path) -> None:
    """:func:`refuse_text` of the weights files in a folder that a library loads; nothing for what is no folder here."""
    for pattern in ("*.safetensors", "*.bin"):
        for path in sorted(Path(folder).glob(pattern)):
            if path.is_file():
                refuse_text(path)


def load_torch_file(path: Path, *, shapes_only: bool = False) -> Any:
    """Open a foreign ``.pt``/``.pth`` file on the CPU with ``weights_only=True``: tensors and plain containers only.

    With ``shapes_only``, tensors are on torch's meta device, and the values of a zip file are not read.
    """
    import pickle  # torch

    import torch

    _require_regular(path)
    try:
        if shapes_only:
            return torch.load(path, map_location="meta", weights_only=True, mmap=is_zip(path))
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path}: refused: it holds more than tensors and plain containers", "re-save its state_dict alone"
        ) from error
    except Exception as error:  # the legacy reader raises nearly anything on a file that is not one (IndexError, ...)
        raise WeightsError(f"{path}: not a readable torch file: {first_line(error)}") from error


# --- directories -------------------------------------------------------------------------------------


def list_files(directory: Path) -> list[str]:
    """Relative POSIX paths of all files below ``directory``, sorted, without the manifest and hidden files.

    Locks, temporaries and what network file systems leave of deleted files (``.nfs...``) are hidden; no output is.
    """
    listed = []
    for root, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith("."):
                continue
            relative = (Path(root) / name).relative_to(directory).as_posix()
            if relative != MANIFEST:
                listed.append(relative)
    return sorted(listed)


def find_below(directory: Path, pattern: str) -> list[Path]:
    """Files and folders below ``directory`` whose name matches, sorted; [] where there is no such directory.

    What another process removes meanwhile is passed over, where Path.rglob raises FileNotFoundError.
    """
    return sorted(
        Path(root, name)
        for root, folders, names in os.walk(directory)
        for name in fnmatch.filter([*folders, *names], pattern)
    )


def write_manifest(
    directory: Path,
    info: Mapping[str, Any] | None = None,
    volatile: Sequence[str] = (),
    left_out: Sequence[str] = (),
    hashes: Mapping[str, str] | None = None,
) -> str:
    """Write ``MANIFEST.json`` last: size and sha256 of every file. Return the output hash.

    The hash covers names and contents of all files but those whose name (its last part) is in ``volatile``
    (logs, timings), so that a re-run with the same result has the same hash. What is ``left_out`` is not recorded.
    ``hashes`` are the sha256 of files, by name, that whoever wrote them knows: these are not read again.
    """
    directory = Path(directory)
    names = [name for name in list_files(directory) if name.partition("/")[0] not in left_out]
    _refuse_names_of_one_spelling([*names, MANIFEST])

    def entry(name: str) -> dict[str, Any]:
        path = directory / name
        _fsync(path)
        return {"bytes": path.stat().st_size, "sha256": (hashes or {}).get(name) or sha256_file(path)}

    with _hashing_threads() as pool:
        files = dict(zip(names, pool.map(entry, names), strict=True))
    digest = hash_of_files(files, volatile)
    write_json(directory / MANIFEST, {"format": 1, "hash": digest, "files": files, "info": dict(info or {})})
    return digest


def _hashing_threads() -> ThreadPoolExecutor:
    """Threads that hash files at once: hashlib lets others run meanwhile; more than 16 wait for the disk."""
    return ThreadPoolExecutor(min(16, available_cores()), thread_name_prefix="hash")


def hash_of_files(files: Mapping[str, Mapping[str, Any]], volatile: Sequence[str] = ()) -> str:
    """The output hash of a manifest's ``files``: of names and sha256 of all but those named in ``volatile``."""
    return hash_of({name: entry["sha256"] for name, entry in files.items() if Path(name).name not in volatile})


def _refuse_names_of_one_spelling(names: Iterable[str]) -> None:
    """:class:`ValueError` for names that are one on a disk that ignores case; nothing of ours may write such."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise ValueError(f"{other} and {name} are one file on a disk that ignores case")


@dataclass(frozen=True)
class Manifest:
    """Content of a directory's ``MANIFEST.json``: its output hash, size and sha256 of every file, and ``info``."""

    hash: str
    files: Mapping[str, Mapping[str, Any]]
    info: Mapping[str, Any]


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a published directory; :class:`DataError` if it is missing, not one or names no file."""
    path = Path(directory) / MANIFEST
    manifest = read_json(path)
    if (
        not isinstance(manifest, dict)
        or manifest.get("format") != 1
        or not isinstance(manifest.get("files"), dict)
        or not isinstance(manifest.get("info"), dict)
    ):
        raise DataError(f"{path}: not a dinoskip manifest of format 1")
    for name, entry in manifest["files"].items():
        confined(path.parent, name, path)
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int or not _is_sha256(entry.get("sha256")):
            raise DataError(f"{path}: damaged: entry {name!r} has no size and sha256")
    if not manifest["files"]:
        raise DataError(f"{path}: damaged: it names no file")
    if not _is_sha256(manifest.get("hash")):
        raise DataError(f"{path}: damaged: its hash is no sha256")
    return Manifest(manifest["hash"], manifest["files"], manifest["info"])


def _is_sha256(text: Any) -> bool:
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) is not None


def file_problem(path: Path, entry: Mapping[str, Any], *, contents: bool = True) -> str | None:
    """Return how a file differs from its entry in a manifest, or None; without ``contents`` only sizes are compared."""
    try:
        if not path.is_file():
            return f"{path}: missing"
        if path.stat().st_size != entry["bytes"]:
            return f"{path}: {path.stat().st_size} bytes, {entry['bytes']} expected"
        if contents and sha256_file(path) != entry["sha256"]:
            return f"{path}: content differs from its recorded sha256"
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}"
    return None


def verify_manifest(directory: Path, *, inner: bool = True) -> list[str]:
    """Compare a published directory with its manifest, byte by byte; return one line per problem, [] if none.

    Files in folders below that have a manifest of their own, which is verified where they are read (a feature store, a
    checkpoint), are left out unless ``inner``.
    """
    try:
        return list(differing_files(directory, inner=inner).values())
    except DataError as error:
        return [str(error)]


def differing_files(directory: Path, *, inner: bool = True) -> dict[str, str]:
    """As :func:`verify_manifest`, by the names of the files; :class:`DataError` if the manifest cannot be read."""
    directory = Path(directory)
    files = read_manifest(directory).files
    if not inner:
        published = {PurePosixPath(name).parent for name in files if PurePosixPath(name).name == MANIFEST}
        files = {
            name: entry
            for name, entry in files.items()
            if PurePosixPath(name).name == MANIFEST or published.isdisjoint(PurePosixPath(name).parents)
        }
    with _hashing_threads() as pool:
        problems = pool.map(lambda name: file_problem(directory / name, files[name]), files)
        return {name: problem for name, problem in zip(files, problems, strict=True) if problem is not None}


def verify_beside_manifest(path: Path) -> str | None:
    """Return how a file differs from the manifest in its directory; None if it does not, or if no manifest names it."""
    if not (path.parent / MANIFEST).is_file():
        return None
    try:
        entry = read_manifest(path.parent).files.get(path.name)
    except DataError as error:
        return str(error)
    return None if entry is None else file_problem(path, entry)


def publish_directory(temporary: Path, final: Path, *, replace: bool = True) -> None:
    """Rename a finished directory (manifest written) into place; an existing ``final`` is set aside and removed.

    Unless it may ``replace`` what is there, :class:`OutputInUse` for a ``final`` that is not empty.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    with translate_write_errors(final):
        if not replace and final.is_dir() and any(final.iterdir()):
            raise OutputInUse(f"{final}: is there already, and is not replaced", "name another output, or remove it")
        if final.is_symlink():
            raise ConfigError(
                f"{final}: is a link, which dinoskip did not make here", "remove it, or name another output"
            )
        if final.exists():
            aside = final.with_name(f"{TEMPORARY}old-{final.name}-{os.getpid()}")
            os.replace(final, aside)
            shutil.rmtree(aside, ignore_errors=True)
        os.replace(temporary, final)
        _fsync(final.parent)
