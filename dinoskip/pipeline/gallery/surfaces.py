"""What the gallery shows of depth and surface normals: predicted and true maps, as colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.geometry import DepthDataset, NormalsDataset
from dinoskip.data.sets import open_labels
from dinoskip.data.sets.labels import LABELS
from dinoskip.pipeline.gallery.settings import GallerySettings
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.stages.inputs import dataset_of
from eval.joined import part_folder
from visualize.gallery.content import GalleryImage
from visualize.palette import sequential
from visualize.rasters import nearest

NEAREST, FARTHEST = 0.5, 10.0
"""Metres: the ends of the colours of depth, logarithmic between."""
_GREY = 128
Colours = NDArray[np.uint8]
Pictures = dict[str, dict[int, dict[str, Sequence[np.ndarray]]]]
"""Layer -> block -> image id -> its predicted and its true map, uint8 (h, w, 3)."""


def depth_colours(metres: NDArray[Any]) -> Colours:
    """Colours (h, w, 3) of a depth map (h, w): near is pale, far is dark, not measured (0, NaN) is grey."""
    known = np.isfinite(metres) & (metres > 0)
    logarithm = np.log(np.where(known, metres, FARTHEST).clip(NEAREST, FARTHEST).astype(np.float64))
    far = (logarithm - np.log(NEAREST)) / (np.log(FARTHEST) - np.log(NEAREST))
    colours: Colours = sequential(256)[np.rint(255 * (1 - far)).astype(np.intp)]
    colours[~known] = _GREY
    return colours


def normal_colours(normals: NDArray[Any]) -> Colours:
    """Colours (h, w, 3) of normals (h, w, 3), -1 to 1 as 0 to 255; grey where there is none."""
    values = np.nan_to_num(normals.astype(np.float64))
    colours: Colours = np.rint(np.clip(127.5 * (values + 1), 0, 255)).astype(np.uint8)
    colours[np.abs(values).max(-1) == 0] = _GREY
    return colours


def _in_the_middle(square: Colours, height: int, width: int) -> Colours:
    """A map of the square in the middle of an image (height, width), grey beside it up to the whole image."""
    if height >= width:
        around = round(square.shape[0] * (height - width) / width / 2)
        return np.pad(square, ((around, around), (0, 0), (0, 0)), constant_values=_GREY)
    around = round(square.shape[1] * (width - height) / height / 2)
    return np.pad(square, ((0, 0), (around, around), (0, 0)), constant_values=_GREY)


def surface_pictures(task: Task, label: str, ids: Sequence[str], blocks: Sequence[int] = ()) -> Pictures:
    """The maps that the stages ``depth`` and ``normals`` have saved of a network's ``blocks`` for images ``ids``.

    Of a data set beside the gallery's they are those of :func:`surface_images`.
    """
    pictures: Pictures = {}
    for layer, pictured in (("depth", _depth), ("normals", _normals)):
        folder = task.inputs.get(f"{layer}:{label}")
        if folder is None:
            continue
        opened, of_other_set = _opened(task, layer)
        folder = part_folder(folder, blocks)
        drawn = pictured(opened, folder, opened.ids[: task.settings.section.first] if of_other_set else ids)
        pictures[layer] = {
            block: {_other_id(layer, name) if of_other_set else name: pair for name, pair in of_block.items()}
            for block, of_block in drawn.items()
        }
    return pictures


def surface_images(task: Task) -> list[GalleryImage]:
    """The first images of the data sets beside the gallery's whose depth or normals are shown."""
    images = []
    for layer in task.settings.surfaces:
        opened, _ = _opened(task, layer)
        count = min(len(opened.ids), task.settings.section.first)
        images += [GalleryImage(_other_id(layer, opened.ids[i]), opened.path(i), layer=layer) for i in range(count)]
    return images


def _other_id(layer: str, name: str) -> str:
    return f"{layer} {name}"


def _opened(task: Task, layer: str) -> tuple[Any, bool]:
    """The data set that has a layer's true maps, and whether it is another than the gallery's."""
    settings: GallerySettings = task.settings
    of_other_set = layer in settings.surfaces
    config, root = dataset_of(task, layer if of_other_set else "")
    return open_labels(LABELS[layer], config, settings.surfaces.get(layer, settings.split), root), of_other_set


def _saved(folder: Path, ids: Sequence[str]) -> dict[int, dict[str, NDArray[Any]]]:
    """Maps by block and image id, of single blocks and of images that are shown."""
    with np.load(folder / "maps.npz", allow_pickle=False) as stored:
        where = {str(name): i for i, name in enumerate(stored["ids"].tolist()) if str(name) in set(ids)}
        numbers = [int(name[5:]) for name in stored.files if name[5:].isdecimal()]
        return {b: {name: stored[f"block{b}"][i] for name, i in where.items()} for b in numbers}


def _depth(opened: DepthDataset, folder: Path, ids: Sequence[str]) -> dict[int, dict[str, Sequence[np.ndarray]]]:
    index = {name: i for i, name in enumerate(opened.ids)}
    truths: dict[str, Colours] = {}

    def both(name: str, predicted: NDArray[Any]) -> Sequence[np.ndarray]:
        if name not in truths:
            truths[name] = depth_colours(nearest(opened.depth(index[name]), predicted.shape[:2]))
        return depth_colours(predicted), truths[name]

    return _by_block(_saved(folder, ids), both, index)


def _normals(opened: NormalsDataset, folder: Path, ids: Sequence[str]) -> dict[int, dict[str, Sequence[np.ndarray]]]:
    index = {name: i for i, name in enumerate(opened.ids)}
    truths: dict[str, tuple[Colours, tuple[int, int]]] = {}

    def both(name: str, predicted: NDArray[Any]) -> Sequence[np.ndarray]:
        square = normal_colours(np.moveaxis(predicted, 0, -1))
        if name not in truths:
            labelled = opened.read(index[name])
            size = (labelled.valid.shape[0], labelled.valid.shape[1])
            shape = _in_the_middle(square, *size).shape
            truth = normal_colours(nearest(labelled.normals * labelled.valid[..., None], (shape[0], shape[1])))
            truths[name] = truth, size
        truth, size = truths[name]
        return _in_the_middle(square, *size), truth

    return _by_block(_saved(folder, ids), both, index)


def _by_block(
    saved: Mapping[int, Mapping[str, NDArray[Any]]],
    both: Callable[[str, NDArray[Any]], Sequence[np.ndarray]],
    known: Mapping[str, int],
) -> dict[int, dict[str, Sequence[np.ndarray]]]:
    return {
        block: {name: both(name, raw) for name, raw in maps.items() if name in known} for block, maps in saved.items()
    }
