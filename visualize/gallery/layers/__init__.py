"""The layers of the gallery: each is a file of this folder with its ``LAYER``, or a plug-in's.

``layer`` says what one is. Beside these a page has the photographs and the similarity to a clicked patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dinoskip.plugins import Table
from visualize.gallery.layers.attention import LAYER as ATTENTION
from visualize.gallery.layers.cut import LAYER as CUT
from visualize.gallery.layers.foreground import LAYER as FOREGROUND
from visualize.gallery.layers.layer import ImageScore, Layer
from visualize.gallery.layers.pca import LAYER as PCA
from visualize.gallery.layers.probe import LAYER as PROBE
from visualize.gallery.layers.vector import LAYER as VECTOR

_OWN: Mapping[str, Layer] = {
    "pca": PCA,
    "foreground": FOREGROUND,
    "probe": PROBE,
    "vector": VECTOR,
    "cut": CUT,
    "attention": ATTENTION,
}
LAYERS: Mapping[str, Layer] = Table("layers", _OWN, Layer)
"""The layers by the name of their pictures, in the order of their buttons; those that a task draws have its name."""


def image_scores() -> dict[str, ImageScore]:
    """The scores of single images that layers have, by key; ``layers`` is filled in."""
    return {
        key: replace(score, layers=score.layers or (name,))
        for name, layer in LAYERS.items()
        for key, score in layer.metrics.items()
    }


def version() -> int:
    """Version of a gallery: every layer makes another. Change the number where a layer draws otherwise."""
    return len(LAYERS) + 4
