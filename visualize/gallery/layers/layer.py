"""A layer of the gallery: its button, its inputs, its drawing, its scores and its caption.

A layer draws one image by one model at a time. All blocks go into one PNG: a row a block and a column a part (a PCA
basis, an attention head), each map at token resolution and without gaps; gallery.js cuts it up. So moving through
blocks loads nothing, and a gallery is hundreds of files, not tens of thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.segmentation import voc_palette
from dinoskip.plugins import LAST
from visualize import rasters
from visualize.gallery.content import Classes, GalleryImage, GalleryModel

if TYPE_CHECKING:
    from visualize.colours import PcaViews

Colours = NDArray[np.uint8]
Maps = Mapping[int, Sequence[np.ndarray]]  # block -> one map (h, w, ...) a part, in the colours of the sheet
Scores = Mapping[str, Mapping[int, float | None]]  # key of a layer's ``metrics`` -> block -> value
Source = Literal["store", "predictions", "discoveries", "attention", "maps", "surfaces", "strips"]


@dataclass(frozen=True)
class Cell:
    """One image (number ``row`` of the page) to be drawn by one model (number ``column``)."""

    model: GalleryModel
    image: GalleryImage
    row: int
    column: int
    views: PcaViews
    classes: Classes | None


@dataclass(frozen=True)
class Drawn:
    """The maps of a cell, how one picture of them all is encoded, and what gallery.js must know beside their size."""

    maps: Maps
    encode: Callable[[np.ndarray], bytes]
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mark:
    """A colour of the legend between two words: ``style`` is a class of gallery.css."""

    style: str
    after: str
    before: str = ""


@dataclass(frozen=True)
class ImageScore:
    """A score of one image, by which the gallery sorts: its names, digits after the point, and a unit.

    ``layers`` are those whose captions show it; (): the one that has it.
    """

    name: str
    short: str
    digits: int
    unit: str = ""
    layers: tuple[str, ...] = ()


def no_scores(cell: Cell) -> Scores:
    """Return no scores, for layers whose pictures have none."""
    return {}


@dataclass(frozen=True)
class Layer:
    """A layer: a file of this folder and a line in its table.

    ``name`` is on the button; ``source`` the field of :class:`GalleryModel` that it draws from; ``draw`` gives the
    pictures of a cell, None or no maps where there are none; ``parts`` names the columns of a sheet. ``caption``,
    ``marks`` and, with ``of_classes``, the classes' colours explain it; ``alone`` ends the caption where there is one
    model, ``compared`` where there are several. ``scores`` are numbers of a cell, by the keys of ``metrics``.
    ``order`` is the place of its button, the smallest first; those of dinoskip are below 1,000.
    """

    name: str
    source: Source
    draw: Callable[[Cell], Drawn | None]
    caption: str
    parts: Sequence[str] = ()
    marks: Sequence[Mark] = ()
    of_classes: bool = False
    compared: str = ""
    alone: str = ""
    scores: Callable[[Cell], Scores] = no_scores
    metrics: Mapping[str, ImageScore] = field(default_factory=dict)
    order: int = LAST

    def shows(self, image: GalleryImage, key: str) -> bool:
        """Whether the layer called ``key`` has pictures of an image: strips of their own, all others of photographs."""
        return image.layer == key if self.source == "strips" else image.layer in ("", key)

    def parts_of(self, most: int) -> list[str]:
        """Names of the parts on a page of which no cell has more than ``most``."""
        return list(self.parts)[:most] if most and len(self.parts) > most else list(self.parts)

    def caption_of(self, models: int) -> str:
        """The caption on a page of so many models."""
        return f"{self.caption} {self.compared if models > 1 else self.alone}".strip()


VEILED = np.concatenate([np.array([rasters.VEIL_COLOUR], np.uint8), voc_palette()[1:]])


def of_task(source: Source, key: str, cell: Cell) -> dict[int, Any]:
    """Return a task's outputs for a cell's image by block, from the model's ``maps``, ``surfaces`` or ``strips``."""
    by_block: Mapping[int, Mapping[str, Any]] = getattr(cell.model, source).get(key, {})
    return {block: of_images[cell.image.id] for block, of_images in by_block.items() if cell.image.id in of_images}


def values(key: str, cell: Cell, palette: np.ndarray, opacity: Sequence[int] = ()) -> Drawn:
    """Maps of numbers, drawn in the colours of ``palette``; ``opacity`` of each, () for opaque."""
    maps = {block: [np.asarray(value, np.uint8)] for block, value in of_task("maps", key, cell).items()}
    return Drawn(maps, partial(rasters.palette_png, palette=palette, opacity=tuple(opacity)))


def surfaces(
    key: str,
    cell: Cell,
    predicted: Callable[[np.ndarray, np.ndarray], Colours],
    truth: Callable[[np.ndarray, tuple[int, int]], Colours],
) -> Drawn:
    """A predicted and a true map, as a task has them, in colours.

    ``predicted`` colours the predicted map and may look at the true one, ``truth`` the true one at a size (h, w).
    """
    maps: dict[int, Sequence[Colours]] = {}
    true_colours: dict[tuple[int, int], Colours] = {}
    for block, (values, true) in of_task("surfaces", key, cell).items():
        coloured = predicted(values, true)
        size = (coloured.shape[0], coloured.shape[1])
        if size not in true_colours:
            true_colours[size] = truth(true, size)
        maps[block] = coloured, true_colours[size]
    return Drawn(maps, rasters.png, {"parts": [0, 1]})


def strips(key: str, cell: Cell, opacity: int) -> Drawn:
    """Return the predicted and the true map to be drawn in VOC's colours of this opacity; 0 is transparent."""
    encode = partial(rasters.palette_png, palette=voc_palette(), opacity=(0, *[opacity] * 255))
    return Drawn(of_task("strips", key, cell), encode, {"parts": [0, 1]})
