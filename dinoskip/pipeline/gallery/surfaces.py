"""Gallery pictures of tasks that predict a map of every image: that map and the true one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.sets import open_labels
from dinoskip.data.sets.labels import LABELS
from dinoskip.io.files import open_regular
from dinoskip.pipeline.gallery.settings import GallerySettings
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.stages.inputs import dataset_of
from dinoskip.settings.tasks import SurfacePictures, task, tasks
from eval.joined import part_folder
from visualize.gallery.content import GalleryImage

Surfaces = dict[str, dict[int, dict[str, tuple[NDArray[Any], NDArray[Any]]]]]
"""Layer -> block -> image id -> its predicted and its true map, as the task has them."""


def surface_maps(of: Task, label: str, ids: Sequence[str], blocks: Sequence[int] = ()) -> Surfaces:
    """The maps that tasks have saved of a network's ``blocks`` for images ``ids``, by the task's name.

    Of a data set beside the gallery's they are those of :func:`surface_images`.
    """
    found: Surfaces = {}
    for record in tasks():
        folder = of.inputs.get(f"{record.name}:{label}")
        if folder is None or not isinstance(record.pictures, SurfacePictures):
            continue
        opened, of_other_set = _opened(of, record.name)
        shown = opened.ids[: of.settings.section.first] if of_other_set else ids
        index = {name: i for i, name in enumerate(opened.ids)}
        saved = _saved(part_folder(folder, blocks), [name for name in shown if name in index])
        truth = {name: np.asarray(record.pictures.truth(opened, index[name])) for name in _names(saved)}
        found[record.name] = {
            block: {_id(record.name, name, of_other_set): (predicted, truth[name]) for name, predicted in maps.items()}
            for block, maps in saved.items()
        }
    return found


def _names(saved: Mapping[int, Mapping[str, Any]]) -> set[str]:
    return {name for maps in saved.values() for name in maps}


def surface_images(of: Task) -> list[GalleryImage]:
    """The first images of the data sets beside the gallery's that such tasks are done on."""
    images = []
    for layer in of.settings.surfaces:
        opened, _ = _opened(of, layer)
        count = min(len(opened.ids), of.settings.section.first)
        images += [GalleryImage(_id(layer, opened.ids[i], True), opened.path(i), layer=layer) for i in range(count)]
    return images


def _id(layer: str, name: str, of_other_set: bool) -> str:
    return f"{layer} {name}" if of_other_set else name


def _opened(of: Task, layer: str) -> tuple[Any, bool]:
    """The data set that has a layer's true maps, and whether it is another than the gallery's."""
    settings: GallerySettings = of.settings
    of_other_set = layer in settings.surfaces
    config, root = dataset_of(of, layer if of_other_set else "")
    label = LABELS[task(layer).label]
    return open_labels(label, config, settings.surfaces.get(layer, settings.split), root), of_other_set


def _saved(folder: Path, ids: Sequence[str]) -> dict[int, dict[str, NDArray[Any]]]:
    """Maps by block and image id, of single blocks and of images that are shown."""
    with open_regular(folder / "maps.npz") as stream, np.load(stream, allow_pickle=False) as stored:
        where = {str(name): i for i, name in enumerate(stored["ids"].tolist()) if str(name) in set(ids)}
        numbers = [int(name[5:]) for name in stored.files if name[5:].isdecimal()]
        return {b: {name: stored[f"block{b}"][i] for name, i in where.items()} for b in numbers}
