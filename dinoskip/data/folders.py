"""Folders of images, as sets to train on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dinoskip.data.listing import fingerprint, list_images
from dinoskip.io.images import image_size, read_encoded, read_image


@dataclass(frozen=True)
class ImageFolder:
    """Images below one folder. ``names`` are relative POSIX names and serve as ids."""

    root: Path
    names: tuple[str, ...]

    @classmethod
    def open(cls, root: str | Path) -> ImageFolder:
        """List the folder; :class:`DataError` if it is missing or holds no image."""
        return cls(Path(root), list_images(root))

    @property
    def record(self) -> dict[str, Any]:
        """The run's record of changed pixels: it is empty, because they are as they were."""
        return {}

    @property
    def ids(self) -> tuple[str, ...]:
        """One id per image: its relative name."""
        return self.names

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> Path:
        """Return the path of image ``index``."""
        return self.root / self.names[index]

    def where(self, index: int) -> str:
        """Say where image ``index`` lies, for messages."""
        return str(self.path(index))

    def encoded(self, index: int) -> bytes:
        """Return the bytes of image ``index``; :class:`DataError` if they cannot be read."""
        return read_encoded(self.path(index))

    def read(self, index: int) -> np.ndarray:
        """Decode image ``index`` to uint8 (H, W, 3); :class:`DataError` if it cannot be."""
        return read_image(self.path(index))

    def size(self, index: int) -> tuple[int, int]:
        """Return its height and width from its header alone; :class:`DataError` if it cannot be read."""
        return image_size(self.path(index))

    @property
    def files(self) -> list[Path]:
        """Paths of all images, in the order of their numbers."""
        return [self.path(index) for index in range(len(self.names))]

    def fingerprint(self) -> str:
        """Hex sha256 of the set, see :func:`dinoskip.data.listing.fingerprint`."""
        return fingerprint(self.root, self.names)
