"""The contents of a folder."""

from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes of all files below a folder, by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
