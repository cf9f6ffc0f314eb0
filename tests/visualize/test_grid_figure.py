"""A figure for a paper: the same geometry in PDF and PNG, cells as they were, letters whole."""

from __future__ import annotations

import re
import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.errors import ConfigError
from visualize.figures.grid import MADE_BY, GridCell, GridGroup, GridStyle, write_grid

RNG = np.random.default_rng(0)
MAP = RNG.integers(0, 256, (7, 7, 3), np.uint8)  # 49 colours, so that the PDF stores a palette
MANY = RNG.integers(0, 256, (20, 20, 3), np.uint8)  # more than 256
PHOTO = RNG.integers(0, 256, (60, 60, 3), np.uint8)
GROUPS = [GridGroup("", ["image"]), GridGroup("a network", ["block 1", "block 2"])]


def stored(pdf: bytes) -> list[np.ndarray]:
    """The images of a PDF: matplotlib stores the compressed rows of PNGs, of colours or of a palette."""
    found = []
    for begin in (match.start() for match in re.finditer(rb"/Subtype /Image", pdf)):
        at = pdf.index(b">>\nstream\n", begin) + len(b">>\nstream\n")
        head, content = pdf[begin:at], pdf[at : pdf.index(b"\nendstream", at)]
        number = {key: int(value) for key, value in re.findall(rb"/(Width|Height|BitsPerComponent) (\d+)", head)}
        palette = re.search(rb"/Indexed /DeviceRGB \d+\s*\((.*)\)\s*\]", head, re.S)
        chunks = [(b"IHDR", struct.pack(">IIBBBBB", number[b"Width"], number[b"Height"], number[b"BitsPerComponent"],
                                        3 if b"/Indexed" in head else 2, 0, 0, 0))]  # fmt: skip
        if palette:
            chunks.append((b"PLTE", _unescaped(palette[1])))
        chunks += [(b"IDAT", content), (b"IEND", b"")]
        png = b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
            for name, body in chunks
        )
        found.append(np.asarray(Image.open(BytesIO(png)).convert("RGB"))[::-1])  # from the bottom row, as it is placed
    return found


def _unescaped(text: bytes) -> bytes:
    return re.sub(rb"\\(n|r|t|b|f|\(|\)|\\|\d{1,3})", lambda m: _byte(m[1]), text, flags=re.S)


def _byte(code: bytes) -> bytes:
    named = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}
    return named.get(code) or (bytes([int(code, 8)]) if code.isdigit() else code)


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    rows = [[GridCell(PHOTO, photo=True), GridCell(MAP), GridCell(MANY, box=(0.25, 0.5, 0.75, 1.0))],
            [GridCell(PHOTO, photo=True), GridCell(MANY), None]]  # fmt: skip
    return write_grid(GROUPS, rows, tmp_path_factory.mktemp("figure") / "f", GridStyle(width_mm=60, dpi=200))


def test_geometry_is_the_width_asked_for(figure: tuple[Path, Path]) -> None:
    pdf, png = figure
    box = re.search(rb"/MediaBox \[ *0 0 ([\d.]+) ([\d.]+) *\]", pdf.read_bytes())
    assert box
    width, height = Image.open(png).size
    assert width == round(60 / 25.4 * 200)
    assert float(box[1]) == pytest.approx(width * 72 / 200, abs=0.01)
    assert float(box[2]) == pytest.approx(height * 72 / 200, abs=0.01)
    assert Image.open(png).info["dpi"] == pytest.approx((200, 200), abs=0.1)


def test_both_files_say_who_made_them(figure: tuple[Path, Path]) -> None:
    assert all(MADE_BY.encode() in path.read_bytes() for path in figure)


def test_cells_of_the_pdf_keep_every_value(figure: tuple[Path, Path]) -> None:
    pictures = stored(figure[0].read_bytes())
    for wanted in (MAP, MANY):
        side = len(wanted)
        fitting = [picture for picture in pictures if picture.shape[0] % side == 0]
        same = [
            picture for picture, step in ((p, p.shape[0] // side) for p in fitting)
            if np.array_equal(picture[::step, ::step], wanted)
        ]  # fmt: skip
        assert same, "not stored without loss"
        times = same[0].shape[0] // side
        assert np.array_equal(same[0], wanted.repeat(times, 0).repeat(times, 1))


def test_cells_of_the_png_keep_every_value(figure: tuple[Path, Path]) -> None:
    pixels = np.asarray(Image.open(figure[1]).convert("RGB"))
    assert {tuple(colour) for colour in MAP.reshape(-1, 3)} <= {tuple(colour) for colour in pixels.reshape(-1, 3)}
    assert (pixels == (255, 140, 0)).all(-1).any(), "the box"
    assert (pixels == (236, 234, 229)).all(-1).any(), "the empty cell"


@pytest.mark.parametrize("name", ["a name of a network that is longer than its two columns " * 3, "Å" * 60, "x"])
def test_letters_are_never_cut_off(name: str, tmp_path: Path) -> None:
    rows = [[GridCell(MAP), GridCell(MAP)]]
    _, png = write_grid([GridGroup(name, ["block 1", "block 2"])], rows, tmp_path / "f", GridStyle(30, 150))
    ink = np.asarray(Image.open(png).convert("L")) < 128
    assert not ink[0].any(), "letters touch the upper edge"
    above = ink[: len(ink) - ink.shape[1] // 2 - 20]  # the cells are half as high as the figure is wide
    assert not above[:, 0].any()
    assert not above[:, -1].any()


def test_narrow_columns_have_short_headings(tmp_path: Path) -> None:
    groups = [GridGroup("n", [f"block {n}" for n in range(1, 9)], list("12345678"), "n, by block")]
    _, narrow = write_grid(groups, [[GridCell(MAP)] * 8], tmp_path / "narrow", GridStyle(30, 150))
    _, wide = write_grid(groups, [[GridCell(MAP)] * 8], tmp_path / "wide", GridStyle(150, 150))
    heights = [Image.open(path).size for path in (narrow, wide)]
    cell = [width / 8 for width, _ in heights]
    head = [height - side for (_, height), side in zip(heights, cell, strict=True)]
    assert head[0] == pytest.approx(head[1], abs=6), "one line each, none broken within a word"


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    cells = [[GridCell(MAP)] * 3]
    with pytest.raises(ConfigError, match="Helvetika"):
        write_grid(GROUPS, cells, tmp_path / "f", GridStyle(font="Helvetika"))
    with pytest.raises(ConfigError, match="pixels each"):
        write_grid([GridGroup("", [""] * 300)], [[GridCell(MAP)] * 300], tmp_path / "f", GridStyle(30, 72))
    with pytest.raises(ValueError, match="every column"):
        write_grid(GROUPS, [[GridCell(MAP)]], tmp_path / "f")
    assert not list(tmp_path.iterdir())
