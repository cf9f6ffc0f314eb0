"""Rows of the gallery that are not photographs of its data set: strips of videos, pairs with keypoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dinoskip.io.images import read_mask
from dinoskip.pipeline.stage import Task
from dinoskip.settings.tasks import StripPictures, tasks
from eval.joined import part_folder
from visualize.gallery.content import GalleryImage


def _strips() -> dict[str, StripPictures]:
    """Return the strips of tasks by name; a name is also the layer of the gallery."""
    return {record.name: record.pictures for record in tasks() if isinstance(record.pictures, StripPictures)}


def role_of(stage: str, label: str) -> str:
    """The role in which the gallery has the output of a stage for a network."""
    return f"{stage} strips:{label}"


def _folders(task: Task, stage: str, label: str, blocks: Sequence[int] = ()) -> list[Path]:
    """Folders of pictures of ``blocks``; of whichever come first where none are named."""
    output = task.inputs.get(role_of(stage, label))
    if output is None:
        return []
    places = [part_folder(output, blocks)] if blocks else [output, *sorted(output.glob("blocks*-*"))]
    folders = [place / _strips()[stage].folder for place in places]
    inside = next((folder for folder in folders if folder.is_dir()), None)
    return [] if inside is None else sorted(inside.iterdir())


def strip_images(task: Task) -> list[GalleryImage]:
    """The strips and pairs that any network has, each once; ids are ``video 0000``."""
    images: dict[str, GalleryImage] = {}
    for stage, files in _strips().items():
        for model in task.settings.models:
            for folder in _folders(task, stage, model.label):
                name = f"{stage} {folder.name}"
                images.setdefault(name, GalleryImage(name, folder / files.photo, layer=stage))
    return list(images.values())


def strip_maps(
    task: Task, label: str, blocks: Sequence[int]
) -> dict[str, dict[int, dict[str, tuple[np.ndarray, np.ndarray]]]]:
    """Return the maps of each of ``blocks`` and the truth: ``{layer: {block: {image id: (found, true)}}}``."""
    drawn: dict[str, dict[int, dict[str, tuple[np.ndarray, np.ndarray]]]] = {}
    for stage in _strips():
        for folder in _folders(task, stage, label, blocks):
            truth = read_mask(folder / "truth.png")
            for path in folder.glob("block*.png"):
                block = path.stem.removeprefix("block")
                if block.isdigit():
                    by_image = drawn.setdefault(stage, {}).setdefault(int(block), {})
                    by_image[f"{stage} {folder.name}"] = read_mask(path), truth
    return drawn
