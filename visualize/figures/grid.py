"""Images × networks and blocks as one figure for a paper: PDF with text, lossless cells and boxes as lines, and PNG.

Both have one geometry, whole pixels at the figure's resolution. A map keeps its own values: in the PDF at its own
resolution, each value repeated a whole number of times, as some viewers smooth images of few pixels; in the PNG by
nearest neighbour.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from dinoskip.errors import ConfigError, did_you_mean
from dinoskip.io.files import write_bytes
from visualize.pages import clean

MADE_BY = "dinoskip figure"  # in the files: this program may replace them
MM = 25.4  # millimetres an inch
FONT = "DejaVu Sans"  # which matplotlib carries
_GAP, _BETWEEN = 0.6, 1.8  # mm between cells, and between networks
_TALLEST = 4 / 3  # height over width of a row: a taller photograph is narrower than its column
_LEADING = 1.25  # height of a line over the size of its letters
_INSIDE = 0.97  # of a column's width: rasters round letters to pixels, a little wider than the font says
_EMPTY, _LINE, _INK = (236, 234, 229), (255, 140, 0), "#1c1c1f"
_BOX, _RULE = 1.0, 0.5  # points: a box round an object, the line below a network's name
_BREAKS = " -_,|/;"

Pixels = np.ndarray
Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class GridCell:
    """One picture: uint8 (h, w, 3) of any resolution, which takes the shape of its row's image.

    A ``photo`` is resampled, a map is not. ``box`` is x1 y1 x2 y2 as shares of width and height.
    """

    pixels: Pixels
    photo: bool = False
    box: Box | None = None


@dataclass(frozen=True)
class GridGroup:
    """Columns under one heading, "" for none, with a heading each.

    Where columns are too narrow for a word of these, all groups have ``short`` headings and are called ``short_name``.
    """

    name: str
    columns: Sequence[str]
    short: Sequence[str] = ()
    short_name: str = ""


@dataclass(frozen=True)
class GridStyle:
    """Width of the figure in mm, pixels an inch, and font and size in points of its letters."""

    width_mm: float = 174.0
    dpi: int = 300
    font: str = FONT
    size: float = 8.0


@dataclass(frozen=True)
class _Place:
    """Positions of cells and letters, in pixels from the top left corner."""

    width: int
    height: int
    lefts: Sequence[int]
    cell: int
    tops: Sequence[tuple[int, int]]
    text: Sequence[tuple[float, float, str]]
    rules: Sequence[tuple[int, int, int]]


def write_grid(
    groups: Sequence[GridGroup], rows: Sequence[Sequence[GridCell | None]], out: Path, style: GridStyle | None = None
) -> tuple[Path, Path]:
    """Write ``out`` with the endings .pdf and .png; return both.

    ``rows`` have a cell for every column of every group in turn, the first with a cell gives a row its shape; None
    stays empty. Raises ValueError for rows of another length, :class:`ConfigError` for a font that is not installed or
    columns too narrow for their headings or a token.
    """
    style = style or GridStyle()
    if not rows or any(len(row) != sum(len(group.columns) for group in groups) for row in rows):
        raise ValueError("every row needs a cell for every column")
    letters = _Letters(style)
    place = _placed(groups, rows, style, letters)
    pdf, png = out.with_suffix(".pdf"), out.with_suffix(".png")
    write_bytes(pdf, _pdf(place, rows, style, letters))
    write_bytes(png, _png(place, rows, style, letters))
    return pdf, png


class _Letters:
    """A font, and how wide text is in it."""

    def __init__(self, style: GridStyle) -> None:
        from matplotlib import font_manager  # matplotlib is heavy, here and below

        self.size = style.size
        try:
            if Path(style.font).suffix.lower() in {".ttf", ".otf"}:
                font_manager.fontManager.addfont(style.font)
                family = font_manager.FontProperties(fname=style.font).get_name()
            else:
                family = style.font
            self.properties = font_manager.FontProperties(family=family, size=style.size)
            font_manager.findfont(self.properties, fallback_to_default=False)
        except (ValueError, OSError, RuntimeError):
            there = sorted({font.name for font in font_manager.fontManager.ttflist})
            hint = did_you_mean(style.font, there) or f"there are {', '.join(there[:8])}, ...; or name a .ttf file"
            raise ConfigError(f"--font {style.font}: is no font of this machine", hint) from None

    def inches(self, text: str) -> float:
        """Width of one line."""
        from matplotlib.textpath import text_to_path  # heavy

        if not text:
            return 0.0
        points, _, _ = text_to_path.get_text_width_height_descent(text, self.properties, ismath=False)
        return float(points) / 72

    def wrapped(self, text: str, width: float) -> list[str]:
        """All of ``text`` in lines of at most ``width`` inches, broken at spaces and dashes, else between letters."""
        rest, lines, width = clean(text, 400), list[str](), _INSIDE * width
        while self.inches(rest) > width:
            end = next((at for at in range(len(rest) - 1, 0, -1) if self.inches(rest[:at].rstrip()) <= width), 0)
            if not end:
                raise ConfigError(
                    f"a column of {width * MM:.1f} mm is too narrow for {rest[:1]!r} in {self.size:g} points",
                    "fewer --blocks or --models, a larger --width-mm or a smaller --font-size",
                )
            cut = max((rest.rfind(mark, 1, end) for mark in _BREAKS), default=-1) + 1 or end
            lines.append(rest[:cut].rstrip())
            rest = rest[cut:].lstrip()
        return [*lines, rest]


def _placed(
    groups: Sequence[GridGroup], rows: Sequence[Sequence[GridCell | None]], style: GridStyle, letters: _Letters
) -> _Place:
    """The geometry: equal columns that fill the width, rows of the images' shapes, headings above."""
    pixel = style.dpi / MM
    width, gap, between = round(style.width_mm * pixel), max(1, round(_GAP * pixel)), round(_BETWEEN * pixel)
    count = sum(len(group.columns) for group in groups)
    free = width - gap * (count - len(groups)) - between * (len(groups) - 1)
    cell = free // count
    widest = max((c.pixels.shape[1] for row in rows for c in row if c is not None and not c.photo), default=1)
    if cell < min(widest, 16):
        raise ConfigError(
            f"{count} columns in {style.width_mm:g} mm at {style.dpi} dpi are {max(0, cell)} pixels each",
            "fewer --blocks or --models, or a larger --width-mm or --dpi",
        )
    lefts: list[int] = []
    spans: list[tuple[int, int]] = []
    left = (free - cell * count) // 2
    for group in groups:
        starts = [left + number * (cell + gap) for number in range(len(group.columns))]
        lefts += starts
        spans.append((starts[0], starts[-1] + cell))
        left = starts[-1] + cell + between
    words = (word for group in groups for text in group.columns for word in text.split())
    if any(letters.inches(word) > _INSIDE * cell / style.dpi for word in words):
        groups = [GridGroup(g.short_name or g.name, g.short or g.columns) for g in groups]
    names = [letters.wrapped(g.name, (b - a) / style.dpi) for g, (a, b) in zip(groups, spans, strict=True)]
    heads = [letters.wrapped(text, cell / style.dpi) for group in groups for text in group.columns]
    line = _LEADING * letters.size / 72 * style.dpi
    above = line / 4  # letters with accents are higher than the size of a font
    upper = line * max((len(lines) for g, lines in zip(groups, names, strict=True) if g.name), default=0)
    upper += above
    top = upper + (line / 2 if upper > above else 0) + line * max(map(len, heads)) + gap
    text = [
        ((a + b) / 2, upper - (len(lines) - at) * line, part)
        for (a, b), lines in zip(spans, names, strict=True)
        for at, part in enumerate(lines)
    ]
    text += [
        (start + cell / 2, top - gap - (len(lines) - at) * line, part)
        for start, lines in zip(lefts, heads, strict=True)
        for at, part in enumerate(lines)
    ]
    rules = [(a, b, round(upper + line / 4)) for g, (a, b) in zip(groups, spans, strict=True) if g.name]
    tops: list[tuple[int, int]] = []
    y = math.ceil(top)
    for row in rows:
        shape = next((c.pixels.shape for c in row if c is not None), (1, 1))
        high = max(1, round(cell * min(_TALLEST, shape[0] / shape[1])))
        tops.append((y, high))
        y += high + gap
    return _Place(width, y - gap, lefts, cell, tops, text, rules)


def _cells(
    place: _Place, rows: Sequence[Sequence[GridCell | None]]
) -> Iterator[tuple[GridCell | None, tuple[int, int, int, int]]]:
    """Every cell with its left, top, width and height in pixels."""
    for row, (top, high) in zip(rows, place.tops, strict=True):
        shape = next((c.pixels.shape for c in row if c is not None), (1, 1))
        wide = min(place.cell, max(1, round(high * shape[1] / shape[0])))
        for cell, left in zip(row, place.lefts, strict=True):
            yield cell, (left + (place.cell - wide) // 2, top, wide, high)


def _scaled(cell: GridCell, size: tuple[int, int]) -> Pixels:
    how = Image.Resampling.LANCZOS if cell.photo else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(np.ascontiguousarray(cell.pixels)).resize(size, how))


def _repeated(cell: GridCell, size: tuple[int, int]) -> Pixels:
    """Return a PDF's pixels: a photograph at the figure's resolution, a map with each value a whole number of times."""
    if cell.photo:
        return _scaled(cell, size)
    times = max(1, math.ceil(size[0] / cell.pixels.shape[1]))
    return cell.pixels.repeat(times, 0).repeat(times, 1)


def _canvas(place: _Place, style: GridStyle, letters: _Letters) -> tuple[Any, Any]:
    """A figure and axes in pixels of the whole of it, with letters and lines."""
    from matplotlib.figure import Figure  # heavy

    figure = Figure(figsize=(place.width / style.dpi, place.height / style.dpi), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[])
    axes.set(xlim=(0, place.width), ylim=(place.height, 0), autoscale_on=False)
    for x, y, text in place.text:
        axes.text(x, y, text.replace("$", r"\$"), fontproperties=letters.properties, color=_INK, ha="center", va="top")
    for start, end, y in place.rules:
        axes.plot((start, end), (y, y), color=_INK, linewidth=_RULE, solid_capstyle="butt")
    return figure, axes


def _pdf(place: _Place, rows: Sequence[Sequence[GridCell | None]], style: GridStyle, letters: _Letters) -> bytes:
    import matplotlib  # heavy, as below
    from matplotlib.backends.backend_pdf import FigureCanvasPdf  # heavy
    from matplotlib.patches import Rectangle  # heavy

    # embedded TrueType, which journals ask for; each cell an image of its own, not one of all at the figure's dpi
    with matplotlib.rc_context({"pdf.fonttype": 42, "image.composite_image": False}):
        figure, axes = _canvas(place, style, letters)
        for cell, (left, top, wide, high) in _cells(place, rows):
            if cell is None:
                axes.add_patch(Rectangle((left, top), wide, high, color=[part / 255 for part in _EMPTY], linewidth=0))
                continue
            extent = (left, left + wide, top + high, top)
            axes.imshow(_repeated(cell, (wide, high)), interpolation="none", extent=extent, aspect="auto")
            if cell.box is not None:
                x1, y1, x2, y2 = cell.box
                corner = (left + x1 * wide, top + y1 * high)
                sides = ((x2 - x1) * wide, (y2 - y1) * high)
                colour = [part / 255 for part in _LINE]
                axes.add_patch(Rectangle(corner, *sides, fill=False, edgecolor=colour, linewidth=_BOX))
        axes.set(xlim=(0, place.width), ylim=(place.height, 0))
        stream, canvas = io.BytesIO(), FigureCanvasPdf(figure)
        print_pdf: Any = canvas.print_pdf
        print_pdf(stream, metadata={"CreationDate": None, "Creator": MADE_BY})
    return stream.getvalue()


def _png(place: _Place, rows: Sequence[Sequence[GridCell | None]], style: GridStyle, letters: _Letters) -> bytes:
    """Letters by matplotlib, cells pasted over them pixel by pixel."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy

    figure, _ = _canvas(place, style, letters)
    figure.dpi = style.dpi
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    picture = Image.new("RGB", (place.width, place.height), "white")
    picture.paste(drawn)
    draw, line = ImageDraw.Draw(picture), max(1, round(_BOX / 72 * style.dpi))
    for cell, (left, top, wide, high) in _cells(place, rows):
        if cell is None:
            draw.rectangle((left, top, left + wide - 1, top + high - 1), fill=_EMPTY)
            continue
        picture.paste(Image.fromarray(_scaled(cell, (wide, high))), (left, top))
        if cell.box is not None:
            x1, y1, x2, y2 = cell.box
            corners = [left + x1 * wide, top + y1 * high, left + x2 * wide - 1, top + y2 * high - 1]
            draw.rectangle(corners, outline=_LINE, width=line)
    stream, about = io.BytesIO(), PngInfo()
    about.add_text("Software", MADE_BY)
    picture.save(stream, "PNG", dpi=(style.dpi, style.dpi), pnginfo=about)
    return stream.getvalue()
