"""Parts of scenes: objects cut out of bundled photographs, and stretches of others as backgrounds.

The photographs are those inside the scikit-image and scikit-learn packages; nothing is downloaded. Resizing and drawing
are Pillow's, in whole numbers, so that the same seed gives the same bytes on any machine.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from dinoskip.errors import DataError
from dinoskip.io.images import read_image

SIDE = 256  # longest side of a sprite, pixels
PHOTOS = {
    **{name: ("skimage", f"data/{name}.png") for name in
       ("brick", "chelsea", "coffee", "coins", "grass", "gravel", "horse", "ihc", "moon", "page")},
    **{name: ("skimage", f"data/{name}.jpg") for name in ("hubble_deep_field", "retina", "rocket")},
    **{name: ("sklearn", f"datasets/images/{name}.jpg") for name in ("china", "flower")},
}  # fmt: skip

Point = tuple[float, float]
Box = tuple[int, int, int, int]  # left, top, right, bottom


def photo_path(name: str) -> Path:
    """Return the path of a photograph inside its installed package.

    Raises :class:`DataError` if the package does not have it.
    """
    package, inside = PHOTOS[name]
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in places:
        if (Path(place) / inside).is_file():
            return Path(place) / inside
    raise DataError(f"{package}: the photograph {inside} is not in the installed package", f"reinstall {package}")


@cache
def photo(name: str) -> np.ndarray:
    """Return the photograph, uint8 (H, W, 3)."""
    return read_image(photo_path(name))


# --- masks -------------------------------------------------------------------------------------------


def _shape_mask(
    size: tuple[int, int], ellipses: Sequence[tuple[float, ...]], polygons: Sequence[Sequence[Point]]
) -> Image.Image:
    """Draw filled ellipses (left, top, right, bottom) and polygons into a smooth mask of ``size`` (width, height)."""
    fine = 4
    mask = Image.new("L", (size[0] * fine, size[1] * fine))
    draw = ImageDraw.Draw(mask)
    for ellipse in ellipses:
        draw.ellipse([value * fine for value in ellipse], fill=255)
    for polygon in polygons:
        draw.polygon([(x * fine, y * fine) for x, y in polygon], fill=255)
    return mask.resize(size, Image.Resampling.BOX)


def _sprite(colours: np.ndarray, mask: Image.Image) -> Image.Image:
    """Cut an object out and scale it to SIDE; the mask's rim is shaved so that no background shines through."""
    shaved = mask.filter(ImageFilter.MinFilter(3)).filter(ImageFilter.GaussianBlur(0.7))
    image = Image.fromarray(colours).convert("RGB")
    image.putalpha(shaved)
    image = image.crop(shaved.point(lambda value: 255 * (value > 127)).getbbox())
    scale = SIDE / max(image.size)
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)


def _largest(mask: np.ndarray) -> np.ndarray:
    from scipy import ndimage  # heavy; the kinds of data sets are listed without it

    labels, _ = ndimage.label(mask)
    counts = np.bincount(labels.ravel())
    counts[0] = 0
    filled: np.ndarray = ndimage.binary_fill_holes(labels == counts.argmax())
    return filled


# --- objects -----------------------------------------------------------------------------------------


@cache
def _flower() -> Image.Image:
    colours = photo("flower")[60:366]
    red, blue = colours[..., 0].astype(int), colours[..., 2].astype(int)
    mask = Image.fromarray(_largest((red > 110) & (red > blue + 35)).astype(np.uint8) * 255)
    return _sprite(colours, mask.filter(ImageFilter.MedianFilter(5)))


@cache
def _coins() -> tuple[Image.Image, ...]:
    from scipy import ndimage  # heavy; the kinds of data sets are listed without it

    colours = photo("coins")
    grey = colours[..., 0].astype(float)
    local = grey > ndimage.uniform_filter(grey, 75) + 8
    labels, count = ndimage.label(ndimage.binary_opening(ndimage.binary_fill_holes(local), iterations=2))
    coins = []
    for rows, columns in ndimage.find_objects(labels, count):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if min(height, width) >= 34 and max(height, width) <= 62 and abs(height - width) <= 6:
            disc = _shape_mask((width, height), [(0, 0, width - 1, height - 1)], [])
            coins.append(_sprite(colours[rows, columns], disc))
    return tuple(coins)


PAVILION: tuple[Point, ...] = (
    (197, 32), (205, 29), (215, 32), (213, 45), (217, 50), (217, 62), (230, 76), (245, 88), (262, 95), (280, 102),
    (296, 106), (318, 115), (319, 124), (310, 131), (296, 138), (294, 141), (294, 158), (308, 163), (329, 172),
    (329, 178), (320, 184), (320, 226), (328, 228), (327, 236), (290, 249), (240, 250), (180, 249), (93, 244),
    (93, 235), (98, 232), (98, 182), (85, 183), (84, 172), (91, 167), (112, 161), (120, 158), (120, 140), (110, 137),
    (95, 130), (97, 107), (118, 100), (135, 97), (152, 93), (170, 84), (185, 72), (193, 62), (193, 50), (198, 46),
)  # fmt: skip


@cache
def _pavilion() -> Image.Image:
    colours = photo("china")
    return _sprite(colours, _shape_mask((colours.shape[1], colours.shape[0]), [], [PAVILION]))


@cache
def _cup() -> Image.Image:
    colours = photo("coffee")
    saucer, rim = (78, 53, 477, 387), (174, 18, 408, 209)
    spoon = [(398, 70), (415, 67), (423, 75), (414, 112), (402, 132)]
    return _sprite(colours, _shape_mask((colours.shape[1], colours.shape[0]), [saucer, rim], [spoon]))


def _horse(rng: np.random.Generator) -> Image.Image:
    mask = Image.fromarray(255 * (photo("horse")[..., 0] < 128).astype(np.uint8))
    width, height = mask.size
    left = rng.integers(80, 305 - 98)  # the cat's forehead: stripes, and no eye
    fur = Image.fromarray(photo("chelsea")[:80, left : left + 98]).resize((width, height), Image.Resampling.BICUBIC)
    round_ = np.asarray(mask.filter(ImageFilter.GaussianBlur(9)), dtype=np.float32) / 255  # darker towards the outline
    shade = np.clip(1.5 * round_ - 0.25, 0.35, 1.1)[..., None]
    return _sprite(np.clip(np.asarray(fur) * shade, 0, 255).astype(np.uint8), mask)


def _vase(rng: np.random.Generator) -> Image.Image:
    """A turned vase: random profile, glazed with a stretch of the stained tissue, shaded as a round body."""
    height, width = SIDE, 176
    heights = np.array([0, 0.06, 0.2, 0.5, 0.85, 0.97, 1.0])
    lip, neck, belly, foot = (
        rng.uniform(0.34, 0.5),
        rng.uniform(0.16, 0.34),
        rng.uniform(0.75, 1),
        rng.uniform(0.3, 0.5),
    )
    radii = np.array([lip, lip, neck, belly, foot * 1.05, foot, foot * 1.1])
    rows = (np.arange(height) + 0.5) / height
    knot = np.clip(np.searchsorted(heights, rows) - 1, 0, len(heights) - 2)
    part = (rows - heights[knot]) / (heights[knot + 1] - heights[knot])
    part = part * part * (3 - 2 * part)
    radius = (radii[knot] + (radii[knot + 1] - radii[knot]) * part) * (width / 2 - 2)
    across = (np.arange(width) + 0.5 - width / 2) / radius[:, None]  # -1..1 from rim to rim
    inside = np.abs(across) <= 1
    angle = np.arcsin(np.clip(across, -1, 1)) / np.pi + 0.5
    top, left = rng.integers(0, 512 - 320), rng.integers(0, 512 - 320)
    glaze = photo("ihc")[top : top + 320, left : left + 320]
    colours = glaze[(rows * 319).astype(int)[:, None], (angle * 319).astype(int)].astype(np.float32)
    light = np.sqrt(np.clip(1 - (across * 0.85 + 0.3) ** 2, 0, 1))
    colours = colours * (0.35 + 0.7 * light)[..., None] + 60 * (np.clip(light - 0.93, 0, 1) / 0.07)[..., None]
    mask = Image.fromarray((255 * inside).astype(np.uint8))
    return _sprite(np.clip(colours, 0, 255).astype(np.uint8), mask)


METALS = np.array([(1.25, 1.0, 0.5), (1.1, 1.1, 1.15)], dtype=np.float32)  # gold, silver


def _coin(rng: np.random.Generator) -> Image.Image:
    coins = _coins()
    coin = coins[rng.integers(len(coins))]
    pixels = np.asarray(coin).astype(np.float32)
    pixels[..., :3] *= METALS[rng.integers(len(METALS))]
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8), "RGBA")


@dataclass(frozen=True)
class Kind:
    """One object class: how a sprite of it is made, and how far it may be turned, in degrees."""

    name: str
    make: Callable[[np.random.Generator], Image.Image]
    tilt: float


# Tilts: flowers and coins lie any way, what stands on a foot is turned a little.
KINDS = (
    Kind("flower", lambda _: _flower(), 180),
    Kind("coin", _coin, 180),
    Kind("vase", _vase, 15),
    Kind("horse", _horse, 12),
    Kind("cup", lambda _: _cup(), 25),
    Kind("pavilion", lambda _: _pavilion(), 8),
)


# --- backgrounds -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ground:
    """A stretch of a photograph (None: all of it), the range of crop sides in pixels, and colours to tint it with."""

    photo: str
    region: Box | None
    sides: tuple[int, int]
    tints: tuple[tuple[float, float, float], ...] = ((1, 1, 1),)


# Sides end below the shorter one of the region, in which a crop must fit; tints colour photographs that are grey, and
# give retina a second colour.
GROUNDS = (
    Ground("grass", None, (200, 420), ((0.62, 0.95, 0.36), (0.5, 0.8, 0.42), (1.05, 0.95, 0.5))),
    Ground("gravel", None, (200, 420), ((1.0, 0.95, 0.88), (0.85, 0.9, 1.0), (1.1, 0.92, 0.74))),
    Ground("brick", None, (200, 420), ((1.15, 0.72, 0.58), (1.15, 1.1, 1.02), (0.8, 0.85, 0.92))),
    Ground("moon", None, (180, 400), ((1.25, 1.05, 0.78), (1.0, 1.03, 1.1))),
    Ground("page", (0, 50, 384, 191), (110, 140), ((1.0, 0.97, 0.88),)),
    Ground("coffee", (482, 0, 600, 400), (90, 117)),
    Ground("flower", (0, 0, 162, 427), (120, 161)),
    Ground("flower", (452, 0, 640, 380), (120, 185)),
    Ground("china", (400, 0, 640, 330), (150, 235)),
    Ground("china", (355, 345, 640, 427), (60, 80)),
    Ground("rocket", (0, 0, 270, 260), (150, 255)),
    Ground("hubble_deep_field", None, (220, 420)),
    Ground("retina", (330, 330, 1080, 1080), (300, 600), ((1, 1, 1), (0.75, 0.95, 1.6))),
)


def background(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return a square background of ``size`` pixels, float32 (size, size, 3) in 0..255."""
    ground = GROUNDS[rng.integers(len(GROUNDS))]
    picture = photo(ground.photo)
    left, top, right, bottom = ground.region or (0, 0, picture.shape[1], picture.shape[0])
    side = int(rng.integers(ground.sides[0], ground.sides[1] + 1))
    x, y = int(rng.integers(left, right - side + 1)), int(rng.integers(top, bottom - side + 1))
    crop = Image.fromarray(picture[y : y + side, x : x + side])
    if rng.random() < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.asarray(crop.resize((size, size), Image.Resampling.BICUBIC)).astype(np.float32)
    return pixels * np.array(ground.tints[rng.integers(len(ground.tints))], dtype=np.float32)
