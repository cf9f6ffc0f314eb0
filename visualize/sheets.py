"""Contact sheets: PNG (or PDF) grids of pictures with plain labels, for papers and for a first look."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dinoskip.files import write_bytes
from visualize import layers
from visualize.pages import clean

_GAP = 6  # pixels between cells
_INK, _MUTED, _BETWEEN = (28, 28, 31), (110, 109, 115), (138, 137, 145)
_PAPER, _EMPTY = (255, 255, 255), (236, 234, 229)

Colours = Sequence[Mapping[int, Sequence[np.ndarray | None]]]  # what pca_colours returns


def contact_sheet(
    cells: Sequence[Sequence[np.ndarray | None]],
    columns: Sequence[str],
    out: Path,
    *,
    title: str = "",
    cell: int = 132,
    smooth: bool = False,
) -> None:
    """Write a grid of pictures under column headings to ``out`` (``.png`` or ``.pdf``).

    ``cells`` are rows of uint8 (h, w, 3) arrays of any size, the first of a row a photograph; each row takes
    the photograph's shape, at most ``cell`` x ``cell`` pixels a picture. The others are enlarged to it as squares,
    or blended where ``smooth``. None leaves an empty cell. Raises ValueError for rows of unequal length.
    """
    if not cells or any(len(row) != len(columns) for row in cells):
        raise ValueError(f"every row needs {len(columns)} cells, one per heading")
    sizes = [_row_size(row, cell) for row in cells]
    font, heading = _font(min(13, max(11, cell // 10))), _font(16, bold=True)
    margin, line = 2 * _GAP, round(font.size * 1.5)
    top = margin + (round(heading.size * 1.7) if title else 0) + line
    width = 2 * margin + len(columns) * cell + (len(columns) - 1) * _GAP
    height = top + sum(size[0] + _GAP for size in sizes) + margin - _GAP
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((margin, margin), _shorten(clean(title), heading, width - 2 * margin), _INK, heading)
    for number, text in enumerate(columns):
        left = margin + number * (cell + _GAP)
        draw.text((left + cell / 2, top - line), _shorten(clean(text), font, cell), _MUTED, font, anchor="ma")
    y = top
    for row, (row_height, row_width) in zip(cells, sizes, strict=True):
        for number, pixels in enumerate(row):
            x = margin + number * (cell + _GAP) + (cell - row_width) // 2
            if pixels is None:
                draw.rectangle((x, y, x + row_width - 1, y + row_height - 1), fill=_EMPTY)
                continue
            how = Image.Resampling.LANCZOS if number == 0 else _enlarge(smooth)
            sheet.paste(Image.fromarray(np.ascontiguousarray(pixels)).resize((row_width, row_height), how), (x, y))
        y += row_height + _GAP
    _write(sheet, out)


def blocks_sheet(
    photos: Sequence[Path],
    colours: Mapping[int, Sequence[np.ndarray | None]],
    out: Path,
    *,
    title: str = "",
    blocks: Sequence[int] | None = None,
    cell: int = 112,
    smooth: bool = False,
) -> None:
    """Images x blocks of one model: ``colours`` is one entry of :func:`visualize.colours.pca_colours`."""
    blocks = sorted(colours) if blocks is None else blocks
    cells = [
        [layers.photo(path, 2 * cell)[0], *(colours[block][row] for block in blocks)] for row, path in enumerate(photos)
    ]
    contact_sheet(cells, ["image", *(f"block {block}" for block in blocks)], out, title=title, cell=cell, smooth=smooth)


def models_sheet(
    photos: Sequence[Path],
    names: Sequence[str],
    colours: Colours,
    block: int,
    out: Path,
    *,
    title: str = "",
    cell: int = 176,
    smooth: bool = False,
) -> None:
    """Images x models at one block, as figures 4 and 6 of the skipless paper; a model without the block stays empty."""
    cells = [
        [layers.photo(path, 2 * cell)[0], *(own[block][row] if block in own else None for own in colours)]
        for row, path in enumerate(photos)
    ]
    contact_sheet(cells, ["image", *names], out, title=title or f"Block {block}", cell=cell, smooth=smooth)


def strip_sheet(
    photos: Sequence[Path],
    names: Sequence[str],
    colours: Colours,
    block: int,
    out: Path,
    *,
    height: int = 150,
    width: int = 1600,
    smooth: bool = False,
) -> None:
    """A wide picture for the head of a report: photographs in a line, and under each the models' PCA at ``block``.

    Images are taken from the start until the line of ``width`` pixels is full. The background is transparent
    and the labels grey, so that it fits a light and a dark page.
    """
    font = _font(13)
    columns: list[tuple[np.ndarray, int]] = []
    left = round(max(font.getlength(_shorten(clean(name), font, 160)) for name in ["image", *names])) + 2 * _GAP
    x = left
    for path in photos:
        pixels = layers.photo(path, 2 * height)[0]
        wide = round(height * pixels.shape[1] / pixels.shape[0])
        if columns and x + wide > width:
            break
        columns.append((pixels, wide))
        x += wide + _GAP
    sheet = Image.new("RGBA", (x - _GAP, (len(names) + 1) * (height + _GAP) - _GAP), (0, 0, 0, 0))
    draw = ImageDraw.Draw(sheet)
    for number, name in enumerate(["image", *names]):
        y = number * (height + _GAP)
        draw.text((0, y + height / 2), _shorten(clean(name), font, 160), (*_BETWEEN, 255), font, anchor="lm")
        x = left
        for row, (pixels, wide) in enumerate(columns):
            own = pixels if number == 0 else colours[number - 1].get(block, [None] * len(columns))[row]
            if own is None:
                draw.rectangle((x, y, x + wide - 1, y + height - 1), fill=(*_EMPTY, 255))
            else:
                how = Image.Resampling.LANCZOS if number == 0 else _enlarge(smooth)
                sheet.paste(Image.fromarray(np.ascontiguousarray(own)).resize((wide, height), how), (x, y))
            x += wide + _GAP
    _write(sheet, out)


def _write(sheet: Image.Image, out: Path) -> None:
    stream = io.BytesIO()
    if out.suffix.lower() == ".pdf":
        sheet.save(stream, "PDF", resolution=150.0, creationDate=None, modDate=None)
    else:
        sheet.save(stream, "PNG", optimize=True)
    write_bytes(out, stream.getvalue())


def _row_size(row: Sequence[np.ndarray | None], cell: int) -> tuple[int, int]:
    first = next((pixels for pixels in row if pixels is not None), None)
    if first is None:
        return cell, cell
    height, width = first.shape[:2]
    scale = cell / max(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def _enlarge(smooth: bool) -> Image.Resampling:
    return Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST


def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which matplotlib carries: the same everywhere."""
    from matplotlib import get_data_path

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(get_data_path()) / "fonts/ttf" / name), size)


def _shorten(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"
