"""Pictures that head a report: foreground by PCA, predictions beside labels, cuts with boxes; and curves of features.

They are of the first page's images, each network at the block that was chosen for the task in question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dinoskip.features import as_float
from dinoskip.io.files import read_json, write_json
from dinoskip.io.images import read_image
from dinoskip.models.rank_collapse import effective_rank, token_cosine
from eval.tokencut.overlays import overlay
from visualize import rasters
from visualize.colours import PcaViews, TokenSource
from visualize.gallery import Classes, Discovery, GalleryImage, GalleryModel
from visualize.gallery.sheets import contact_sheet, strip_sheet

PREVIEWS = "previews.json"
FEATURES = "features.json"
_LABELLED = 6  # images with prediction and label: a screen of them
MOST_CUTS = 12  # images with boxes; of those without labels all that are cut (dinoskip.pipeline.look.study.CUT)
_CELL = 150  # pixels of a picture
_TOKENS_OF = 12  # images whose tokens are summed up: singular values take most of the time
_CUT_CAPTION = (
    "TokenCut: box found (orange), boxes of the data set (blue), what the cut leaves out dark; each network at the "
    "block chosen for CorLoc."
)
_DEGENERATE = (
    " Where the affinity graph is degenerate (all patches alike above tau) there is no cut; beside it the same tokens "
    "with the image's mean token subtracted (centred) and with the mean of each position over these images subtracted."
)


@dataclass(frozen=True)
class Pictured:
    """The first page of a gallery: its images with labels and boxes, the networks' columns with the block chosen for a
    task, their PCA views, class names and colours, and the block of each on the strip.
    """

    images: Sequence[GalleryImage]
    columns: Sequence[GalleryModel]
    block_of: Callable[[int, str], int]
    views: PcaViews
    classes: Classes | None
    strip: Sequence[int]


def write_previews(page: Pictured, out: Path) -> None:
    """Write the pictures, ``previews.json`` ([{file, caption, alt}], in order) and ``features.json``."""
    shown = [_foreground(page, out), _predictions(page, out), _cuts(page, out)]
    write_json(out / PREVIEWS, [preview for preview in shown if preview])
    write_json(out / FEATURES, {column.name: _features(column.store) for column in page.columns if column.store})


def _foreground(page: Pictured, out: Path) -> dict[str, str]:
    names = [column.title for column in page.columns]
    photos = [image.path for image in page.images]
    strip_sheet(photos, names, page.views.foreground, page.strip, out / "foreground.png")
    return {
        "file": "foreground.png",
        "caption": "Foreground by PCA (as in DINOv2): patches on one side of the first component, coloured by a second "
        "PCA of their own; background black.",
        "alt": "photographs above each network's foreground map",
    }


def _predictions(page: Pictured, out: Path) -> dict[str, str]:
    """Six images with label and prediction; {} where nothing was probed."""
    columns = [
        (column, maps)
        for number, column in enumerate(page.columns)
        if (maps := column.predictions.get(page.block_of(number, "probe"), {}))
    ]
    classes = page.classes
    images = [image for image in page.images if image.label is not None][:_LABELLED]
    if not columns or not images or classes is None:
        return {}
    rows: list[list[np.ndarray | None]] = []
    seen: set[int] = set()
    for image in images:
        assert image.label is not None
        drawn = [image.label, *(maps.get(image.id) for _, maps in columns)]
        seen |= {int(value) for one in drawn if one is not None for value in np.unique(one)}
        coloured = [None if one is None else classes.palette[one].astype(np.uint8) for one in drawn]
        rows.append([rasters.photo(image.path, 2 * _CELL)[0], *map(_small, coloured)])
    heads = ["image", "label", *(column.title for column, _ in columns)]
    contact_sheet(rows, heads, out / "predictions.png", cell=_CELL)
    names = ", ".join(classes.names[value] for value in sorted(seen) if value < len(classes.names))
    return {
        "file": "predictions.png",
        "caption": f"Linear probe: label and prediction, each network at its chosen block ({names}).",
        "alt": "photographs, their labels and each network's predictions",
    }


def _small(pixels: np.ndarray | None) -> np.ndarray | None:
    """A label map at the size that it is shown in, by nearest neighbours."""
    if pixels is None:
        return None
    scale = 2 * _CELL / max(pixels.shape[:2])
    return rasters.nearest(pixels, (max(1, round(pixels.shape[0] * scale)), max(1, round(pixels.shape[1] * scale))))


def _cuts(page: Pictured, out: Path) -> dict[str, str]:
    """Twelve images with boxes; {} where TokenCut was not scored."""
    images = [image for image in page.images if image.boxes is not None][:MOST_CUTS]
    heads: list[str] = []
    found: list[Mapping[str, Discovery]] = []
    degenerate = False
    for number, column in enumerate(page.columns):
        block = page.block_of(number, "tokencut")
        if block not in column.discoveries or not any(row.task == "tokencut" for row in column.rows):
            continue
        heads.append(f"{column.title}, block {block}")
        found.append(column.discoveries[block])
        for way, by_block in column.other_cuts.items():
            degenerate = True
            heads.append(f"{column.title}, {way}")
            found.append(by_block.get(block, {}))
    if not images or not heads:
        return {}
    pictures = [[_cut_picture(image, cuts.get(image.id)) for image in images] for cuts in found]
    if len(pictures) == 1:  # one network: a grid of its images
        wide = 4
        grid = [[*pictures[0][at : at + wide], *[None] * wide][:wide] for at in range(0, len(images), wide)]
        contact_sheet(grid, [""] * wide, out / "cuts.png", title=heads[0], cell=_CELL)
    else:
        contact_sheet([list(row) for row in zip(*pictures, strict=True)], heads, out / "cuts.png", cell=_CELL)
    return {
        "file": "cuts.png",
        "caption": _CUT_CAPTION + (_DEGENERATE if degenerate else ""),
        "alt": "photographs with the boxes that TokenCut found and those of the data set",
    }


def _cut_picture(image: GalleryImage, cut: Discovery | None) -> np.ndarray | None:
    if cut is None:
        return None
    boxes = [] if image.boxes is None else list(image.boxes)
    drawn = np.asarray(overlay(read_image(image.path), cut.mask, cut.patch_size, cut.box, boxes))
    return _small(drawn) if max(drawn.shape[:2]) < 2 * _CELL else drawn


def _features(store: TokenSource) -> dict[str, dict[str, float]]:
    """Mean token cosine and effective rank of the first images' tokens at every block; nan is left out."""
    summed: dict[str, dict[str, float]] = {}
    count = min(_TOKENS_OF, len(store.ids))
    for block in store.blocks:
        tokens = [torch.from_numpy(as_float(store.tokens(block, index)))[None] for index in range(count)]
        tokens = [one for one in tokens if one.shape[1] > 1 and bool(one.isfinite().all())]
        if tokens:
            summed[str(block)] = {
                "cosine": sum(map(token_cosine, tokens)) / len(tokens),
                "rank": sum(map(effective_rank, tokens)) / len(tokens),
            }
    return summed


def previews_of(gallery: Path) -> list[dict[str, str]]:
    """Return the list that :func:`write_previews` left in a gallery's folder; empty for one of an earlier version."""
    return list(read_json(gallery / PREVIEWS)) if (gallery / PREVIEWS).is_file() else []
