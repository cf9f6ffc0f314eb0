"""Figures for papers, from the gallery of a study or from feature stores: what stands in each cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image

from dinoskip.data.folders import ImageFolder
from dinoskip.errors import ConfigError, DataError, did_you_mean
from dinoskip.features import FeatureStore, as_float
from dinoskip.io.files import MANIFEST
from dinoskip.io.images import read_image
from dinoskip.pipeline.stage import quarters
from eval.tokencut import tokencut
from visualize import rasters
from visualize.colours import Colours, pca_views
from visualize.figures.grid import Box, GridCell, GridGroup
from visualize.gallery.sheets import chosen_images
from visualize.gallery.written import WrittenGallery, read_gallery

LAYERS: Mapping[str, str] = MappingProxyType(
    {"pca": "pca", "foreground": "foreground", "tokencut": "cut", "probe": "probe"}
)
"""Contents of a figure, and their names in the gallery."""
OF_IMAGES = 4  # rows unless asked otherwise: what fits on a page beside text
_PHOTO = 1024  # pixels of a photograph's longer side: 87 mm at 300 dpi
_FINE = 8  # parts of a token to which maps that overhang the image are cut
Blocks = str | Sequence[int]


@dataclass(frozen=True)
class FigureWishes:
    """Request for the contents of a figure.

    ``images`` are ids, or a number of first images; ``blocks`` "all" or numbers, None the quarters of the depth;
    ``models`` names in the order of their columns, () for all. For feature stores ``data`` is the folder of their
    images, ``facet`` one of several facets, ``tau`` TokenCut's threshold.
    """

    layer: str = "pca"
    images: int | Sequence[str] = OF_IMAGES
    blocks: Blocks | None = None
    models: Sequence[str] = ()
    data: Path | None = None
    facet: str | None = None
    tau: float = 0.2


@dataclass(frozen=True, eq=False)
class FigureContent:
    """The cells of a figure under their headings, and what they are of."""

    groups: list[GridGroup]
    rows: list[list[GridCell | None]]
    models: list[str]
    blocks: list[int]
    images: list[str]


def figure_content(sources: Sequence[str], wishes: FigureWishes) -> FigureContent:
    """The cells of one study's gallery, or of feature stores, ``STORE`` or ``NAME=STORE``.

    Raises :class:`DataError` for a folder that holds neither, :class:`ConfigError` for an image, block or network that
    is not there, and for what a store does not have.
    """
    given = [_named(source) for source in sources]
    stores = [is_store(place) for _, place in given]
    if all(stores):
        return _of_stores(given, wishes)
    if len(given) > 1:
        raise ConfigError("figure: several sources must all be feature stores", "or name one study alone")
    return _of_gallery(gallery_of(given[0][1]), wishes)


def is_store(place: Path) -> bool:
    """Whether a folder is a feature store, or the stage's folder of one."""
    return any((place / name).is_file() for name in ("features.json", "manifest.json", f"store/{MANIFEST}"))


def _named(text: str) -> tuple[str, Path]:
    name, equals, place = text.partition("=")
    return (name, Path(place)) if equals and not Path(text).exists() else (Path(text).resolve().name, Path(text))


def gallery_of(study: Path) -> Path:
    """The newest gallery of a study's folder, or the folder itself; :class:`DataError` without one."""
    finished = [place.parent for place in study.glob(f"stages/gallery/*/{MANIFEST}")]
    places = [*sorted(finished, key=lambda place: place.stat().st_mtime, reverse=True), study / "gallery", study]
    found = next((place for place in places if (place / "index.html").is_file()), None)
    if found is None:
        raise DataError(
            f"{study}: neither a feature store nor a study with a gallery",
            "give a folder of `dinoskip look`, `gallery`, `run` or `features export`",
        )
    return found


def _blocks(asked: Blocks | None, there: Sequence[int]) -> list[int]:
    """The blocks that are shown; :class:`ConfigError` for one that no network has."""
    if asked is None:
        return [block for block in quarters(max(there)) if block in there] or list(there)
    chosen = list(there) if isinstance(asked, str) else list(asked)
    if missing := [block for block in chosen if block not in there]:
        raise ConfigError(f"--blocks {missing[0]}: there are {', '.join(map(str, there))}")
    return chosen


def places_of(asked: Sequence[str], there: Sequence[str]) -> list[int]:
    """Places of the networks that are shown, in the order asked for; a name may have commas of its own."""
    places, rest = [], ",".join(asked)
    while rest:
        begins = [name for name in there if f"{rest},".startswith(f"{name},")]
        if not begins:
            hint = did_you_mean(rest, there) or f"there are {'; '.join(there)}"
            raise ConfigError(f"--models {rest}: there is no such network", hint)
        name = max(begins, key=len)
        places.append(list(there).index(name))
        rest = rest[len(name) + 1 :]
    return places or list(range(len(there)))


def _groups(head: Sequence[str], names: Sequence[str], blocks: Sequence[int]) -> list[GridGroup]:
    columns, numbers = [f"block {block}" for block in blocks], list(map(str, blocks))
    left = [GridGroup("", list(head), [""] * len(head))] if head else []
    return [*left, *(GridGroup(name, columns, numbers, f"{name}, by block") for name in names)]


# --- from a gallery ----------------------------------------------------------------------------------


def _of_gallery(folder: Path, wishes: FigureWishes) -> FigureContent:
    pages = read_gallery(folder)
    first, key = pages[0], LAYERS[wishes.layer]
    every = [(page, row) for page in pages for row in range(len(page.images))]
    ids = [page.images[row] for page, row in every]
    places = [every[at] for at in chosen_images(ids, wishes.images, "--images")]
    columns, blocks = places_of(wishes.models, first.models), _blocks(wishes.blocks, first.blocks)
    if not any(page.entry(key, column, row) for page, row in places for column in columns):
        raise ConfigError(
            f"--layer {wishes.layer}: {folder} has no such pictures",
            "its study fits no probe on the gallery's data set" if wishes.layer == "probe" else "run the gallery again",
        )
    truths = [page.truth(row) if wishes.layer == "probe" else None for page, row in places]
    with_truth = any(truth is not None for truth in truths)
    rows = []
    for (page, row), truth in zip(places, truths, strict=True):
        photo = page.photo(row)
        cells: list[GridCell | None] = [GridCell(photo, photo=True)]
        cells += [None if truth is None else GridCell(truth)] if with_truth else []
        cells += [_page_cell(page, wishes.layer, column, row, block, photo) for column in columns for block in blocks]
        rows.append(cells)
    names = [first.models[column] for column in columns]
    head = ["image", "labels"] if with_truth else ["image"]
    return FigureContent(_groups(head, names, blocks), rows, names, blocks, [page.images[row] for page, row in places])


def _page_cell(
    page: WrittenGallery, layer: str, column: int, row: int, block: int, photo: np.ndarray
) -> GridCell | None:
    pixels, entry = page.map(LAYERS[layer], column, row, block), page.entry(LAYERS[layer], column, row)
    if pixels is None or entry is None:
        return None
    if layer != "tokencut":
        return GridCell(pixels[..., :3])
    info = page.data["images"][row]
    size = (int(info["height"]), int(info["width"]))
    box = entry["boxes"].get(str(block))
    shares = None if box is None else (box[0] / size[1], box[1] / size[0], box[2] / size[1], box[3] / size[0])
    cover = (entry["cover"][1] / size[0], entry["cover"][0] / size[1])
    return _cut_cell(pixels[..., 3] == 0, cover, shares, photo)


def _cut_cell(mask: np.ndarray, cover: tuple[float, float], box: Box | None, photo: np.ndarray) -> GridCell:
    """A photograph veiled where the mask (h, w) is False; the mask covers ``cover`` of height and width."""
    height, width = photo.shape[:2]
    rows = np.minimum((np.arange(height) + 0.5) / height / cover[0] * mask.shape[0], mask.shape[0] - 1).astype(int)
    columns = np.minimum((np.arange(width) + 0.5) / width / cover[1] * mask.shape[1], mask.shape[1] - 1).astype(int)
    opacity = np.where(mask[rows][:, columns], 0.0, rasters.VEIL / 255)[..., None]
    veiled = photo * (1 - opacity) + np.array(rasters.VEIL_COLOUR) * opacity
    return GridCell(np.rint(veiled).astype(np.uint8), photo=True, box=box)


# --- from feature stores -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _SomeBlocks:
    """A store of which some blocks are read (:class:`visualize.colours.TokenSource`)."""

    store: FeatureStore
    blocks: Sequence[int]

    @property
    def ids(self) -> Sequence[str]:
        return self.store.ids

    def grid(self, index: int, /) -> tuple[int, int]:
        return self.store.grid(index)

    def tokens(self, block: int, index: int, /) -> np.ndarray:
        return as_float(self.store.tokens(block, index))

    def cover(self, index: int) -> tuple[float, float]:
        """The part of an image's height and width that the grid covers: more than 1 where it is padded."""
        if self.store.transform.mode != "native":
            return (1.0, 1.0)
        (rows, columns), (height, width) = self.grid(index), self.store.image_size(index)
        return rows * self.store.patch_size / height, columns * self.store.patch_size / width


def _of_stores(given: Sequence[tuple[str, Path]], wishes: FigureWishes) -> FigureContent:
    if wishes.layer == "probe":
        raise ConfigError("--layer probe: a feature store has no probe", "give a study with labels, or another layer")
    opened = [FeatureStore.open(place, facet=wishes.facet) for _, place in given]
    for (_, place), store in zip(given, opened, strict=True):
        if store.transform.mode not in {"square", "native", "rounded"}:
            raise ConfigError(f"{place}: its images were cropped ({store.transform.mode})", "export with --mode square")
    columns = places_of(wishes.models, [name for name, _ in given])
    blocks = _blocks(wishes.blocks, sorted({block for store in opened for block in store.blocks}))
    stores = [
        _SomeBlocks(opened[column], [block for block in blocks if block in opened[column].blocks]) for column in columns
    ]
    common = [name for name in stores[0].ids if all(name in store.ids for store in stores)]
    if not common:
        raise ConfigError("figure: the stores have no image in common")
    ids = [common[at] for at in chosen_images(common, wishes.images, "--images")]
    photos = _photographs(wishes, ids)
    draw = _cuts(stores, wishes.tau, photos) if wishes.layer == "tokencut" else _colours(stores, ids, wishes.layer)
    rows = []
    for row, name in enumerate(ids):
        cells: list[GridCell | None] = [GridCell(photos[name], photo=True)] if photos else []
        rows.append([*cells, *(draw(number, row, name, block) for number in range(len(stores)) for block in blocks)])
    names = [given[column][0] for column in columns]
    return FigureContent(_groups(["image"] if photos else [], names, blocks), rows, names, blocks, ids)


def _photographs(wishes: FigureWishes, ids: Sequence[str]) -> dict[str, np.ndarray]:
    """The photographs by id; {} where no folder of them is given."""
    if wishes.data is None:
        if wishes.layer == "tokencut":
            raise ConfigError("--layer tokencut: is drawn over the photographs", "name their folder by --data")
        return {}
    folder = ImageFolder.open(wishes.data)
    where = {name: index for index, name in enumerate(folder.ids)}
    if missing := [name for name in ids if name not in where]:
        raise DataError(
            f"{wishes.data}: has no image {missing[0]!r} of the store", "give the folder it was exported from"
        )
    return {name: _small(read_image(folder.path(where[name]))) for name in ids}


def _small(photo: np.ndarray) -> np.ndarray:
    height, width = rasters.fit(photo.shape[0], photo.shape[1], _PHOTO)
    return np.asarray(Image.fromarray(photo).resize((width, height), Image.Resampling.LANCZOS))


Draw = Callable[[int, int, str, int], GridCell | None]
"""The cell of a store, a row with an image's id, and a block."""


def _colours(stores: Sequence[_SomeBlocks], ids: Sequence[str], layer: str) -> Draw:
    """PCA over the images of the figure, aligned along blocks and stores."""
    views = pca_views(stores, ids)
    colours: Sequence[Colours] = views.aligned if layer == "pca" else views.foreground

    def draw(number: int, row: int, name: str, block: int) -> GridCell | None:
        pixels = colours[number].get(block, [None] * len(ids))[row]
        if pixels is None:
            return None
        down, across = stores[number].cover(list(stores[number].ids).index(name))
        if max(down, across) > 1:  # padded: what overhangs the image is cut off
            pixels = pixels.repeat(_FINE, 0).repeat(_FINE, 1)
            pixels = pixels[: round(pixels.shape[0] / down), : round(pixels.shape[1] / across)]
        return GridCell(pixels)

    return draw


def _cuts(stores: Sequence[_SomeBlocks], tau: float, photos: Mapping[str, np.ndarray]) -> Draw:
    def draw(number: int, row: int, name: str, block: int) -> GridCell | None:
        store = stores[number]
        at = list(store.ids).index(name)
        if block not in store.blocks:
            return None
        grid = store.grid(at)
        try:
            found: Any = tokencut(store.tokens(block, at), grid, tau)
        except ValueError as error:
            raise DataError(f"{name}, block {block}: {error}") from error
        cover = store.cover(at)
        box = None
        if found.is_cut:
            x1, y1, x2, y2 = (float(side) for side in found.box)
            across, down = cover[1] / grid[1], cover[0] / grid[0]
            box = (x1 * across, y1 * down, min(1.0, x2 * across), min(1.0, y2 * down))
        return _cut_cell(np.asarray(found.mask, bool).reshape(grid), cover, box, photos[name])

    return draw
