"""Parts that all matplotlib figures share: fonts, colours, panels, legends, and the files they are written to.

A figure is drawn once, in the light theme; the dark SVG is the same with each colour replaced. Nothing written
depends on the time or the machine's fonts: the same input gives the same bytes.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFont

from dinoskip.io.files import write_bytes
from visualize.pages import clean
from visualize.palette import VARIANT_COLOURS, variant_colour

# ink, muted, line: of light pages, then of dark ones
_THEMES = (("#1c1c1f", "#66656b", "#e3e0d9"), ("#ececef", "#a09fa8", "#3a3a41"))
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))  # every six variants, as colours repeat
_MARKS = (".", "s", "^", "D")
_BREAKS = " -_,|/;"
TEXT, TITLE = 9.5, 10.0  # points
_PNG_DPI = 150  # dots an inch; more: sharper when enlarged, and more bytes
_COLUMNS = 3  # panels side by side, 10 inches in all
PANEL = (3.35, 2.9)  # inches
FORMATS = ("pdf", "png")
"""Formats of a figure for papers, beside the SVG that pages show."""
# Of the page that is being made and not of one figure: all of it are written alike, those of plug-ins too.
_FORMATS: ContextVar[Sequence[str]] = ContextVar("formats", default=FORMATS)


@contextmanager
def written_as(formats: Sequence[str]) -> Iterator[None]:
    """Figures that are written meanwhile have these of :data:`FORMATS` beside SVG."""
    before = _FORMATS.set(formats)
    try:
        yield
    finally:
        _FORMATS.reset(before)


@dataclass(frozen=True)
class Figure:
    """A figure on disk: ``light`` and ``dark`` SVG for pages, ``pdf`` and ``png`` for papers; the same in words.

    The last two are None where :func:`written_as` leaves them out. ``reading`` says in a sentence what to look for.
    """

    light: Path
    dark: Path
    pdf: Path | None
    png: Path | None
    caption: str
    alt: str
    reading: str = ""

    @property
    def width(self) -> float:
        """Width in CSS pixels, as the SVG says."""
        match = re.search(r'width="([\d.]+)pt"', self.light.read_text(encoding="utf-8"))
        assert match
        return float(match[1]) * 96 / 72

    @property
    def files(self) -> dict[str, Path]:
        """The files of a figure by what they are: light and dark SVG, and PDF and PNG where they were written."""
        files = {"light": self.light, "dark": self.dark, "pdf": self.pdf, "png": self.png}
        return {name: path for name, path in files.items() if path is not None}


@lru_cache
def label_font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which matplotlib carries: the same everywhere."""
    from matplotlib import get_data_path  # matplotlib: heavy, in all of this file

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(get_data_path()) / "fonts/ttf" / name), size)


def inches(text: str, points: float = TEXT) -> float:
    """Width of one line of text."""
    return label_font(100).getlength(text) / 100 * points / 72


def fitted(text: str, width: float, points: float = TEXT, lines: int = 1) -> str:
    """``text`` in at most ``lines`` lines of ``width`` inches, its middle left out if it is longer still.

    Dollars are escaped, so that none starts a formula.
    """
    rest = clean(text, 400)
    fitted_lines: list[str] = []
    while len(fitted_lines) < lines - 1 and inches(rest, points) > width:
        end = max(1, _longest(rest, width, points))
        cut = max((rest.rfind(mark, end // 2, end) for mark in _BREAKS), default=-1) + 1 or end
        fitted_lines.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    whole, kept = rest, len(rest)
    while inches(rest, points) > width and kept > 4:
        kept -= 1
        rest = f"{whole[: kept - kept // 3]}…{whole[len(whole) - kept // 3 :]}"
    return "\n".join([*fitted_lines, rest]).replace("$", r"\$")


def _longest(text: str, width: float, points: float) -> int:
    """Return how many letters of ``text`` fit into ``width`` inches at a font size of ``points``."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if inches(text[:middle], points) <= width else (low, middle - 1)
    return low


def panels(count: int, size: tuple[float, float] = PANEL, columns: int | None = None) -> tuple[Any, list[Any]]:
    """An empty figure of ``count`` axes, ``columns`` a line, of ``size`` inches each; none of pyplot's global ones.

    By default three a line, but four as two lines of two.
    """
    from matplotlib.figure import Figure as Drawing  # heavy

    columns = min(count, columns or (2 if count == 4 else _COLUMNS))
    lines = math.ceil(count / columns)
    figure = Drawing(figsize=(max(5.0, size[0] * columns), size[1] * lines), layout="constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in grid[count:]:
        axes.set_axis_off()
    for axes in grid[:count]:
        axes.xaxis.get_major_locator().set_params(integer=True)
    return figure, grid[:count]


def heading(axes: Any, text: str) -> None:
    """A panel's title, wrapped and cut to the panel's own width."""
    columns = axes.get_subplotspec().get_gridspec().ncols
    axes.set_title(fitted(text, axes.figure.get_figwidth() / columns - 0.45, TITLE, 2))


def curve(axes: Any, points: Mapping[int, float], number: int, name: str) -> None:
    """Values at integer places of the variant whose place in the order of colours is ``number``."""
    places = sorted(points)
    look = {"linestyle": dash(number), "marker": mark(number), "markersize": 6 if number < 6 else 3.5}
    axes.plot(places, [points[place] for place in places], color=variant_colour(number), label=name, **look)


def levels(axes: Any, values: Mapping[str, float], near: float = 1.5) -> None:
    """Grey levels across a panel, named right of it, where no curve is; those within ``near`` of each other share a
    line of names.
    """
    muted = _THEMES[0][1]
    place = {"transform": axes.get_yaxis_transform(), "ha": "left", "va": "center"}
    names: list[str] = []
    top = -math.inf
    for name, value in sorted(values.items(), key=lambda entry: -entry[1]):
        axes.axhline(value, color=muted, linewidth=1.0, linestyle=(0, (4, 3)))
        if top - value > near and names:
            axes.text(1.01, top, _beside(names), color=muted, fontsize=7.5, **place)
            names = []
        top = value if not names else top
        names.append(name)
    if names:
        axes.text(1.01, top, _beside(names), color=muted, fontsize=7.5, **place)


def _beside(names: Sequence[str]) -> str:
    """Names of levels in a column right of a panel."""
    return fitted(", ".join(names), 0.95, 7.5, 2)


def dash(number: int) -> Any:
    """Solid for the first six variants; the colours repeat with another dash after that."""
    return _DASHES[number // 6 % len(_DASHES)]


def logarithmic_scale(axes: Any) -> None:
    """A log axis that has at least two labels: between powers of ten too where it spans few of them."""
    from matplotlib.ticker import LogFormatterSciNotation  # heavy

    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(1.6, 0.5)))


def several(number: int) -> dict[str, Any]:
    """Return the line style of a variant's values of several blocks: dotted, dash-dotted from the seventh on."""
    return {"linestyle": (0, (1, 1.6)) if number < 6 else (0, (1, 1.6, 4, 1.6)), "linewidth": 1.2}


def mark(number: int) -> str:
    """The mark that goes with :func:`dash`."""
    return _MARKS[number // 6 % len(_MARKS)]


def legend(figure: Any, grid: Sequence[Any], order: Sequence[str]) -> None:
    """Above the panels, every variant that any of them shows, once, in ``order``; the figure grows with its rows."""
    handles: dict[str, Any] = {}
    for axes in grid:
        lines, labels = axes.get_legend_handles_labels()
        handles = {**dict(zip(labels, lines, strict=True)), **handles}
    names = [name for name in order if name in handles]
    room = figure.get_figwidth() - 0.3
    shown = [fitted(name, min(4.3, room - 0.6)) for name in names]
    columns = max(1, min(4, len(names), int(room / (0.55 + max(inches(name) for name in shown)))))
    rows = math.ceil(len(names) / columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows - 1))  # else many rows would cover the panels
    figure.legend([handles[name] for name in names], shown, loc="outside upper left", ncols=columns, borderaxespad=0.2)


@contextmanager
def _theme() -> Iterator[None]:
    import matplotlib  # heavy

    ink, muted, line = _THEMES[0]
    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans", "font.size": TEXT, "axes.titlesize": TITLE, "axes.titlelocation": "left",
        "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": line, "axes.labelcolor": muted,
        "axes.titlecolor": ink, "text.color": ink, "xtick.color": muted, "ytick.color": muted, "axes.grid": True,
        "axes.grid.axis": "y", "grid.color": line, "grid.linewidth": 0.7, "axes.axisbelow": True, "xtick.major.size": 0,
        "ytick.major.size": 0, "ytick.minor.size": 0, "lines.linewidth": 1.8, "legend.frameon": False,
        "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "figure.dpi": 100,
        "svg.hashsalt": "dinoskip", "pdf.fonttype": 42,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        yield


def write_figure(out: Path, draw: Callable[[], Any], caption: str, alt: str, reading: str) -> Figure:
    """Draw and write ``out`` as SVG, ``out``-dark as SVG with the colours of dark pages, PDF and PNG.

    The last two if :func:`written_as` does not say otherwise.
    """
    from matplotlib.backends.backend_pdf import FigureCanvasPdf  # heavy
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    pdf, png = (out.with_suffix(f".{kind}") if kind in _FORMATS.get() else None for kind in FORMATS)
    vector, dark = out.with_suffix(".svg"), out.with_name(f"{out.stem}-dark.svg")
    files = Figure(vector, dark, pdf, png, caption, alt, reading)
    with _theme():
        figure = draw()
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")  # computed once, the same in every file
        drawn = _saved(figure, FigureCanvasSVG, "svg", metadata={"Date": None})
        if files.pdf is not None:
            write_bytes(files.pdf, _saved(figure, FigureCanvasPdf, "pdf", metadata={"CreationDate": None}))
        if files.png is not None:
            figure.set_facecolor("white")
            write_bytes(files.png, _png(figure))
    write_bytes(files.light, drawn)
    text = drawn.decode()
    for before, after in (*zip(*_THEMES, strict=True), *VARIANT_COLOURS):
        text = text.replace(before.lower(), after.upper())
    write_bytes(files.dark, text.encode())
    return files


def _png(figure: Any) -> bytes:
    """Encode in 64 colours, which suffice for lines and letters and take a quarter of the bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy

    stream, figure.dpi = io.BytesIO(), _PNG_DPI
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    drawn.quantize(64, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True, dpi=(_PNG_DPI, _PNG_DPI))
    return stream.getvalue()


def _saved(figure: Any, canvas: Any, kind: str, **options: Any) -> bytes:
    """Return the bytes that a canvas writes by itself; ``savefig`` would draw everything twice."""
    stream, figure.dpi = io.BytesIO(), 72
    getattr(canvas(figure), f"print_{kind}")(stream, **options)
    return stream.getvalue()
