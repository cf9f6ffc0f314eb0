"""A page of HTML as tests look at it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class Page(HTMLParser):
    """Tags with their attributes, all text, the text of scripts by id, and of table rows cell by cell."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: dict[str, str] = {}
        self.rows: list[list[str]] = []
        self._script: str | None = None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._script = dict(attributes).get("id") if tag == "script" else None
        self.rows += [[]] if tag == "tr" else []

    def handle_endtag(self, tag: str) -> None:
        self._script = None

    def handle_data(self, text: str) -> None:
        self.text += text
        if self._script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + text
        if self.rows and text.strip():
            self.rows[-1].append(text.strip())

    def json(self, name: str = "data") -> Any:
        return json.loads(self.scripts[name])

    def values(self, name: str) -> list[str]:
        return [attributes[name] or "" for _, attributes in self.tags if name in attributes]
