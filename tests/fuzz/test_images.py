"""Images and masks of every format that Pillow writes, damaged: pixels, or one line that names the file."""

from __future__ import annotations

import io
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.io.images import image_from_bytes, image_size, read_mask, size_from_bytes
from tests.helpers.mutations import attack, refused

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
SECONDS = 5
MODES = ("1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "LA")


def encoded() -> list[bytes]:
    """A small picture in every mode of every format."""
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    deep = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.init()
    seeds = []
    for kind in sorted(set(Image.SAVE) & set(Image.OPEN)):
        for mode in MODES:
            stream = io.BytesIO()
            try:
                (deep if mode == "I;16" else picture.convert(mode)).save(stream, kind, exif=exif)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):  # not every format has every mode
                continue
            seeds.append(stream.getvalue())
    return seeds


@pytest.fixture(scope="module")
def seeds() -> list[bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some formats are on their way out of Pillow
        return encoded()


@pytest.fixture(autouse=True)
def few_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DINOSKIP_MAX_MEGAPIXELS", "4")


def check(content: bytes, path: Path) -> None:
    """Decode ``content`` by every door."""
    began = time.perf_counter()
    path.write_bytes(content)
    pixels: list[np.ndarray] = []
    if not refused(lambda: pixels.append(image_from_bytes(content, path)), str(path)):
        assert (pixels[0].dtype, pixels[0].ndim, pixels[0].shape[2]) == (np.uint8, 3, 3)
    refused(lambda: image_from_bytes(content, path, upright=False), str(path))
    masks: list[np.ndarray] = []
    if not refused(lambda: masks.append(read_mask(path)), str(path)):
        assert (masks[0].dtype, masks[0].ndim) == (np.uint8, 2)
    sizes: list[tuple[int, int]] = []
    refused(lambda: sizes.append(size_from_bytes(content, path)), str(path))
    refused(lambda: sizes.append(image_size(path)), str(path))
    assert len({*sizes, *(image.shape[:2] for image in pixels)}) <= 1
    assert time.perf_counter() - began < SECONDS


def test_every_format_is_among_the_seeds(seeds: list[bytes]) -> None:
    kinds = set()
    for content in seeds:
        with Image.open(io.BytesIO(content)) as image:
            kinds.add(image.format)
    assert {"JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "JPEG2000", "EPS", "TGA", "ICO"} <= kinds


def test_images_and_masks(seeds: list[bytes], tmp_path: Path) -> None:
    attack(seeds, lambda content: check(content, tmp_path / "case.png"), 150)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_images_and_masks_many(seeds: list[bytes], tmp_path: Path) -> None:
    attack(seeds, lambda content: check(content, tmp_path / "case.png"), 30_000)
