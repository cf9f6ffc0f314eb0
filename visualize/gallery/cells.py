"""One cell of the gallery: the pictures and scores of one image by one model, of every layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dinoskip.runtime.console import log
from visualize import rasters
from visualize.gallery.files import PictureFiles
from visualize.gallery.layers import LAYERS
from visualize.gallery.layers.layer import Cell


@dataclass
class GalleryCell:
    """A cell's data for gallery.js: ``layers[layer]`` = size, blocks, ...; ``scores[metric][block]`` = number."""

    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    scores: dict[str, dict[int, float]] = field(default_factory=dict)


def write_cell(cell: Cell, pictures: PictureFiles) -> GalleryCell:
    """Write a picture for every layer that has something of the image; scores have one digit more than is shown."""
    written = GalleryCell()
    for key, layer in LAYERS.items():
        if not layer.shows(cell.image, key):
            continue
        drawn = layer.draw(cell)
        if drawn is not None and drawn.maps:
            blocks = sorted(drawn.maps)
            sheet = rasters.sheet([drawn.maps[block] for block in blocks])
            pictures.add(f"{key}-m{cell.column}-i{cell.row:03d}.png", drawn.encode(sheet))
            height, width = drawn.maps[blocks[0]][0].shape[:2]
            written.layers[key] = {"size": [width, height], "blocks": blocks, **drawn.about}
        for metric, by_block in layer.scores(cell).items():
            if metric not in layer.metrics:
                log.warning(
                    "gallery: the layer %r has scores %r, which its metrics do not declare: left out", key, metric
                )
                continue
            rounded = {b: round(v, layer.metrics[metric].digits + 1) for b, v in by_block.items() if v is not None}
            if rounded:
                written.scores[metric] = rounded
    return written
