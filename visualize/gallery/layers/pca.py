"""PCA of the patch features as colours: aligned along blocks and models, unaligned, or with a basis for each image."""

from __future__ import annotations

import numpy as np

from visualize import rasters
from visualize.gallery.layers.layer import Cell, Drawn, ImageScore, Layer, Scores
from visualize.gallery.scores import mean_cosine


def draw(cell: Cell) -> Drawn:
    """Each basis a part; a block without colours in its own or an image's basis has the aligned ones there."""
    views = [view[cell.column] for view in (cell.views.aligned, cell.views.unturned, cell.views.image)]
    has_own_basis = bool(views[1])
    maps: dict[int, list[np.ndarray]] = {}
    for block, pictures in views[0].items():
        first = pictures[cell.row]
        if first is not None:
            others = [view[block][cell.row] if block in view else first for view in views[1:]]
            chosen = [first, *others] if has_own_basis else [first, others[1]]
            maps[block] = [rasters.fewer_levels(first if colours is None else colours) for colours in chosen]
    return Drawn(maps, rasters.png, {"parts": [0, 1, 2] if has_own_basis else [0, 0, 1]})


def scores(cell: Cell) -> Scores:
    """The mean cosine between two tokens."""
    store = cell.model.store
    if store is None or cell.image.id not in store.ids:
        return {}
    index = list(store.ids).index(cell.image.id)
    return {"cosine": {b: mean_cosine(np.asarray(store.tokens(b, index), np.float32)) for b in store.blocks}}


LAYER = Layer(
    name="PCA",
    order=10,
    source="store",
    draw=draw,
    scores=scores,
    metrics={"cosine": ImageScore("mean cosine between two tokens", "cosine", 2, layers=("pca", "similarity"))},
    parts=("aligned", "unaligned", "per image"),
    caption="First three principal components as red, green, blue.",
    compared="Aligned: one colour basis per model and block, rotated to match the next deeper block and the first "
    "model, so colours can be compared. Unaligned: the same, not rotated. Per image: a basis for each, most contrast.",
    alone="Aligned: one basis per block over all images, rotated to match the next deeper block. Unaligned: the same, "
    "not rotated. Per image: a basis for each, most contrast.",
)
