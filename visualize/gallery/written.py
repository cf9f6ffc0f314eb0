"""A gallery that was written, read again: its images and networks, and any picture of it as pixels."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dinoskip.errors import DataError
from dinoskip.io.files import read_regular, read_text
from dinoskip.io.images import picture_from_bytes
from visualize.gallery.files import FOLDER

LARGEST = 2**30  # bytes of a page that is read: 500 images inside one file have 100 MB
_PHOTO = re.compile(r'src="data:image/jpeg;base64,([^"]+)"')  # in a single file photographs stand in their places
_DATA = re.compile(r'<script type="application/json" id="(data|files)">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True, eq=False)
class WrittenGallery:
    """One page: ``data`` is what gallery.js reads, ``embedded`` the pictures of a page in a single file, as base64."""

    folder: Path
    data: dict[str, Any]
    embedded: dict[str, str]

    @property
    def models(self) -> list[str]:
        """Names of the columns."""
        return list(self.data["models"])

    @property
    def images(self) -> list[str]:
        """Ids of the photographs that all layers are of, in their order."""
        return [image["id"] for image in self.data["images"] if not image["layer"]]

    @property
    def blocks(self) -> list[int]:
        """Blocks of all networks."""
        return list(self.data["blocks"])

    def entry(self, layer: str, column: int, row: int) -> dict[str, Any] | None:
        """Return the data on a cell's pictures of a layer: ``size`` [w, h], ``blocks``, ...; None if it has none."""
        found: dict[str, Any] | None = self.data["cells"][column][row]["layers"].get(layer)
        return found

    def map(self, layer: str, column: int, row: int, block: int) -> np.ndarray | None:
        """The first part of a layer's picture at a block, uint8 (h, w, 4); None where there is none."""
        entry = self.entry(layer, column, row)
        if entry is None or block not in entry["blocks"]:
            return None
        (width, height), at = entry["size"], entry["blocks"].index(block)
        part = (entry.get("parts") or [0])[0]
        sheet = self.picture(f"{layer}-m{column}-i{row:03d}.png")
        return sheet[at * height : (at + 1) * height, part * width : (part + 1) * width]

    def photo(self, row: int) -> np.ndarray:
        """The photograph as the page has it, uint8 (h, w, 3), 512 pixels at most."""
        return self.picture(f"photo-{row:03d}.jpg")[..., :3]

    def truth(self, row: int) -> np.ndarray | None:
        """The label map in its colours, uint8 (h, w, 3); None where there is none."""
        return self.picture(f"label-{row:03d}.png")[..., :3] if self.data["images"][row]["label"] else None

    def picture(self, name: str) -> np.ndarray:
        """A picture of the page as uint8 (h, w, 4). Raises :class:`DataError` for one that is missing or damaged."""
        try:
            inside = self.embedded.get(name)
            content = read_regular(self.folder / FOLDER / name, LARGEST) if inside is None else base64.b64decode(inside)
            return picture_from_bytes(content, f"{self.folder}: {name}")
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(
                f"{self.folder}: the picture {name} cannot be read: {error}", "run the gallery again"
            ) from error


def read_gallery(folder: Path) -> list[WrittenGallery]:
    """Every page of a gallery, the first first. Raises :class:`DataError` for a folder that is none of ours."""
    later = sorted(folder.glob("page-*"), key=lambda path: int(re.sub(r"\D", "", path.name) or 0))
    return [_page(place) for place in (folder, *later)]


def _page(folder: Path) -> WrittenGallery:
    text = read_text(folder / "index.html", LARGEST)
    found = dict(_DATA.findall(text))
    try:
        data, files = json.loads(found["data"]), json.loads(found["files"])
        wanted = {"models", "images", "blocks", "cells"}
        if not wanted <= data.keys():
            raise KeyError(*wanted - data.keys())
    except (KeyError, ValueError, AttributeError) as error:
        raise DataError(
            f"{folder / 'index.html'}: is no page of a gallery ({error})", "run the gallery again"
        ) from None
    photos = {f"photo-{row:03d}.jpg": content for row, content in enumerate(_PHOTO.findall(text))}
    return WrittenGallery(folder, data, {**photos, **files})
