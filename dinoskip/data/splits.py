"""Names of the folder or file of a split: ``val`` may be ``valid`` or ``validation``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dinoskip.data.recognise.words import SPLITS
from dinoskip.errors import DataError


def split_path(root: Path, template: str, split: str) -> Path:
    """Return where a split lies below ``root``, by a path in which ``{split}`` stands for its name.

    The name itself comes first. If nothing is called so, another usual name of the split is taken, such as ``valid``
    for ``val``; if nothing is, one with a digit, such as ``val2``. Raises :class:`DataError` if several of those are
    there. Without any, the path of the name itself is returned, for the reader to say that it is missing.
    """
    own = root / template.replace("{split}", split)
    if own.exists() or "{split}" not in template:
        return own
    usual = SPLITS.get(split, (split,))
    names = [form for name in usual for form in (name, name.capitalize(), name.upper())]
    numbered = [f"{name}{between}{digit}" for name in names for between in ("", "_", "-") for digit in range(10)]
    there = _existing(root, template, names) or _existing(root, template, numbered)
    if len(there) > 1:
        text = " and ".join(str(path) for path in there)
        raise DataError(f"{root}: split {split!r} may be {text}", f"rename one of them to {own.name}")
    return there[0] if there else own


def _existing(root: Path, template: str, names: Sequence[str]) -> list[Path]:
    """The paths that are there, once each where the file system does not tell capitals apart."""
    paths = (root / template.replace("{split}", name) for name in names)
    return list({path.stat().st_ino: path for path in paths if path.exists()}.values())
