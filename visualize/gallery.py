"""A static page of models x blocks x images: the same colours mean the same thing in every column.

``build_gallery`` writes ``index.html`` and small PNG files named by number; the browser scales them. Nothing
in the page is fetched from elsewhere, and no text from the data becomes markup or a file name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from dinoskip.config import Config
from dinoskip.errors import ConfigError
from dinoskip.results import EvalResult
from visualize import layers
from visualize.charts import block_charts
from visualize.colours import TokenSource, pca_colours
from visualize.pages import clean, render_page
from visualize.palette import to_hex, variant_colours

Cell = dict[str, dict[str, dict[str, Any]]]  # layer -> block -> caption, box and extent of one picture
LAYERS = {"pca": "PCA", "probe": "Probe", "vector": "Eigenvector", "cut": "TokenCut", "photo": "Photo"}


class GalleryConfig(Config):
    """How the gallery looks; a change re-runs nothing but the gallery and the report."""

    title: str = "Block by block"
    first: int = Field(40, ge=1, le=2000)  # images shown, from the start of the list given
    block: int | None = Field(None, ge=1)  # shown on opening; None is the deepest
    photo_size: int = Field(480, ge=64, le=4096)  # longer side of the photographs in pixels
    smooth: bool = False  # tokens blended by the browser instead of shown as squares (a switch on the page, too)


@dataclass(frozen=True)
class Discovery:
    """What TokenCut found in one image at one block.

    ``box`` is x1 y1 x2 y2 in pixels of the image, end exclusive; ``eigenvector`` (h, w) float and ``mask``
    (h, w) bool lie on cells of ``patch_size`` pixels from the image's top left corner, and may overhang it.
    """

    box: tuple[float, float, float, float]
    eigenvector: np.ndarray
    mask: np.ndarray
    patch_size: int


@dataclass(frozen=True)
class GalleryImage:
    """One photograph: its id in the stores, its file, and its ground truth where there is some.

    ``label`` is uint8 (H, W) with 255 ignored; ``boxes`` is (K, 4) x1 y1 x2 y2 in pixels, end exclusive.
    """

    id: str
    path: Path
    label: np.ndarray | None = None
    boxes: np.ndarray | None = None


@dataclass(frozen=True)
class GalleryModel:
    """One column. Maps are ``{block: {image id: ...}}``; what is missing is shown as missing.

    ``predictions`` are label maps uint8 of any resolution that cover the whole image (token grid x 4 is
    enough); ``rows`` feed the curves above the pictures.
    """

    name: str
    store: TokenSource | None = None
    predictions: Mapping[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    discoveries: Mapping[int, Mapping[str, Discovery]] = field(default_factory=dict)
    rows: Sequence[EvalResult] = ()
    description: str = ""


@dataclass(frozen=True)
class Classes:
    """Class names by label value, and the data set's palette uint8 (256, 3)."""

    names: Sequence[str]
    palette: np.ndarray


def build_gallery(
    models: Sequence[GalleryModel],
    images: Sequence[GalleryImage],
    out: Path,
    config: GalleryConfig | None = None,
    *,
    classes: Classes | None = None,
    colours: Sequence[Mapping[int, Sequence[np.ndarray | None]]] | None = None,
) -> None:
    """Write ``out/index.html`` and ``out/img/*``: columns are ``models``, rows are the first ``config.first`` images.

    ``colours`` are the PCA colours of :func:`visualize.colours.pca_colours` for the same models and images, if
    the caller has them; else they are computed here. Raises :class:`ConfigError` without models or images, and
    :class:`DataError` for an unreadable photograph.
    """
    config = config or GalleryConfig()
    images = images[: config.first]
    if not models or not images:
        raise ConfigError("gallery: needs at least one model and one image", "check the study's gallery dataset")
    if colours is None:
        colours = pca_colours([model.store for model in models], [image.id for image in images])
    folder = out / "img"
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [_write_reference(folder, number, image, config, classes) for number, image in enumerate(images)]
    cells = [
        [_write_cells(folder, column, row, model, image, colours[column], classes) for row, image in enumerate(images)]
        for column, model in enumerate(models)
    ]
    data = _page_data(models, images, sizes, cells, config, classes)
    shown = _classes_shown(models, images, classes)
    render_page(
        out / "index.html",
        "gallery.html",
        {
            "title": config.title,
            "models": models,
            "images": images,
            "data": data,
            "charts": block_charts({str(number): model.rows for number, model in enumerate(models)}, data["blocks"]),
            "classes": [(number, classes.names[number]) for number in shown] if classes else [],
            "smooth": config.smooth,
        },
        styles=("base.css", "gallery.css"),
        extra_style=_colour_style(len(models), shown, classes),
        script="gallery.js",
    )


def _page_data(
    models: Sequence[GalleryModel],
    images: Sequence[GalleryImage],
    sizes: Sequence[tuple[int, int]],
    cells: Sequence[Sequence[Cell]],
    config: GalleryConfig,
    classes: Classes | None,
) -> dict[str, Any]:
    """What gallery.js reads: blocks, layers, names, image sizes and boxes, and which pictures there are."""
    blocks = sorted(
        {int(block) for column in cells for cell in column for layer in cell.values() for block in layer}
        | {block for model in models if model.store is not None for block in model.store.blocks}
    ) or [1]
    present = [key for key in LAYERS if key == "photo" or any(cell.get(key) for column in cells for cell in column)]
    start = config.block if config.block in blocks else blocks[-1]
    return {
        "blocks": blocks,
        "block": start,
        "layer": present[0],
        "layers": [{"key": key, "name": LAYERS[key]} for key in present],
        "models": [clean(model.name, 60) for model in models],
        "images": [
            {
                "id": clean(image.id),
                "width": size[1],
                "height": size[0],
                "label": image.label is not None and classes is not None,
                "boxes": [] if image.boxes is None else np.round(image.boxes, 1).tolist(),
            }
            for image, size in zip(images, sizes, strict=True)
        ],
        "cells": cells,
    }


def _write_reference(
    folder: Path, number: int, image: GalleryImage, config: GalleryConfig, classes: Classes | None
) -> tuple[int, int]:
    """Write the photograph and its label map; return the image's own (height, width)."""
    pixels, size = layers.photo(image.path, config.photo_size)
    layers.save_jpeg(folder / f"photo-{number:03d}.jpg", pixels)
    if image.label is not None and classes is not None:
        small = layers.nearest(image.label, pixels.shape[:2])
        layers.save_labels(folder / f"label-{number:03d}.png", small, classes.palette)
    return size


def _write_cells(
    folder: Path,
    column: int,
    row: int,
    model: GalleryModel,
    image: GalleryImage,
    colours: Mapping[int, Sequence[np.ndarray | None]],
    classes: Classes | None,
) -> Cell:
    """Write one model's pictures of one image; return ``{layer: {block: {text, box, cover}}}`` for the script."""
    cell: Cell = {}
    for block, maps in colours.items():
        pixels = maps[row]
        if pixels is not None:
            layers.save_png(folder / _name("pca", block, column, row), pixels)
            cell.setdefault("pca", {})[str(block)] = {"text": ""}
    for block, predicted in model.predictions.items():
        prediction = predicted.get(image.id)
        if prediction is not None and classes is not None:
            layers.save_labels(folder / _name("probe", block, column, row), prediction, classes.palette)
            accuracy = None if image.label is None else layers.pixel_accuracy(prediction, image.label)
            text = "" if accuracy is None else f"{accuracy:.0f} % right"
            cell.setdefault("probe", {})[str(block)] = {"text": text}
    for block, discovery in _found(model, image.id):
        layers.save_png(folder / _name("vector", block, column, row), layers.eigenvector_pixels(discovery.eigenvector))
        layers.save_png(folder / _name("cut", block, column, row), layers.mask_pixels(discovery.mask))
        height, width = (cells * discovery.patch_size for cells in discovery.mask.shape)
        iou = None if image.boxes is None else layers.best_iou(discovery.box, image.boxes)
        cell.setdefault("vector", {})[str(block)] = {"text": "", "cover": [width, height]}
        cell.setdefault("cut", {})[str(block)] = {
            "text": "" if iou is None else f"IoU {iou:.2f}" + (" ✓" if iou >= 0.5 else ""),
            "cover": [width, height],
            "box": [round(side, 1) for side in discovery.box],
        }
    return cell


def _found(model: GalleryModel, name: str) -> Iterator[tuple[int, Discovery]]:
    for block, found in model.discoveries.items():
        if name in found:
            yield block, found[name]


def _name(layer: str, block: int, column: int, row: int) -> str:
    """File name of one picture; gallery.js spells it the same way."""
    return f"{layer}-m{column}-i{row:03d}-b{block:02d}.png"


def _classes_shown(
    models: Sequence[GalleryModel], images: Sequence[GalleryImage], classes: Classes | None
) -> list[int]:
    """Label values that occur in the pictures, for the legend."""
    if classes is None:
        return []
    ids = {image.id for image in images}
    maps = [image.label for image in images if image.label is not None]
    maps += [
        one for model in models for found in model.predictions.values() for name, one in found.items() if name in ids
    ]
    values = {int(value) for one in maps for value in np.unique(one)}
    return sorted(value for value in values if value < len(classes.names))


def _colour_style(count: int, shown: Sequence[int], classes: Classes | None) -> str:
    """CSS made of numbers only: one colour per model (light and dark) and one swatch per class."""
    light = "".join(f"--m{index}:{colour};" for index, colour in enumerate(variant_colours(count)))
    dark = "".join(f"--m{index}:{colour};" for index, colour in enumerate(variant_colours(count, dark=True)))
    rules = [f":root{{{light}}}", f"@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"]
    rules += [f".m{index}{{--own:var(--m{index})}}" for index in range(count)]
    if classes is not None:
        rules += [f".class-{number}{{background:{to_hex(classes.palette[number])}}}" for number in shown]
    return "\n".join(rules)
