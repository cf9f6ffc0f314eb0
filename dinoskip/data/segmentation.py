"""Segmentation sets: an image, and a label map of the same size whose every value is checked when it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from dinoskip.data.labelled_images import LabelledImages
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.images import image_size, read_colour_mask, read_mask, sizes_tell, stored_geometry, turn_upright
from dinoskip.runtime.randomness import derive

BACKGROUND = "background"
IGNORE = 255  # the label of pixels that are not scored
ILLEGAL = -1  # in a table: a value that no mask of the set may hold


def voc_palette() -> np.ndarray:
    """Return the VOC colour map, uint8 (256, 3): the bits of the label spread over the channels' high bits."""
    labels = np.arange(256)
    palette = np.zeros((256, 3), dtype=np.int64)
    for bit in range(8):
        for channel in range(3):
            palette[:, channel] |= ((labels >> (3 * bit + channel)) & 1) << (7 - bit)
    return palette.astype(np.uint8)


def save_mask(path: Path, labels: np.ndarray) -> None:
    """Write a label map uint8 (H, W) as PNG, with VOC's colours as its palette."""
    mask = Image.fromarray(labels, "P")
    mask.putpalette(voc_palette().tobytes())
    mask.save(path)


@dataclass(frozen=True, eq=False)
class ClassMap:
    """``table`` int16 (256,): the class number of a mask's value, 255 where ignored, -1 where the value is illegal.

    ``colours``, of masks in colours: the class number of a colour, red in the highest of three bytes, or 255.
    ``names`` are the classes by number. ``palette`` uint8 (256, 3) colours class numbers: VOC's colours, without its
    black first one, which in VOC is the background.
    """

    names: tuple[str, ...]
    table: np.ndarray
    colours: Mapping[int, int] | None = None

    @property
    def palette(self) -> np.ndarray:
        """Colours by class number, uint8 (256, 3); 255 is VOC's off-white."""
        colours = voc_palette()
        return np.concatenate([colours[1:255], colours[:1], colours[255:]])


def class_map(names: Sequence[str], first: int = 0, ignored: Iterable[int] = (IGNORE,)) -> ClassMap:
    """Classes in order: value ``first`` is class 0, the next one class 1; ``ignored`` values are not scored."""
    table = np.full(256, ILLEGAL, dtype=np.int16)
    table[first : first + len(names)] = np.arange(len(names))
    table[list(ignored)] = IGNORE
    return ClassMap(tuple(names), table)


def words(text: str) -> tuple[str, ...]:
    """Names that are written one after the other, with commas or line ends between them."""
    return tuple(name.strip() for name in text.replace("\n", ",").split(",") if name.strip())


@dataclass(frozen=True, eq=False)
class SegmentationDataset(LabelledImages):
    """Images with label maps. ``class_names[v]`` names label value ``v``; value 255 is ignored everywhere.

    ``remap`` says what the values in the files mean; None: they are the class numbers. ``drawn`` says which
    part of the split this is, if it was drawn from it. ``labels_upright``: masks of photographs that EXIF turns are
    drawn upright where their size does not say it; ``labels_by`` says how that is known
    (:mod:`dinoskip.data.orientation`). ``turn`` is EXIF's number of the turn by which masks come to lie as they were
    drawn; 1 leaves them as they are stored.
    """

    of_each, files = ("label_paths",), "label_paths"
    label_paths: tuple[Path, ...]
    palette: np.ndarray = field(default_factory=voc_palette)  # (256, 3) uint8
    remap: ClassMap | None = None
    drawn: str = ""
    labels_upright: bool = False
    labels_by: str = ""
    turn: int = 1

    @property
    def list_name(self) -> str:
        """The list of these images for a result row: ``trainaug``, or ``train, 3000 of 20210 by seed 0``."""
        return f"{self.split}, {self.drawn}" if self.drawn else self.split

    @property
    def num_classes(self) -> int:
        """Number of classes, background included where the set has one."""
        return len(self.class_names)

    def label(self, index: int) -> np.ndarray:
        """Return the label map of image ``index`` as it is seen upright, uint8 (H, W), values < ``num_classes`` or 255.

        Of a photograph that EXIF turns, the mask says which pixels it is for, if its size can: one as large as what is
        stored alone is turned too, one that only fits the upright photograph is left as it is. One that fits both is
        turned unless the set's ``labels_upright`` says that it is upright.
        Raises :class:`DataError` naming the mask if it is damaged, is not as large as its image or holds another value.
        """
        labels = self.drawn_labels(index)
        expected, orientation = stored_geometry(self.image_paths[index])
        if labels.shape == expected:
            unsaid = not sizes_tell(expected, orientation)
            return labels if unsaid and self.labels_upright else turn_upright(labels, orientation)
        if orientation < 5 or labels.shape != expected[::-1]:
            height, width = labels.shape
            raise DataError(
                f"{self.label_paths[index]}: mask is {width}×{height} pixels, its image "
                f"{self.image_paths[index].name} {expected[1]}×{expected[0]}"
            )
        return labels

    def label_frame(self, index: int) -> Literal["upright", "stored"] | None:
        """Return the frame that a mask's size implies of a photograph that EXIF turns; None if it implies neither."""
        expected, orientation = stored_geometry(self.image_paths[index])
        if not sizes_tell(expected, orientation):
            return None
        size = image_size(self.label_paths[index], upright=False)
        return "stored" if (size[::-1] if self.turn >= 5 else size) == expected else "upright"

    def drawn_labels(self, index: int) -> np.ndarray:
        """Return the classes of mask ``index`` as it was drawn, by ``turn``; errors as :meth:`read_labels`."""
        labels = self.read_labels(index)
        return labels if self.turn == 1 else turn_upright(labels, self.turn)

    def read_labels(self, index: int) -> np.ndarray:
        """Return the classes of mask ``index`` as they are stored; :class:`DataError` for a value that is none."""
        path = self.label_paths[index]
        if (
            self.remap is not None
            and self.remap.colours is not None
            and (colours := read_colour_mask(path)) is not None
        ):
            return labels_of_colours(path, colours, self.remap.colours)
        labels, table = read_mask(path), self._table
        counts = np.bincount(labels.ravel(), minlength=256)
        illegal = np.flatnonzero((counts > 0) & (table == ILLEGAL))
        if illegal.size:
            value = int(illegal[0])
            raise DataError(
                f"{path}: label value {value} ({int(counts[value])} pixels) is outside the {self.num_classes} classes "
                f"and not {IGNORE}"
            )
        return labels if self.remap is None else table.astype(np.uint8)[labels]

    @property
    def _table(self) -> np.ndarray:
        return (self.remap or class_map(self.class_names)).table


def labels_of_colours(path: Path, pixels: np.ndarray, colours: Mapping[int, int]) -> np.ndarray:
    """Return the classes of a mask in colours uint8 (H, W, 3), uint8 (H, W).

    Raises :class:`DataError` naming the mask and its commonest colour that stands for no class.
    """
    red, green, blue = np.moveaxis(pixels.astype(np.int64), -1, 0)
    codes, places, counts = np.unique(red << 16 | green << 8 | blue, return_inverse=True, return_counts=True)
    values = np.array([colours.get(int(code), ILLEGAL) for code in codes])
    if (foreign := values == ILLEGAL).any():
        worst = int(np.argmax(np.where(foreign, counts, 0)))
        code, others = int(codes[worst]), int(foreign.sum()) - 1
        more = f" and {others} more colours" if others else ""
        raise DataError(
            f"{path}: colour {code >> 16}, {code >> 8 & 255}, {code & 255} ({int(counts[worst])} pixels){more} stands "
            "for no class",
            "add it to the list of colours; many such colours come of masks that were resized or stored as JPEG",
        )
    return values.astype(np.uint8)[places.reshape(red.shape)]


def draw(ids: Sequence[str], count: int, seed: int) -> tuple[int, ...]:
    """Positions of ``count`` ids, in ascending order: those of smallest ``derive(seed, "subset", id)``.

    The draw depends on the ids alone, not on their order nor on which others are there; a smaller subset of the same
    seed lies inside a larger one. Raises :class:`ConfigError` if there are fewer ids.
    """
    if count > len(ids):
        raise ConfigError(f"subset: {count} images are asked for, the list has {len(ids)}", "ask for fewer, or for all")
    ranked = sorted(range(len(ids)), key=lambda position: (derive(seed, "subset", ids[position]), ids[position]))
    return tuple(sorted(ranked[:count]))


def subset_of(dataset: SegmentationDataset, count: int, seed: int) -> SegmentationDataset:
    """Return ``count`` images of a set, drawn by :func:`draw`."""
    part = dataset.part(draw(dataset.ids, count, seed))
    return replace(part, drawn=f"{count} of {len(dataset)} by seed {seed}")
