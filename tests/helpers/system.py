"""The system in tests: processes of a session, a disk of a few bytes, a root that obeys file modes."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _PRIVATE = 0x00020000, 0x4000 | 0x40000  # CLONE_NEWNS; MS_REC | MS_PRIVATE
_READ_ONLY, _REMOUNT = 1, 32
_CAPABILITIES_V3, _OVERRIDES = 0x20080522, 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


def members(session: int) -> list[int]:
    """Processes of a session that are alive (not zombies)."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, _, _, owner = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:4]
            except OSError:  # it has just ended
                continue
            if int(owner) == session and state not in "ZX":
                found.append(int(folder.name))
    return found


def wait_until_empty(session: int, seconds: float) -> list[int]:
    """Wait until nobody of a session is left; return who still is after ``seconds``."""
    end = time.monotonic() + seconds
    while (left := members(session)) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def _checked(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), what)


def small_disk(path: str | Path, size: int) -> None:
    """Put a file system of ``size`` bytes on a folder, for this process and its children alone. Needs root."""
    _checked(_LIBC.unshare(_NEW_MOUNTS), "unshare")
    _checked(_LIBC.mount(b"none", b"/", None, _PRIVATE, None), "make mounts private")
    options = f"size={size}".encode()
    _checked(_LIBC.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, options), "mount")


def remount(path: str | Path, options: str, *, read_only: bool = False) -> None:
    """Change the options of a tmpfs (``size=``, ``nr_inodes=``). EBUSY if read-only while a file is written to."""
    flags = _REMOUNT | (_READ_ONLY if read_only else 0)
    _checked(_LIBC.mount(b"tmpfs", os.fsencode(path), b"tmpfs", flags, options.encode() or None), "remount")


def can_mount() -> bool:
    """Whether :func:`small_disk` works here (root in a container often may not)."""
    child = os.fork()
    if child == 0:
        try:
            small_disk("/tmp", 1 << 20)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def obey_modes() -> None:
    """Give up root's right to pass over file modes, in this process for good; nothing for other users."""
    if os.geteuid():
        return
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    _checked(_LIBC.capget(header, sets), "capget")
    sets[0] &= ~_OVERRIDES
    sets[1] &= ~_OVERRIDES
    _checked(_LIBC.capset(header, sets), "capset")
