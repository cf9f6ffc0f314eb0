"""Strips of a video for the gallery: a few of its frames side by side, and the masks that every block gave them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dinoskip.data.segmentation import voc_palette
from dinoskip.io.images import read_image
from dinoskip_video.sequences import VideoSequence

SHOWN = 5  # frames, the first and the last among them
HEIGHT = 160  # pixels of a frame on the strip


class Strip:
    """Collects frames and masks of one video; :meth:`write` lays them side by side."""

    def __init__(self, sequence: VideoSequence) -> None:
        self._frames = tuple(dict.fromkeys(np.linspace(0, len(sequence) - 1, SHOWN).round().astype(int).tolist()))
        self._sequence = sequence
        self._truth: list[NDArray[np.uint8]] = []
        self._masks: dict[str, list[NDArray[np.uint8]]] = {}

    def shows(self, index: int) -> bool:
        """Whether this frame is on the strip."""
        return index in self._frames

    def add_frame(self, index: int, truth: NDArray[np.uint8]) -> None:
        """Take the true label map of a frame, if it is shown."""
        if self.shows(index):
            self._truth.append(_small(truth))

    def add(self, label: str, index: int, predicted: NDArray[np.uint8]) -> None:
        """Take the label map that the blocks ``label`` gave a frame, if it is shown."""
        if self.shows(index):
            self._masks.setdefault(label, []).append(_small(predicted))

    def write(self, folder: Path) -> None:
        """Write ``frames.jpg``, ``truth.png`` and ``block{label}.png`` (palette) into ``folder``.

        The first frame's masks are the true ones, which were given.
        """
        folder.mkdir(parents=True)
        photos = [Image.fromarray(read_image(self._sequence.frames[index])) for index in self._frames]
        size = self._truth[0].shape[::-1]
        frames = [np.asarray(photo.resize((size[0], size[1]), Image.Resampling.LANCZOS)) for photo in photos]
        Image.fromarray(np.concatenate(frames, 1)).save(folder / "frames.jpg", "JPEG", quality=88)
        _write_labels(folder / "truth.png", self._truth)
        for label, masks in self._masks.items():
            _write_labels(folder / f"block{label}.png", [self._truth[0], *masks])


def _small(labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A label map at the strip's height, by nearest neighbour."""
    height, width = labels.shape
    wide = max(1, round(width * HEIGHT / height))
    return np.asarray(Image.fromarray(labels).resize((wide, HEIGHT), Image.Resampling.NEAREST))


def _write_labels(path: Path, maps: list[NDArray[np.uint8]]) -> None:
    image = Image.fromarray(np.concatenate(maps, 1), "P")
    image.putpalette(voc_palette().tobytes())
    image.save(path, "PNG")
