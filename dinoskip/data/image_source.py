"""What a loader asks of a set of images: a folder (folders.py) or tar shards (shards.py)."""

from __future__ import annotations

from collections.abc import Sized
from pathlib import Path
from typing import Protocol

import numpy as np


class Images(Sized, Protocol):
    """Images that are known by number, each with a name."""

    @property
    def root(self) -> Path:
        """Where it lies, for messages."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """One id per image, in the order that numbers them."""
        ...

    def where(self, index: int) -> str:
        """Say where image ``index`` lies, for messages."""
        ...

    def read(self, index: int) -> np.ndarray:
        """Decode image ``index`` to uint8 (H, W, 3); :class:`DataError` if it cannot be."""
        ...

    def size(self, index: int) -> tuple[int, int]:
        """Return its height and width from its header alone; :class:`DataError` if it cannot be read."""
        ...
