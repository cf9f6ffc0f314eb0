"""Predictions of each block's linear probe for every pixel."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import numpy as np

from visualize import rasters
from visualize.gallery.layers.layer import Cell, Drawn, ImageScore, Layer, Scores
from visualize.gallery.scores import image_scores


def _predicted(cell: Cell) -> dict[int, np.ndarray]:
    maps = {block: predicted.get(cell.image.id) for block, predicted in cell.model.predictions.items()}
    return {block: classes for block, classes in maps.items() if classes is not None}


def draw(cell: Cell) -> Drawn | None:
    """Label maps in the classes' colours."""
    if cell.classes is None:
        return None
    encode = partial(rasters.palette_png, palette=cell.classes.palette)
    return Drawn({block: [classes] for block, classes in _predicted(cell).items()}, encode)


def scores(cell: Cell) -> Scores:
    """Return mIoU and the share of pixels that are right, of an image with labels."""
    if cell.classes is None or cell.image.label is None:
        return {}
    scores_of: dict[str, dict[int, float | None]] = defaultdict(dict)
    for block, prediction in _predicted(cell).items():
        for metric, value in image_scores(prediction, cell.image.label).items():
            scores_of[metric][block] = value
    return scores_of


LAYER = Layer(
    name="Probe",
    order=30,
    source="predictions",
    draw=draw,
    scores=scores,
    metrics={
        "miou": ImageScore("mIoU of the image by the probe", "mIoU", 0, "\u00a0%"),
        "right": ImageScore("pixels that the probe gets right", "right", 0, "\u00a0%"),
    },
    of_classes=True,
    caption="mIoU of one image: over the classes in its label or prediction",
)
