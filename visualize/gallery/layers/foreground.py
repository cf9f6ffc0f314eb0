"""The foreground by PCA over all images, as DINOv2's figure has it, and the norms of patches with outliers marked."""

from __future__ import annotations

import numpy as np

from visualize import rasters
from visualize.gallery.layers.layer import Cell, Drawn, ImageScore, Layer, Mark, Scores

OUTLIER = (213, 94, 0)  # .swatch.outlier of gallery.css


def draw(cell: Cell) -> Drawn:
    """Two parts of every block: the foreground's colours, and norms in grey, outliers in one colour."""
    views, maps = cell.views, dict[int, list[np.ndarray]]()
    for block, pictures in views.foreground[cell.column].items():
        colours, relative = pictures[cell.row], views.norms[cell.column][block][cell.row]
        if colours is not None and relative is not None:
            grey = np.rint(np.clip(relative / rasters.OUTLYING, 0, 1) * 255).astype(np.uint8)
            norms = np.repeat(grey[..., None], 3, axis=-1)
            norms[relative > rasters.OUTLYING] = OUTLIER
            maps[block] = [rasters.fewer_levels(colours), norms]
    return Drawn(maps, rasters.png, {"parts": [0, 1]})


def scores(cell: Cell) -> Scores:
    """The share of outlying patches, in percent."""
    norms = {block: of_images[cell.row] for block, of_images in cell.views.norms[cell.column].items()}
    return {
        "outliers": {b: 100 * float((raw > rasters.OUTLYING).mean()) for b, raw in norms.items() if raw is not None}
    }


LAYER = Layer(
    name="Foreground",
    order=20,
    source="store",
    draw=draw,
    scores=scores,
    metrics={"outliers": ImageScore("patches of outlying norm", "outliers", 1, "\u00a0%")},
    parts=("parts of objects", "norm of patches"),
    marks=(Mark("swatch outlier", f"outliers: norm above {rasters.OUTLYING:g} × the median of the block"),),
    caption="The first principal component over all images divides patches into foreground and background; its sign is "
    "chosen so that fewer border patches are foreground. A second PCA of the foreground gives the colours, so the same "
    "part has the same colour in all images. Outlier patches resemble each other at any position: TokenCut may cut "
    "them off instead of an object, and LOST may start from one.",
)
