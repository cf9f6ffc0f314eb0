"""Folders, made where others may remove them at the same time."""

from __future__ import annotations

import os
from pathlib import Path

from dinoskip.errors import ConfigError, translate_write_errors

_FOLDER_TRIES = 20  # to make a folder that others remove


def make_folder(path: Path) -> Path:
    """Make a folder and those above it, unless it is there; ``path``.

    Another process may remove it meanwhile: mkdir then says that it exists, and what looks at it next that it does
    not, or that one above it does not. Raises :class:`ConfigError` where none can be: below a file, in a circle of
    links, by a name that is too long, in /proc.
    """
    with translate_write_errors(path):
        for _ in range(_FOLDER_TRIES):
            try:
                path.mkdir(parents=True, exist_ok=True)
                return path
            except FileExistsError:
                if os.path.lexists(path) and not path.is_dir():
                    raise ConfigError(f"{path}: exists and is not a folder", "choose another output") from None
            except FileNotFoundError:
                continue
    raise ConfigError(f"{path}: no folder can be made here", "choose another output")
