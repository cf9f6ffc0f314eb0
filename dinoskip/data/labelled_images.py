"""A split of images with labels, whatever the labels are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images of a split by id. ``of_each`` names what else has an entry an image, ``files`` the labels' files."""

    of_each: ClassVar[tuple[str, ...]]
    files: ClassVar[str]
    name: str
    split: str
    ids: tuple[str, ...]
    image_paths: tuple[Path, ...]
    _: KW_ONLY
    class_names: tuple[str, ...] = ()
    left_out: int = 0  # of the split, as broken

    def __len__(self) -> int:
        return len(self.ids)

    def path(self, index: int) -> Path:
        """Return the path of image ``index``, or of the file that holds it with its labels."""
        return self.image_paths[index]

    @property
    def target_files(self) -> tuple[Path, ...]:
        """The files that hold what images are measured against."""
        paths: tuple[Path, ...] = getattr(self, self.files)
        return paths

    def part(self, chosen: Sequence[int]) -> Self:
        """Return the images at these positions."""
        fields = ("ids", "image_paths", *self.of_each)
        part: dict[str, Any] = {name: tuple(getattr(self, name)[i] for i in chosen) for name in fields}
        return replace(self, **part)
