"""Pairs for the gallery: both images side by side, and the points that every block found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from dinoskip.data.segmentation import voc_palette
from dinoskip.io.images import read_image
from dinoskip_video.correspondence.config import CorrespondenceConfig
from dinoskip_video.correspondence.matching import Matched, Placement
from dinoskip_video.keypoints import KeypointDataset, KeypointPair

HEIGHT = 240  # pixels of both images
RADIUS = 5
SHOWN_ALPHA = 0.1  # a point that lies nearer is filled
_COLOURS = (1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14)  # of the palette; points of a pair take them in turn


def draw_pair(
    dataset: KeypointDataset,
    pair: KeypointPair,
    matched: Mapping[str, Matched],
    place: Placement,
    config: CorrespondenceConfig,
    folder: Path,
) -> None:
    """Write ``pair.jpg``, ``truth.png`` and ``block{label}.png`` (palette, 0 where nothing is drawn) into ``folder``.

    A point has the same colour in both images. In the second, those found are filled where they lie within a tenth of
    the object, and rings else, with a line to where they should be.
    """
    folder.mkdir(parents=True)
    images = [Image.fromarray(read_image(dataset.path(number))) for number in (pair.source, pair.target)]
    widths = [max(1, round(image.width * HEIGHT / image.height)) for image in images]
    sheet = Image.new("RGB", (sum(widths), HEIGHT))
    for image, wide, left in zip(images, widths, (0, widths[0]), strict=True):
        sheet.paste(image.resize((wide, HEIGHT), Image.Resampling.LANCZOS), (left, 0))
    sheet.save(folder / "pair.jpg", "JPEG", quality=88)
    scales = [HEIGHT / image.height for image in images]
    source = pair.source_points * scales[0]
    wanted = pair.target_points * scales[1] + (widths[0], 0)
    every = np.ones(len(wanted), dtype=bool)
    _write(folder / "truth.png", sheet.size, pair.visible, source, wanted, wanted, every)
    for label, matches in matched.items():
        original = place.back(matches.found) if config.padded else matches.found
        found = original * scales[1] + (widths[0], 0)
        hits = matches.hits(SHOWN_ALPHA, config.padded)
        _write(folder / f"block{label}.png", sheet.size, pair.visible, source, wanted, found, hits)


def _write(
    path: Path,
    size: tuple[int, int],
    visible: NDArray[np.bool_],
    source: NDArray[np.float64],
    wanted: NDArray[np.float64],
    found: NDArray[np.float64],
    hits: NDArray[np.bool_],
) -> None:
    sheet = Image.new("P", size)
    sheet.putpalette(voc_palette().tobytes())
    draw = ImageDraw.Draw(sheet)
    for number in np.flatnonzero(visible).tolist():
        colour = _COLOURS[number % len(_COLOURS)]
        draw.circle(tuple(source[number]), RADIUS, fill=colour)
        if hits[number]:
            draw.circle(tuple(found[number]), RADIUS, fill=colour)
        else:
            draw.line([tuple(wanted[number]), tuple(found[number])], fill=colour, width=1)
            draw.circle(tuple(found[number]), RADIUS, outline=colour, width=2)
    sheet.save(path, "PNG")
