"""Storage of a page's pictures: files named by number beside it, or embedded in the page itself."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path

from dinoskip.errors import translate_write_errors

FOLDER = "img"


@dataclass
class PictureFiles:
    """Pictures of the page in folder ``page``: written to ``page/img``, or kept as base64 where ``embedded``."""

    page: Path
    embedded: bool = False
    kept: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, content: bytes) -> None:
        """Take a picture; ``name`` is made of numbers by the caller, never of names in the data."""
        if self.embedded:
            self.kept[name] = base64.b64encode(content).decode()
            return
        path = self.page / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with translate_write_errors(path):  # no fsync each: there are many, and the page is written after them
            path.write_bytes(content)

    def address(self, name: str) -> str:
        """Return the ``src`` of a picture's ``<img>``.

        An embedded picture is no longer kept afterwards, so it can be asked for only once.
        """
        if not self.embedded:
            return f"{FOLDER}/{name}"
        kind = "jpeg" if name.endswith(".jpg") else "png"
        return f"data:image/{kind};base64,{self.kept.pop(name)}"
