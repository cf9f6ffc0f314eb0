"""Clusters of patches, in the colours of the classes that they were matched to."""

from __future__ import annotations

from visualize.gallery.layers.layer import Cell, Drawn, Layer, values


def draw(cell: Cell) -> Drawn | None:
    """Clusters in the colours of their classes, opaque; None without classes."""
    return None if cell.classes is None else values("cluster", cell, cell.classes.palette)


LAYER = Layer(
    name="Clusters",
    order=60,
    source="maps",
    draw=draw,
    of_classes=True,
    caption="classes that clusters were matched to after they were made; off-white: to none",
)
