"""Several objects of every image of a data set: MaskCut at every block of a feature store, AP and AR of the boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import scipy.ndimage
import torch
from numpy.typing import NDArray
from PIL import Image

from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureSet, FeatureStore
from dinoskip.io.files import write_json
from dinoskip.io.parts import Parts
from dinoskip.models import Backbone
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult
from dinoskip.results.statistics import explained_interval
from dinoskip.runtime.distributed import choose_device
from dinoskip.settings.config import dump
from dinoskip.settings.tasks import TaskInputs
from dinoskip_dense.objects.config import ObjectsConfig
from dinoskip_dense.objects.masks import MaskCutRound, cut_masks
from eval.baselines import BOXES, boxes_as_masks
from eval.labelled import places
from eval.object_scores import MatchedBoxes, Outline, match_boxes, match_masks, outline
from eval.picture_maps import write_map_index
from eval.resumed import ResumedArrays, degeneracy
from eval.rows import baseline_rows, log_best, percent_row, row_like
from eval.tokencut.cut import Grid
from eval.tokencut.graph import similarities
from eval.tokencut.positions import PositionRemoval, open_removal, take_out_positions
from eval.tokencut.store import ImageAtBlocks, each_graph, unit_features

Boxes = list[tuple[int, int, int, int]]
_KEPT = 0.5  # IoU of a mask before and after its holes are filled, from which on it is kept


@dataclass(frozen=True, eq=False)
class _ImageObjects:
    """An image at a block: boxes in its pixels, masks uint8 (h, w), how its first cut and its tokens look.

    ``numbers`` is 0 where no object is, else the round that has it; ``filled`` bool (k, h, w) has the mask of each box.
    """

    boxes: Boxes
    numbers: NDArray[np.uint8]
    filled: NDArray[np.bool_]
    degenerate: bool
    complete: bool
    cosine: float


def to_pixels(filled: NDArray[np.bool_], side: int, size: Grid) -> NDArray[np.bool_]:
    """Bring a mask of tokens to the square of ``side`` pixels by nearest and to ``size`` (H, W) by Pillow's default."""
    small = Image.fromarray(filled.astype(np.uint8) * 255).resize((side, side), Image.Resampling.NEAREST)
    return np.asarray(small.resize(size[::-1])) > 127


def object_boxes(
    rounds: Sequence[MaskCutRound], side: int, size: Grid
) -> tuple[Boxes, NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the boxes of the objects in pixels of an image of ``size`` (H, W), and their masks at token resolution.

    Those are the round of each token's object, 0 for none, and the mask of each box (k, h, w). Holes are filled; a box
    is that of :func:`to_pixels`, as in the reference.
    """
    boxes: Boxes = []
    kept: list[NDArray[np.bool_]] = []
    numbers = np.zeros(rounds[0].mask.shape, dtype=np.uint8)
    for number, masks in enumerate(rounds, 1):
        filled = scipy.ndimage.binary_fill_holes(masks.exclusive)
        if filled is None or not filled.any() or masks.exclusive.sum() < _KEPT * filled.sum():
            continue
        numbers[filled & (numbers == 0)] = number
        pixels = to_pixels(filled, side, size)
        rows, columns = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
        if len(rows):
            boxes.append((int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1))
            kept.append(filled)
    return boxes, numbers, np.array(kept, dtype=np.bool_).reshape(-1, *numbers.shape)


def _cut(
    store: FeatureStore,
    items: Sequence[ImageAtBlocks],
    config: ObjectsConfig,
    device: torch.device,
    positions: PositionRemoval | None,
) -> list[_ImageObjects]:
    unit, _, cosines = unit_features(store, items, device, config.centre, positions)
    grids = [store.grid(item.image) for item in items]
    try:
        cuts = cut_masks(similarities(unit), grids, config.tau, config.eps, config.rounds)
    except ValueError as error:
        raise DataError(f"{store.path}: {store.ids[items[0].image]}: block {items[0].blocks}: {error}") from error
    objects = []
    for item, rounds, cosine in zip(items, cuts, cosines, strict=True):
        boxes, numbers, filled = object_boxes(rounds, store.transform.size, store.image_size(item.image))
        objects.append(_ImageObjects(boxes, numbers, filled, rounds[0].degenerate, rounds[0].complete, cosine))
    return objects


class _Found:
    """The objects of every image at every block, in files.

    These are boxes (L, N, rounds, 4), their number, masks, and whether the first cut is degenerate.
    """

    def __init__(
        self, features: FeatureSet, config: ObjectsConfig, out: Path, network: Backbone | None, parts: Parts
    ) -> None:
        self.features, self.files = features, ResumedArrays(features, [dump(config)], out, parts)
        shape = (len(features.blocks), len(features))
        self._boxes = self.files.array("boxes", np.int64, (*shape, config.rounds, 4), 1)
        self._counts = self.files.array("counts", np.int64, shape, 1)
        self.degenerate, self.complete = (
            self.files.array(name, np.bool_, shape, 1) for name in ("degenerate", "complete")
        )
        self.cosines = self.files.array("cosines", np.float64, shape, 1)
        maps = (len(features), *features.grid(0))
        filled = (*shape, config.rounds, *features.grid(0))
        self._filled = self.files.array("filled", np.bool_, filled, 1) if config.masks else None
        self.masks = [self.files.kept(f"objects_block{block}", np.uint8, maps, 0) for block in features.blocks]
        self.positions = open_removal(features, config.positions, network, self.files.array)
        self.files.begin()

    def cut_all(self, config: ObjectsConfig, device: torch.device, workers: int) -> None:
        """Find the objects of every image that is not done, part by part."""
        groups = [(block,) for block in self.features.blocks]

        def work(part: FeatureStore) -> Iterator[tuple[int, tuple[int, _ImageObjects]]]:
            for item, objects in each_graph(
                part, groups, lambda batch: _cut(part, batch, config, device, self.positions), device, workers
            ):
                yield item.image, (groups.index((item.blocks[0],)), objects)

        def take(i: int, found: tuple[int, _ImageObjects]) -> None:
            number, objects = found
            count = len(objects.boxes)
            self._boxes[number, i, :count] = np.array(objects.boxes).reshape(-1, 4)
            self._counts[number, i] = count
            self.masks[number][i] = objects.numbers
            if self._filled is not None:
                self._filled[number, i, :count] = objects.filled
            self.degenerate[number, i], self.complete[number, i] = objects.degenerate, objects.complete
            self.cosines[number, i] = objects.cosine

        self.files.fill("MaskCut", len(groups), work, take)

    def boxes(self, number: int, i: int) -> NDArray[np.int64]:
        """Return the boxes (k, 4) of image ``i`` at a block."""
        return np.array(self._boxes[number, i, : self._counts[number, i]])

    def outlines(self, number: int, i: int) -> list[Outline]:
        """Return the objects of image ``i`` at a block as masks of its pixels, where masks are kept."""
        assert self._filled is not None
        side, size = self.features.transform.size, self.features.image_size(i)
        return [outline(to_pixels(box, side, size)) for box in self._filled[number, i, : self._counts[number, i]]]


@runtime_checkable
class OutlinedObjects(Protocol):
    """A detection set that has the outlines of its objects: ``masks(i)`` are bool (H, W), in the order of the boxes."""

    def masks(self, index: int) -> Sequence[NDArray[np.bool_]]: ...  # noqa: D102


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Find the objects of every image of a data set (:class:`eval.tokencut.evaluation.BoxDataset`) at every block.

    The features must be patch tokens (facet ``key`` by protocol) of square images. Writes ``rows.json`` with
    ``records.npz``: AP50, AP and AR100 in percent of every block, then those of the baselines' boxes; ``boxes.json``
    ``{id: {block: [[x1, y1, x2, y2], ...]}}`` in pixels, and for each block ``objects_block{b}.npy`` uint8 (N, h, w):
    0, or the number of the round whose object a token is of. With ``config.masks`` the same rows of the objects as
    masks follow, ``mask AP50`` and so on.

    Features are a store, or windows, whose images are cut as they are computed: the same call in the same ``out``
    continues after the last whole window.

    An image whose first cut does not exist has no object (rows: ``degenerate``).

    Raises :class:`ConfigError` for features of another image size, masks of a set without, or ``positions`` insid3
    without the network, :class:`DataError` if ids differ or features cannot be cut.
    """
    config: ObjectsConfig = given.settings
    out, (store,), (dataset,) = given.out, given.features.values(), given.labels.values()
    if store.transform.mode != "square":
        raise ConfigError(
            f"{store.path}: its images are not square ({store.transform.label})", "export with transform mode square"
        )
    outlined = dataset if isinstance(dataset, OutlinedObjects) else None
    if config.masks and outlined is None:
        raise ConfigError(f"masks: {dataset.name} has boxes alone", "kinds coco_json and coco20k have outlines")
    where = places(store, dataset)
    truth = [dataset.boxes(i) for i in where]
    masks = [[outline(mask) for mask in outlined.masks(i)] for i in where] if config.masks and outlined else None
    out.mkdir(parents=True, exist_ok=True)
    predicted = _Found(store, config, out, given.backbone, given.parts)
    take_out_positions(predicted.positions, store, given.backbone, out, given.parts)
    predicted.cut_all(config, choose_device(given.device), given.workers)
    boxes = [[predicted.boxes(number, i) for i in range(len(store))] for number in range(len(store.blocks))]
    by_image = {
        name: {str(block): of_block[i].tolist() for block, of_block in zip(store.blocks, boxes, strict=True)}
        for i, name in enumerate(store.ids)
    }
    write_json(out / "boxes.json", by_image)
    write_map_index(out, store, {block: f"objects_block{block}.npy" for block in store.blocks})
    template = row_like(given, "objects", "AP50", protocol=config.label)
    gone = [degeneracy(*cut) for cut in zip(predicted.degenerate, predicted.complete, predicted.cosines, strict=True)]
    rows = [replace(template, block=str(block), **said) for block, said in zip(store.blocks, gone, strict=True)]
    recorded: list[RecordedRow] = []
    for row, of_block in zip(rows, boxes, strict=True):
        recorded += _rows(row, match_boxes(of_block, truth))
    for name, rule in BOXES.items():
        same = [np.array([rule(*store.image_size(i))]) for i in range(len(store))]
        recorded += baseline_rows(name, _rows(template, match_boxes(same, truth)))
    if masks is not None:
        recorded += _mask_rows(predicted, masks, rows, template)
    log_best(recorded, "AP50")
    predicted.files.finish()
    return write_recorded_rows(out, store.ids, recorded)


def _mask_rows(
    objects: _Found, truth: Sequence[Sequence[Outline]], rows: Sequence[EvalResult], template: EvalResult
) -> list[RecordedRow]:
    """Score objects as masks, a row for each of ``rows``: every block, then the baselines' boxes."""
    features = objects.features
    recorded: list[RecordedRow] = []
    for number, about in enumerate(rows):
        predicted = [objects.outlines(number, i) for i in range(len(features))]
        recorded += _rows(about, match_masks(predicted, truth), "mask ")
    for name in BOXES:
        same = [[outline(boxes_as_masks(features.image_size(i))[name])] for i in range(len(features))]
        recorded += baseline_rows(name, _rows(template, match_masks(same, truth), "mask "))
    return recorded


def _rows(template: EvalResult, matched: MatchedBoxes, kind: str = "") -> list[RecordedRow]:
    """Rows of AP50, AP and AR100 with their intervals and records."""
    every, recalled = matched.detections, matched.recalled
    first = every.at(0, 1)
    return [
        percent_row(template, f"{kind}AP50", matched.ap[0], explained_interval(first), first),
        percent_row(template, f"{kind}AP", matched.ap.mean(), explained_interval(every), every),
        percent_row(template, f"{kind}AR100", matched.ar.mean(), explained_interval(recalled), recalled),
    ]
