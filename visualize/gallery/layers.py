"""One cell of the gallery: the pictures and scores of one image by one model, every block of a layer in one PNG.

A sheet has a row a block and a column a part (a PCA basis, an attention head), each map at token resolution and
without gaps; gallery.js cuts it up. So moving through blocks loads nothing, and a gallery is hundreds of files, not
tens of thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dinoskip.data.segmentation import voc_palette
from visualize import rasters
from visualize.colours import PcaViews
from visualize.gallery.content import Classes, GalleryImage, GalleryModel
from visualize.gallery.files import PictureFiles
from visualize.gallery.scores import METRICS, best_iou, image_scores, mean_cosine
from visualize.palette import diverging, sequential

MAP_LAYERS: Mapping[str, tuple[int, ...]] = {
    "cluster": (),
    "saliency": (rasters.VEIL, 0),
    "objects": (rasters.VEIL, *[rasters.TINT] * 255),
}
"""Layers of ``GalleryModel.maps``, and how opaque the colours of their values are; () is opaque."""
STRIP_LAYERS: Mapping[str, tuple[int, ...]] = {
    "video": (0, *[rasters.TINT] * 255),
    "correspondence": (0, *[255] * 255),
}
"""Layers of ``GalleryModel.strips``, and how opaque their colours are."""
Maps = Mapping[int, Sequence[np.ndarray]]  # block -> one map (h, w, ...) a part, in the colours of the sheet


@dataclass
class GalleryCell:
    """What gallery.js reads: ``layers[layer]`` = size, blocks, ...; ``scores[metric][block]`` = number."""

    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    scores: dict[str, dict[int, float]] = field(default_factory=dict)

    def score(self, metric: str, block: int, value: float | None) -> None:
        """Keep a score, rounded to one digit more than is shown, unless there is none."""
        if value is not None:
            self.scores.setdefault(metric, {})[block] = round(value, METRICS[metric].digits + 1)


@dataclass(frozen=True)
class CellWriter:
    """Writes the cells of one column."""

    column: int
    model: GalleryModel
    views: PcaViews
    classes: Classes | None
    pictures: PictureFiles

    def write(self, row: int, image: GalleryImage) -> GalleryCell:
        """Write all layers of one image."""
        cell = GalleryCell()
        if image.layer in STRIP_LAYERS:
            strips = self.model.strips.get(image.layer, {})
            drawn = {block: own[image.id] for block, own in strips.items() if image.id in own}
            encode = partial(rasters.palette_png, palette=voc_palette(), opacity=STRIP_LAYERS[image.layer])
            self._sheet(cell, image.layer, row, drawn, encode, parts=[0, 1])
            return cell
        if not image.layer:
            self._pca(cell, row, image)
            self._probe(cell, row, image)
            self._tokencut(cell, row, image)
            self._attention(cell, row, image)
            self._maps(cell, row, image)
        for layer, by_block in self.model.surfaces.items():
            maps = {block: own[image.id] for block, own in by_block.items() if image.id in own}
            self._sheet(cell, layer, row, maps, rasters.png, parts=[0, 1])
        return cell

    def _sheet(
        self, cell: GalleryCell, layer: str, row: int, maps: Maps, encode: Callable[[np.ndarray], bytes], **more: Any
    ) -> None:
        if not maps:
            return
        blocks = sorted(maps)
        self.pictures.add(
            f"{layer}-m{self.column}-i{row:03d}.png", encode(rasters.sheet([maps[block] for block in blocks]))
        )
        height, width = maps[blocks[0]][0].shape[:2]
        cell.layers[layer] = {"size": [width, height], "blocks": blocks, **more}

    def _pca(self, cell: GalleryCell, row: int, image: GalleryImage) -> None:
        views = [view[self.column] for view in (self.views.aligned, self.views.own, self.views.image)]
        own, alone = bool(views[1]), len(self.views.aligned) == 1
        maps: dict[int, list[np.ndarray]] = {}
        for block, pictures in views[0].items():
            first = pictures[row]
            if first is not None:  # own or image may be missing of a block: the aligned colours then stand for them
                others = [view[block][row] if block in view else first for view in views[1:]]
                chosen = [first, *others] if own else [first, others[1]]
                maps[block] = [rasters.fewer_levels(first if one is None else one) for one in chosen]
        self._sheet(cell, "pca", row, maps, rasters.png, parts=[0, 1, 2] if own else [0, 1] if alone else [0, 0, 1])
        store = self.model.store
        if store is not None and image.id in store.ids:
            index = list(store.ids).index(image.id)
            for block in store.blocks:
                cell.score("cosine", block, mean_cosine(np.asarray(store.tokens(block, index), np.float32)))

    def _probe(self, cell: GalleryCell, row: int, image: GalleryImage) -> None:
        if self.classes is None:
            return
        palette = self.classes.palette
        predictions = self.model.predictions.items()
        maps = {block: [predicted[image.id]] for block, predicted in predictions if predicted.get(image.id) is not None}
        self._sheet(cell, "probe", row, maps, lambda values: rasters.palette_png(values, palette))
        if image.label is None:
            return
        for block, (prediction,) in maps.items():
            for metric, value in image_scores(prediction, image.label).items():
                cell.score(metric, block, value)

    def _tokencut(self, cell: GalleryCell, row: int, image: GalleryImage) -> None:
        cuts = {block: cuts[image.id] for block, cuts in self.model.discoveries.items() if image.id in cuts}
        if not cuts:
            return
        first = cuts[min(cuts)]
        height, width = (cells * first.patch_size for cells in first.mask.shape)
        vectors = {block: [rasters.eigenvector_levels(cut.eigenvector)] for block, cut in cuts.items()}
        colours = diverging(rasters.EIGEN_LEVELS)
        self._sheet(
            cell, "vector", row, vectors, lambda values: rasters.palette_png(values, colours), cover=[width, height]
        )
        veil = np.array([rasters.VEIL_COLOUR, rasters.VEIL_COLOUR], np.uint8)
        masks = {block: [cut.mask.astype(np.uint8)] for block, cut in cuts.items()}
        boxes = {block: [round(float(side), 1) for side in cut.box] for block, cut in cuts.items()}
        self._sheet(
            cell, "cut", row, masks, lambda values: rasters.palette_png(values, veil, (rasters.VEIL, 0)),
            cover=[width, height], boxes=boxes,
        )  # fmt: skip
        for block, cut in cuts.items():
            cell.score("foreground", block, 100.0 * float(cut.mask.mean()))
            if image.boxes is not None:
                cell.score("iou", block, best_iou(cut.box, image.boxes))

    def _attention(self, cell: GalleryCell, row: int, image: GalleryImage) -> None:
        attention = {
            block: np.asarray(heads[image.id], np.float64)
            for block, heads in self.model.attention.items()
            if image.id in heads and np.isfinite(heads[image.id]).all()
        }
        if not attention:
            return
        # the mean of heads comes first
        each = {block: [heads.mean(axis=0), *heads] for block, heads in attention.items()}
        maps = {block: [rasters.heat_levels(head) for head in heads] for block, heads in each.items()}
        peaks = {block: [round(100 * float(head.max()), 1) for head in heads] for block, heads in each.items()}
        colours = sequential(rasters.HEAT_LEVELS)
        count = max(map(len, maps.values()))
        self._sheet(
            cell, "attention", row, maps, lambda values: rasters.palette_png(values, colours),
            parts=list(range(count)), peaks=peaks,
        )  # fmt: skip

    def _maps(self, cell: GalleryCell, row: int, image: GalleryImage) -> None:
        """Clusters in the classes' colours; objects over the photograph in colours of their own, the rest veiled."""
        veiled = np.concatenate([np.array([rasters.VEIL_COLOUR], np.uint8), voc_palette()[1:]])
        for layer, opacity in MAP_LAYERS.items():
            by_block = self.model.maps.get(layer, {}).items()
            shown = {block: [np.asarray(maps[image.id], np.uint8)] for block, maps in by_block if image.id in maps}
            palette = veiled if opacity else None if self.classes is None else self.classes.palette
            if palette is not None:
                self._sheet(cell, layer, row, shown, partial(rasters.palette_png, palette=palette, opacity=opacity))
