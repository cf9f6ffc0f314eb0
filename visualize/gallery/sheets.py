"""Contact sheets: grids of pictures with plain labels, for papers and for a first look, as PNG and PDF.

In a PDF the labels are text and the pictures are stored without loss, each token a square of pixels.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from dinoskip.errors import ConfigError, did_you_mean
from dinoskip.io.files import write_bytes
from visualize import rasters
from visualize.figures.drawing import fitted, label_font
from visualize.pages import clean

_GAP = 6  # pixels between cells
_PIXELS = 150  # an inch
_INK, _MUTED, _BETWEEN = (28, 28, 31), (110, 109, 115), (138, 137, 145)
_PAPER, _EMPTY = (255, 255, 255), (236, 234, 229)
_BLOCK_CELL, _MODEL_CELL, _PLAIN_CELL = 112, 176, 84  # pixels of a picture's side
_BLOCKS_IMAGES = 8  # on a sheet of all blocks, unless others are chosen
_PLAIN_BYTES, _PLAIN_COLOURS = 250_000, (256, 128, 64, 32)  # a sheet to commit: as many colours as fit

Colours = Sequence[Mapping[int, Sequence[np.ndarray | None]]]  # what PcaViews holds


@dataclass(frozen=True)
class _Label:
    """A line of text at (x, y) pixels, in PIL's way of anchoring ("la" left top, "ma" middle top)."""

    x: float
    y: float
    text: str
    size: int
    colour: tuple[int, int, int]
    anchor: str = "la"
    bold: bool = False


@dataclass
class _Sheet:
    """PictureFiles on paper, and the labels that go on top."""

    image: Image.Image
    labels: list[_Label] = field(default_factory=list)
    made_by: str = ""  # of a figure that only the same program may replace


def chosen_images(ids: Sequence[str], chosen: int | Sequence[str] | None, setting: str) -> list[int]:
    """Positions of the images that ``setting`` chooses: the first so many, or these ids, or all of them (None)."""
    if chosen is None or isinstance(chosen, int):
        return list(range(len(ids)))[:chosen]
    for name in chosen:
        if name not in ids:
            raise ConfigError(f"{setting}: no image {clean(name)!r} is shown", did_you_mean(name, list(ids)))
    return [list(ids).index(name) for name in chosen]


def write_sheets(
    images: Mapping[str, Path],
    names: Sequence[str],
    colours: Colours,
    block: int,
    out: Path,
    sheet: int | Sequence[str] | None = None,
    strip: Sequence[int] | None = None,
    formats: Sequence[str] = ("pdf", "png"),
) -> list[Path]:
    """Write all sheets of a gallery of ``images`` (photographs by id) into the folder ``out``; return the files.

    ``sheet-block{block}`` is images × models at one block (figures 4 and 6 of the skipless paper), ``sheet-model{n}``
    images × blocks of one model (of the first eight images unless ``sheet`` chooses), each in ``formats``;
    ``sheet-block{block}-plain.png`` is the first without photographs; ``strip.png`` heads a report, each model
    at its own block of ``strip`` (default: ``block``).
    Raises :class:`ConfigError` for an id that is not among ``images``.
    """
    photos, rows = list(images.values()), chosen_images(list(images), sheet, "gallery.sheet")
    few = rows if sheet is not None else rows[:_BLOCKS_IMAGES]
    strip_sheet(photos, names, colours, strip or [block] * len(names), out / "strip.png")
    sheets = [out / "strip.png", out / f"sheet-block{block}-plain.png"]
    plain_sheet(len(rows), names, [_of(maps, rows) for maps in colours], block, sheets[-1])
    if not formats:
        return sheets
    files = [out / f"sheet-block{block}.{kind}" for kind in formats]
    models_sheet(_picked(photos, rows), names, [_of(maps, rows) for maps in colours], block, *files)
    sheets += files
    for number, maps in enumerate(colours):
        files = [out / f"sheet-model{number}.{kind}" for kind in formats]
        title = f"{names[number]}: PCA of every block"
        blocks_sheet(_picked(photos, few), _of(maps, few), *files, title=title)
        sheets += files
    return sheets


def _picked(photos: Sequence[Path], rows: Sequence[int]) -> list[Path]:
    return [photos[row] for row in rows]


def _of(maps: Mapping[int, Sequence[np.ndarray | None]], rows: Sequence[int]) -> dict[int, Sequence[np.ndarray | None]]:
    return {block: [pictures[row] for row in rows] for block, pictures in maps.items()}


def contact_sheet(
    cells: Sequence[Sequence[np.ndarray | None]],
    columns: Sequence[str],
    *files: Path,
    title: str = "",
    cell: int = 132,
    photographs: bool = True,
    made_by: str = "",
) -> None:
    """Write a grid of pictures under column headings to ``files`` (``.png`` or ``.pdf``).

    ``cells`` are rows of uint8 (h, w, 3) arrays of any size, the first of a row a photograph; each row takes
    the photograph's shape, at most ``cell`` x ``cell`` pixels a picture. The others are enlarged to it as squares.
    Without ``photographs`` the first picture is as the others, and a PNG has the most of 256, 128, 64 or 32 colours
    with which it is below 250 kB, or 32. None leaves an empty cell. The file says by which program it was ``made_by``,
    if one is given. Raises ValueError for rows of unequal length.
    """
    if not cells or any(len(row) != len(columns) for row in cells):
        raise ValueError(f"every row needs {len(columns)} cells, one per heading")
    sizes = [_row_size(row, cell) for row in cells]
    size, heading = min(13, max(11, cell // 10)), 16
    margin, line, width = 2 * _GAP, round(size * 1.5), 4 * _GAP + len(columns) * cell + (len(columns) - 1) * _GAP
    headings = [_wrapped(text, size, cell, 3) for text in columns]
    depth = max(len(lines) for lines in headings)
    top = margin + (round(heading * 1.7) if title else 0) + depth * line
    sheet = _Sheet(Image.new("RGB", (width, top + sum(h + _GAP for h, _ in sizes) + margin - _GAP), _PAPER))
    sheet.made_by = made_by
    if title:
        (text,) = _wrapped(title, heading, 0.9 * (width - 2 * margin), 1)  # bold letters are wider
        sheet.labels.append(_Label(margin, margin, text, heading, _INK, bold=True))
    for number, lines in enumerate(headings):
        left = margin + number * (cell + _GAP)
        for index, text in enumerate(lines):
            y = top - (len(lines) - index) * line
            sheet.labels.append(_Label(left + cell / 2, y, text, size, _MUTED, "ma"))
    draw, y = ImageDraw.Draw(sheet.image), top
    for row, (row_height, row_width) in zip(cells, sizes, strict=True):
        for number, pixels in enumerate(row):
            x = margin + number * (cell + _GAP) + (cell - row_width) // 2
            if pixels is None:
                draw.rectangle((x, y, x + row_width - 1, y + row_height - 1), fill=_EMPTY)
            else:
                sheet.image.paste(_scaled(pixels, (row_width, row_height), photographs and number == 0), (x, y))
        y += row_height + _GAP
    for out in files:
        _write(sheet, out, small=not photographs)


def blocks_sheet(
    photos: Sequence[Path], colours: Mapping[int, Sequence[np.ndarray | None]], *files: Path, title: str = ""
) -> None:
    """Images x blocks of one model: ``colours`` is one entry of those of :class:`visualize.colours.PcaViews`."""
    blocks = sorted(colours)
    cells = [
        [rasters.photo(path, 2 * _BLOCK_CELL)[0], *(colours[block][row] for block in blocks)]
        for row, path in enumerate(photos)
    ]
    contact_sheet(cells, ["image", *(f"block {block}" for block in blocks)], *files, title=title, cell=_BLOCK_CELL)


def models_sheet(photos: Sequence[Path], names: Sequence[str], colours: Colours, block: int, *files: Path) -> None:
    """Images x models at one block, as figures 4 and 6 of the skipless paper; a model without the block stays empty."""
    cells = [
        [rasters.photo(path, 2 * _MODEL_CELL)[0], *(maps[block][row] if block in maps else None for maps in colours)]
        for row, path in enumerate(photos)
    ]
    contact_sheet(cells, ["image", *names], *files, title=f"Block {block}", cell=_MODEL_CELL)


def plain_sheet(count: int, names: Sequence[str], colours: Colours, block: int, out: Path) -> None:
    """Write a sheet without photographs, which may not be passed on: ``count`` images, small enough to commit.

    Every token is a square of whole pixels, as large as fits :data:`_PLAIN_CELL` pixels a picture.
    """
    cells = [[maps[block][row] if block in maps else None for maps in colours] for row in range(count)]
    longest = max((max(picture.shape[:2]) for row in cells for picture in row if picture is not None), default=1)
    cell = longest * max(1, _PLAIN_CELL // longest)
    contact_sheet(cells, names, out, title=f"Block {block}", cell=cell, photographs=False)


def strip_sheet(
    photos: Sequence[Path],
    names: Sequence[str],
    colours: Colours,
    blocks: Sequence[int],
    out: Path,
    *,
    height: int = 150,
    width: int = 1600,
) -> None:
    """A wide picture for the head of a report: photographs in a line, under each the models' PCA at their ``blocks``.

    Images are taken from the start until the line of ``width`` pixels is full. The background is transparent
    and the labels grey, so that it fits a light and a dark page.
    """
    size, columns = 18, list[tuple[np.ndarray, int]]()
    titles = [f"{name}, block {block}" for name, block in zip(names, blocks, strict=True)]
    labels = [_wrapped(title, size, 190, 4) for title in ["image", *titles]]
    left = round(max(label_font(size).getlength(line) for lines in labels for line in lines)) + 2 * _GAP
    x = left
    for path in photos:
        pixels = rasters.photo(path, 2 * height)[0]
        wide = round(height * pixels.shape[1] / pixels.shape[0])
        if columns and x + wide > width:
            break
        columns.append((pixels, wide))
        x += wide + _GAP
    sheet = _Sheet(Image.new("RGBA", (x - _GAP, (len(names) + 1) * (height + _GAP) - _GAP), (0, 0, 0, 0)))
    draw = ImageDraw.Draw(sheet.image)
    for number, lines in enumerate(labels):
        y = number * (height + _GAP)
        for index, text in enumerate(lines):
            middle = y + height / 2 + (index - (len(lines) - 1) / 2) * 1.4 * size
            sheet.labels.append(_Label(0, middle, text, size, _BETWEEN, "lm"))
        x = left
        for row, (pixels, wide) in enumerate(columns):
            shown = {} if number == 0 else colours[number - 1]
            column_pixels = pixels if number == 0 else shown.get(blocks[number - 1], [None] * len(columns))[row]
            if column_pixels is None:
                draw.rectangle((x, y, x + wide - 1, y + height - 1), fill=(*_EMPTY, 255))
            else:
                sheet.image.paste(_scaled(column_pixels, (wide, height), number == 0), (x, y))
            x += wide + _GAP
    _write(sheet, out)


def _scaled(pixels: np.ndarray, size: tuple[int, int], photo: bool) -> Image.Image:
    how = Image.Resampling.LANCZOS if photo else Image.Resampling.NEAREST
    return Image.fromarray(np.ascontiguousarray(pixels)).resize(size, how)


def _row_size(row: Sequence[np.ndarray | None], cell: int) -> tuple[int, int]:
    first = next((pixels for pixels in row if pixels is not None), None)
    if first is None:
        return cell, cell
    height, width = first.shape[:2]
    scale = cell / max(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def _write(sheet: _Sheet, out: Path, *, small: bool = False) -> None:
    stream = io.BytesIO()
    if out.suffix.lower() == ".pdf":
        _save_pdf(sheet, stream)
    else:
        image = sheet.image.copy()  # without labels, which a PDF of the same sheet has as text
        draw = ImageDraw.Draw(image)
        for label in sheet.labels:
            fill = (*label.colour, 255) if image.mode == "RGBA" else label.colour
            draw.text((label.x, label.y), label.text, fill, label_font(label.size, label.bold), anchor=label.anchor)
        if small:
            stream = _fewer_colours(sheet.image, image)
        else:
            about = PngInfo()
            if sheet.made_by:
                about.add_text("Software", sheet.made_by)
            # zlib's usual level: the highest, as ``optimize`` asks, takes five times as long for .4 % fewer bytes
            image.save(stream, "PNG", pnginfo=about)
    write_bytes(out, stream.getvalue())


def _fewer_colours(pictures: Image.Image, image: Image.Image) -> io.BytesIO:
    """``image`` as PNG in colours of ``pictures``, which have no labels yet, and the greys that labels need."""
    greys = np.linspace(_INK, _PAPER, 6).round().astype(np.uint8)
    for colours in _PLAIN_COLOURS:
        stream, palette = io.BytesIO(), Image.new("P", (1, 1))
        shown_colours = pictures.quantize(colours - len(greys)).getpalette() or []
        palette.putpalette([*greys.ravel().tolist(), *shown_colours])
        image.quantize(palette=palette, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
        if stream.tell() < _PLAIN_BYTES:
            break
    return stream


def _save_pdf(sheet: _Sheet, stream: io.BytesIO) -> None:
    """One page of the sheet's size: the pictures as they are, the labels as text."""
    import matplotlib  # heavy, for the PDF alone
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.figure import Figure

    width, height = sheet.image.size
    across = {"l": "left", "m": "center"}
    down = {"a": "top", "m": "center"}
    with matplotlib.rc_context({"pdf.fonttype": 42, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(width / _PIXELS, height / _PIXELS))
        axes = figure.add_axes((0, 0, 1, 1), frameon=False, xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
        pixels = np.asarray(sheet.image.convert("RGBA"))
        axes.imshow(pixels, interpolation="none", extent=(0, width, height, 0), aspect="auto")
        for label in sheet.labels:
            axes.text(
                label.x, label.y, label.text.replace("$", r"\$"), fontsize=label.size * 72 / _PIXELS,
                color=[part / 255 for part in label.colour], fontweight="bold" if label.bold else "normal",
                ha=across[label.anchor[0]], va=down[label.anchor[1]],
            )  # fmt: skip
        canvas: Any = FigureCanvasPdf(figure)
        canvas.print_pdf(
            stream, metadata={"CreationDate": None, **({"Creator": sheet.made_by} if sheet.made_by else {})}
        )


def _wrapped(text: str, size: int, width: float, lines: int = 2) -> list[str]:
    """``text`` on at most ``lines`` lines of ``width`` pixels, ``size`` pixels high."""
    return fitted(text, width / 72, size, lines).replace(r"\$", "$").split("\n")
