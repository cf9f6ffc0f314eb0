"""A static page of models x blocks x images: the same colours mean the same thing in every column.

``build_gallery`` writes ``index.html`` and small pictures named by number, or one file with everything in it; the
browser scales them. Nothing in the page is fetched from elsewhere, and no text from the data becomes markup or a
file name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dinoskip.errors import ConfigError
from dinoskip.results.rows import EvalResult
from visualize import rasters
from visualize.colours import PcaViews, pca_views
from visualize.gallery.cells import GalleryCell, write_cell
from visualize.gallery.charts import block_charts
from visualize.gallery.config import GalleryConfig
from visualize.gallery.content import Classes, GalleryImage, GalleryModel
from visualize.gallery.files import PictureFiles
from visualize.gallery.layers import LAYERS, image_scores
from visualize.gallery.layers.layer import Cell
from visualize.gallery.sheets import chosen_images
from visualize.gallery.similarity import COMPONENTS, page_features
from visualize.pages import clean, relative_link, render_page
from visualize.palette import diverging, network_of, sequential, to_hex, variant_colour, variant_places

PHOTO_SIZE = 512  # pixels of a photograph's longer side
RANGES = ("0 to 1", "stretched", "across images")


def build_gallery(
    models: Sequence[GalleryModel],
    images: Sequence[GalleryImage],
    out: Path,
    config: GalleryConfig | None = None,
    *,
    title: str = "Block by block",
    default_block: int | None = None,
    classes: Classes | None = None,
    views: PcaViews | None = None,
    pages: Sequence[str] = (),
    page: int = 0,
) -> None:
    """Write ``out/index.html`` and ``out/img/*``: columns are ``models``, rows the first ``config.first`` images.

    After them come all images that have a layer of their own.
    The page opens at ``config.block``, else at ``default_block``, else at the deepest block.
    ``views``: :func:`visualize.colours.pca_views` of the same models and images, if
    the caller has them. Of several pages ``pages`` are links relative to ``out``, and ``page`` its number from 0.

    Raises :class:`ConfigError` without models or images or for an id in ``config.similarity`` that is not shown, and
    :class:`DataError` for an unreadable photograph.
    """
    config, with_layer = config or GalleryConfig(), [image for image in images if image.layer]
    images = [*[image for image in images if not image.layer][: config.first], *with_layer]
    if not models or not images:
        raise ConfigError("gallery: needs at least one model and one image", "check the study's gallery dataset")
    ids = [image.id for image in images]
    views = views or pca_views([model.store for model in models], ids)
    pictures = PictureFiles(out, embedded=config.single_file)
    out.mkdir(parents=True, exist_ok=True)
    sizes = [_write_reference(pictures, number, image, classes) for number, image in enumerate(images)]
    cells = _cells(models, images, views, classes, pictures)
    clicked = sorted(chosen_images(ids, config.similarity, "gallery.similarity"))
    features = _features(models, ids, clicked)
    data = _page_data(models, images, sizes, cells, config.block or default_block, classes, sorted(features))
    shown = _classes_shown(models, images, classes)
    render_page(
        out / "index.html",
        "gallery.html",
        {
            "title": title,
            "models": models,
            "images": images,
            "photos": [pictures.address(f"photo-{number:03d}.jpg") for number in range(len(images))],
            "data": data,
            "features": features,
            "files": pictures.kept,
            "charts": block_charts({str(number): model.rows for number, model in enumerate(models)}, data["blocks"]),
            "classes": [(number, classes.names[number]) for number in shown] if classes else [],
            "components": COMPONENTS[-1],
            "legends": {layer["key"]: LAYERS[layer["key"]] for layer in data["layers"] if layer["key"] in LAYERS},
            "pages": [relative_link(page) for page in pages],
            "page": page,
        },
        styles=("base.css", "gallery.css"),
        extra_style=_colour_style([model.title for model in models], shown, classes),
        script=("gallery_pictures.js", "gallery.js"),
    )


def _cells(
    models: Sequence[GalleryModel],
    images: Sequence[GalleryImage],
    views: PcaViews,
    classes: Classes | None,
    pictures: PictureFiles,
) -> list[list[GalleryCell]]:
    """Draw every image by every model, and return the cells by model, then by image."""
    return [
        [write_cell(Cell(model, image, row, column, views, classes), pictures) for row, image in enumerate(images)]
        for column, model in enumerate(models)
    ]


def _features(
    models: Sequence[GalleryModel], ids: Sequence[str], rows: Sequence[int]
) -> dict[int, list[dict[str, Any] | None]]:
    """Reduced features of these images, one entry a model; without images of which no model has any."""
    names = [ids[row] for row in rows]
    reduced = [{} if model.store is None else page_features(model.store, names) for model in models]
    return {row: tokens for row in rows if any(tokens := [by_image.get(ids[row]) for by_image in reduced])}


def _page_data(
    models: Sequence[GalleryModel],
    images: Sequence[GalleryImage],
    sizes: Sequence[tuple[int, int]],
    cells: Sequence[Sequence[GalleryCell]],
    block: int | None,
    classes: Classes | None,
    similar: Sequence[int],
) -> dict[str, Any]:
    """Return the data for gallery.js: blocks, layers, names, image sizes and boxes, available pictures and scores."""
    blocks = sorted(
        {block for column in cells for cell in column for layer in cell.layers.values() for block in layer["blocks"]}
        | {block for model in models if model.store is not None for block in model.store.blocks}
    ) or [1]
    chosen = _layers(models, cells, bool(similar))
    there = {key for column in cells for cell in column for key in cell.scores}
    scored = [{"key": key, **asdict(score)} for key, score in image_scores().items() if key in there]
    tags = [_tags(image, classes) for image in images]
    return {
        "blocks": blocks,
        "block": block if block in blocks else blocks[-1],
        "layers": chosen,
        "models": [clean(model.title, 60) for model in models],
        "metrics": scored,
        "tags": sorted(set().union(*tags)),
        "images": [
            {
                "id": clean(image.id),
                "width": size[1],
                "height": size[0],
                "label": image.label is not None and classes is not None,
                "boxes": [] if image.boxes is None else np.round(image.boxes, 1).tolist(),
                "tags": tags[row],
                "layer": image.layer,
            }
            for row, (image, size) in enumerate(zip(images, sizes, strict=True))
        ],
        "cells": [[asdict(cell) for cell in column] for column in cells],
        "rows": [[_row_text(row) for row in model.rows] for model in models],
        "ramp": sequential(256).tolist(),
    }


def _layers(
    models: Sequence[GalleryModel], cells: Sequence[Sequence[GalleryCell]], similar: bool
) -> list[dict[str, Any]]:
    """The layers that there is something of, each with the names of its parts, in the order of the buttons."""
    most: dict[str, int] = {}
    for cell in (cell for column in cells for cell in column):
        for key, layer in cell.layers.items():
            most[key] = max(most.get(key, 0), len(layer.get("parts", ())))
    shown: list[tuple[str, str, Sequence[str]]] = [
        (key, layer.name, layer.parts_of(most[key])) for key, layer in LAYERS.items() if key in most
    ]
    shown += [("similarity", "Similarity", RANGES)] if similar else []
    return [{"key": key, "name": name, "parts": list(parts)} for key, name, parts in [*shown, ("photo", "Photo", ())]]


def _tags(image: GalleryImage, classes: Classes | None) -> list[str]:
    """Names of what is in an image, for the filter."""
    tags = set(image.tags)
    if image.label is not None and classes is not None:
        tags |= {classes.names[value] for value in np.unique(image.label) if value < len(classes.names)}
    return sorted({clean(name, 60) for name in tags})


def _row_text(row: EvalResult) -> dict[str, str]:
    """Every field of a row as short text, empty where it says nothing."""
    shown = {key: "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
             for key, value in asdict(row).items()}  # fmt: skip
    return {key: clean(value) for key, value in shown.items()}


def _write_reference(
    pictures: PictureFiles, number: int, image: GalleryImage, classes: Classes | None
) -> tuple[int, int]:
    """Write the photograph and its label map; return the image's own (height, width)."""
    wide = image.layer in LAYERS and LAYERS[image.layer].source == "strips"
    pixels, size = rasters.photo(image.path, 2 * PHOTO_SIZE if wide else PHOTO_SIZE)
    pictures.add(f"photo-{number:03d}.jpg", rasters.jpeg(pixels))
    if image.label is not None and classes is not None:
        small = rasters.nearest(image.label, pixels.shape[:2])
        pictures.add(f"label-{number:03d}.png", rasters.palette_png(small, classes.palette))
    return size


def _classes_shown(
    models: Sequence[GalleryModel], images: Sequence[GalleryImage], classes: Classes | None
) -> list[int]:
    """Label values that occur in the pictures, for the legend."""
    if classes is None:
        return []
    ids = {image.id for image in images}
    maps = [image.label for image in images if image.label is not None]
    maps += [
        predicted[name]
        for model in models
        for predicted in model.predictions.values()
        for name in predicted
        if name in ids
    ]
    maps += [seen[name] for model in models for seen in model.maps.get("cluster", {}).values() for name in seen]
    values = {int(value) for classes in maps for value in np.unique(classes)}
    return sorted(value for value in values if value < len(classes.names))


def _colour_style(names: Sequence[str], shown: Sequence[int], classes: Classes | None) -> str:
    """CSS made of numbers only: colours of models (light and dark), of classes, and of the two ramps.

    Seeds and epochs of one network share its colour; curves of all but its last epoch are thin.
    """
    places = variant_places(names)
    light = "".join(f"--m{index}:{variant_colour(places[name])};" for index, name in enumerate(names))
    dark = "".join(f"--m{index}:{variant_colour(places[name], dark=True)};" for index, name in enumerate(names))
    rules = [f":root{{{light}}}", f"@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"]
    rules += [f".m{index}{{--own:var(--m{index})}}" for index in range(len(names))]
    last = {network_of(name): index for index, name in enumerate(names)}
    earlier = sorted(set(range(len(names))) - set(last.values()))
    rules += [f".chart polyline.m{index}{{stroke-width:1}}" for index in earlier]
    for name, colours in (("heat", sequential(6)), ("split", diverging(5))):
        rules.append(f".{name}{{background:linear-gradient(90deg,{','.join(map(to_hex, colours))})}}")
    if classes is not None:
        rules += [f".class-{number}{{background:{to_hex(classes.palette[number])}}}" for number in shown]
    return "\n".join(rules)
