"""Objects whose class is their form alone: drawn outlines, filled with textures and colours that say nothing of it.

The texture of an object is a stretch of one of the photographs of :mod:`dinoskip.data.sprites`, chosen whatever the
class, with its contrast lowered and any colour in place of its own. Proportions and details of an outline differ from
object to object; drawing is Pillow's, so that the same seed gives the same bytes on any machine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from dinoskip.data.sprites import SIDE, Kind, Point, background

_FINE = 2  # outlines are drawn so many times larger, and made smaller smoothly
_CONTRAST = (0.25, 0.7)  # of a texture, as a share of the photograph's
_COLOURS = (40.0, 215.0)  # mean of each channel of an object, 0..255

Outline = Callable[[np.random.Generator, ImageDraw.ImageDraw, float], None]


def _around(angle: float, radius: float, side: float) -> Point:
    """The point at ``angle`` (radians) and ``radius`` (share of half a side) from the middle of a square."""
    return side / 2 * (1 + radius * float(np.cos(angle))), side / 2 * (1 + radius * float(np.sin(angle)))


def _disc(rng: np.random.Generator, draw: ImageDraw.ImageDraw, side: float) -> None:
    squeezed = side / 2 * (1 - rng.uniform(0.75, 1))
    draw.ellipse((0, squeezed, side, side - squeezed), fill=255)


def _ring(rng: np.random.Generator, draw: ImageDraw.ImageDraw, side: float) -> None:
    hole = side / 2 * rng.uniform(0.5, 0.62)
    draw.ellipse((0, 0, side, side), fill=255)
    draw.ellipse((side / 2 - hole, side / 2 - hole, side / 2 + hole, side / 2 + hole), fill=0)


def _star(rng: np.random.Generator, draw: ImageDraw.ImageDraw, side: float) -> None:
    points, waist = int(rng.integers(5, 8)), rng.uniform(0.3, 0.42)
    corners = [_around(np.pi * at / points, 1 if at % 2 == 0 else waist, side) for at in range(2 * points)]
    draw.polygon(corners, fill=255)


def _triangle(rng: np.random.Generator, draw: ImageDraw.ImageDraw, side: float) -> None:
    angles = np.array([0.0, 2 * np.pi / 3, 4 * np.pi / 3]) + rng.uniform(-0.2, 0.2, 3)
    draw.polygon([_around(float(angle), 1, side) for angle in angles], fill=255)


def _cross(rng: np.random.Generator, draw: ImageDraw.ImageDraw, side: float) -> None:
    half = side / 2 * rng.uniform(0.2, 0.3)
    draw.rectangle((0, side / 2 - half, side, side / 2 + half), fill=255)
    draw.rectangle((side / 2 - half, 0, side / 2 + half, side), fill=255)


def _comb(rng: np.random.Generator, draw: ImageDraw.ImageDraw, side: float) -> None:
    teeth = int(rng.integers(4, 6))
    width = side / (2 * teeth - 1)
    draw.rectangle((0, 0, side, side * rng.uniform(0.2, 0.3)), fill=255)
    for at in range(teeth):
        draw.rectangle((2 * at * width, 0, (2 * at + 1) * width, side), fill=255)


def _texture(rng: np.random.Generator, side: int) -> np.ndarray:
    """A stretch of a photograph with another contrast and another colour, float32 (side, side, 3)."""
    pixels = background(rng, side)
    low, high = _COLOURS
    coloured: np.ndarray = (pixels - pixels.mean((0, 1))) * rng.uniform(*_CONTRAST) + rng.uniform(low, high, 3)
    return coloured.astype(np.float32)


def _filled(outline: Outline) -> Callable[[np.random.Generator], Image.Image]:
    """Make pictures of objects with this outline, turned by any angle; scenes turn them no further, so all fit."""

    def make(rng: np.random.Generator) -> Image.Image:
        mask = Image.new("L", (SIDE * _FINE, SIDE * _FINE))
        outline(rng, ImageDraw.Draw(mask), SIDE * _FINE - 1)
        turned = mask.rotate(rng.uniform(-180, 180), Image.Resampling.BICUBIC, expand=True)
        turned = turned.crop(turned.getbbox())
        size = round(SIDE * turned.width / max(turned.size)), round(SIDE * turned.height / max(turned.size))
        picture = Image.fromarray(np.clip(np.rint(_texture(rng, SIDE)), 0, 255).astype(np.uint8)).crop((0, 0, *size))
        picture.putalpha(turned.resize(size, Image.Resampling.BOX))
        return picture

    return make


# Tilt 0: outlines are turned by any angle when they are drawn (_filled).
SHAPES = (
    Kind("disc", _filled(_disc), 0),
    Kind("ring", _filled(_ring), 0),
    Kind("star", _filled(_star), 0),
    Kind("triangle", _filled(_triangle), 0),
    Kind("cross", _filled(_cross), 0),
    Kind("comb", _filled(_comb), 0),
)
