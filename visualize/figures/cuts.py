"""One photograph under many cuts: rows of features, columns of tau."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from visualize import rasters
from visualize.gallery.sheets import contact_sheet

_LINE = (255, 140, 0)  # predictions are orange in every picture (docs/tokencut.md)
MADE_BY = "dinoskip cuts"  # in a figure's file: this program may replace it
_LONGEST = 240  # pixels of a picture's longer side


@dataclass(frozen=True, eq=False)
class CutPicture:
    """One cut: ``mask`` bool (h, w) of its foreground at token resolution, ``box`` x1 y1 x2 y2 in pixels.

    An image without a cut (``is_cut`` False) is crossed out, and its box not drawn.
    """

    mask: np.ndarray
    box: tuple[int, int, int, int]
    is_cut: bool


def cuts_figure(
    photo: np.ndarray,
    patch_size: int,
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[CutPicture]]],
    out: Path,
    *,
    title: str = "",
) -> None:
    """Write ``out`` (``.png`` or ``.pdf``): the photograph uint8 (H, W, 3), then a row of cuts for each of ``rows``.

    Masks start at the photograph's top left corner and may overhang it. Raises ValueError for rows of unequal length.
    """
    scale = _LONGEST / max(photo.shape[:2])
    height, width = (max(1, round(scale * side)) for side in photo.shape[:2])
    small = np.asarray(Image.fromarray(photo).resize((width, height), Image.Resampling.LANCZOS))
    cells = [
        [_with_label(small, label), *(_drawn(photo, small, cut, patch_size, scale) for cut in cuts)]
        for label, cuts in rows
    ]
    contact_sheet(cells, ["", *columns], out, title=title, cell=_LONGEST, made_by=MADE_BY)


def _with_label(small: np.ndarray, label: str) -> np.ndarray:
    """The photograph with what a row is of on a dark band."""
    from visualize.figures.drawing import label_font  # matplotlib

    picture = Image.fromarray(small)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, picture.width, 22), fill=rasters.VEIL_COLOUR)
    draw.text((6, 4), label, "white", label_font(13))
    return np.asarray(picture)


def _drawn(photo: np.ndarray, small: np.ndarray, cut: CutPicture, patch: int, scale: float) -> np.ndarray:
    height, width = small.shape[:2]
    inside = cut.mask.repeat(patch, 0).repeat(patch, 1)[: photo.shape[0], : photo.shape[1]]
    shade = np.asarray(Image.fromarray(inside).resize((width, height), Image.Resampling.NEAREST))
    picture = Image.fromarray(np.where(shade[..., None], small, (0.35 * small).astype(np.uint8)))
    draw = ImageDraw.Draw(picture)
    if cut.is_cut:
        x1, y1, x2, y2 = (round(side * scale) for side in cut.box)
        draw.rectangle((x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=_LINE, width=2)
    else:
        draw.line((0, 0, width, height), fill="white", width=3)
        draw.line((0, height, width, 0), fill="white", width=3)
    return np.asarray(picture)
