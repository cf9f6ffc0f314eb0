"""Sets of videos: frames in order, and a label map of objects for each frame, whose value is the object's number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dinoskip.data.segmentation import class_map
from dinoskip.errors import DataError
from dinoskip.io.images import image_size, read_mask

VOID = 255  # of a label map: background in the scores


@dataclass(frozen=True)
class VideoSequence:
    """One video: its name, its frames in order, and the label map of each; with ``one_object`` 255 is the object 1."""

    name: str
    frames: tuple[Path, ...]
    annotations: tuple[Path, ...]
    one_object: bool = False

    def __len__(self) -> int:
        return len(self.frames)

    def label(self, index: int) -> np.ndarray:
        """Return the label map of a frame, uint8 (H, W): 0 background, 1.. objects, 255 void.

        Raises :class:`DataError` naming the file if it cannot be read or is not as large as the frame.
        """
        labels, expected = read_mask(self.annotations[index]), image_size(self.frames[index])
        if labels.shape != expected:
            raise DataError(
                f"{self.annotations[index]}: mask is {labels.shape[1]}×{labels.shape[0]} pixels, its frame "
                f"{expected[1]}×{expected[0]}"
            )
        return np.where(labels == VOID, 1, labels).astype(np.uint8) if self.one_object else labels


@dataclass(frozen=True, eq=False)
class SequenceDataset:
    """Videos of a split. As a set of images it is that of all frames: ``ids`` are ``video/frame``."""

    name: str
    split: str
    sequences: tuple[VideoSequence, ...]
    class_names: tuple[str, ...] = ()
    left_out: int = 0  # videos of the split, as broken

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """One id for each frame, ``VIDEO/FRAME``."""
        return tuple(f"{video.name}/{frame.stem}" for video in self.sequences for frame in video.frames)

    @cached_property
    def image_paths(self) -> tuple[Path, ...]:
        """Paths of all frames, video after video."""
        return tuple(frame for video in self.sequences for frame in video.frames)

    @property
    def target_files(self) -> tuple[Path, ...]:
        """Paths of the label maps of all videos."""
        return tuple(path for video in self.sequences for path in video.annotations)

    @property
    def value_numbers(self) -> tuple[int, ...]:
        """The object of each value of label maps, 0 background, 255 ignored; 255 is object 1 if a video has one."""
        numbers = class_map(("background", *(f"object {number}" for number in range(1, VOID)))).table
        if any(video.one_object for video in self.sequences):
            numbers[VOID] = 1
        return tuple(numbers.tolist())

    def part(self, positions: Sequence[int]) -> SequenceDataset:
        """Return the videos at these positions."""
        return replace(self, sequences=tuple(self.sequences[i] for i in positions))

    def path(self, index: int) -> Path:
        """Return the path of frame ``index``, counted over all videos."""
        return self.image_paths[index]

    def label(self, index: int) -> np.ndarray:
        """Return the label map of frame ``index``, see :meth:`VideoSequence.label`."""
        for video in self.sequences:
            if index < len(video):
                return video.label(index)
            index -= len(video)
        raise IndexError(index)
