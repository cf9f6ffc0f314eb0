"""Columns of a gallery: features, predictions, cuts and attention of every network, and the images."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from dinoskip.features import FeatureStore, Transform, as_float, export
from dinoskip.features.transform import Normalise, load_pixels
from dinoskip.io.files import write_json
from dinoskip.io.images import image_size
from dinoskip.models import Backbone
from dinoskip.models.attention import cls_attention
from dinoskip.pipeline.gallery.images import GalleryImages, cuttable, gallery_images, image_of, large_enough
from dinoskip.pipeline.gallery.previews import MOST_CUTS, Pictured, write_previews
from dinoskip.pipeline.gallery.settings import GallerySettings, ShownModel
from dinoskip.pipeline.gallery.strips import strip_images, strip_maps
from dinoskip.pipeline.gallery.surfaces import surface_images, surface_maps
from dinoskip.pipeline.stage import Task, whole_patches
from dinoskip.pipeline.stages.inputs import dataset_of, open_backbone
from dinoskip.results.records import ImageRecords, read_records
from dinoskip.results.rows import EvalResult, rows_in
from dinoskip.runtime.console import Progress, log
from dinoskip.settings.read_points import usual_norm
from eval.joined import part_folder
from eval.picture_maps import read_maps
from eval.probe import load_heads, predict
from eval.tokencut import TokenCutConfig, to_pixels
from eval.tokencut.cut import cut
from eval.tokencut.graph import centred, normalise, similarities
from eval.tokencut.memory import LARGEST_DRAWN
from eval.tokencut.positions import collect, open_removal
from visualize.colours import PcaBasis, PcaViews, pca_views
from visualize.comparison import Scores
from visualize.gallery import Classes, Discovery, GalleryModel, build_gallery, write_sheets
from visualize.gallery.layers import LAYERS
from visualize.gallery.sheets import chosen_images
from visualize.rows import principal

_PATCHES = 32  # a side of what is shown, where images are large enough
_LARGEST = 512  # pixels of it
_PREDICTION_SCALE = 4  # label maps are predicted at this many pixels a token side
ByBlock = dict[int, dict[str, Any]]  # block -> image id -> what is drawn


def _predictions(store: FeatureStore, probe: Path) -> ByBlock:
    """Label maps by the probe's selected head of every block."""
    heads, _ = load_heads(probe / "heads.safetensors")
    labels: ByBlock = {}
    for head in heads:
        if len(head.blocks) > 1 or head.blocks[0] not in store.blocks:
            continue
        block = head.blocks[0]
        labels[block] = {}
        for index, name in enumerate(store.ids):
            height, width = store.grid(index)
            size = (height * _PREDICTION_SCALE, width * _PREDICTION_SCALE)
            labels[block][name] = predict(head, as_float(store.tokens(block, index)), (height, width), size)
    return labels


def _discoveries(store: FeatureStore, config: TokenCutConfig, network: Backbone, most: int = 0) -> ByBlock:
    """TokenCut of every shown image (of the first ``most`` unless 0) at every block.

    Means of positions are over the images of ``store``.
    """
    whole = [index for index in range(len(store.ids)) if store.grid(index)[0] * store.grid(index)[1] >= 3]
    whole = whole[: most or None]
    removal = open_removal(store, config.positions, network)
    if removal is not None:
        collect(removal, store, network)
    cuts: ByBlock = {}
    with Progress("TokenCut", len(store.blocks) * len(whole), "images") as progress:
        for block in store.blocks:
            cuts[block] = {}
            for index in whole:
                grid = store.grid(index)
                stored = as_float(store.tokens(block, index))
                tokens = torch.from_numpy(stored if removal is None else removal(block, grid, stored))
                unit = normalise(centred(tokens) if config.centre else tokens)
                (part,) = cut(similarities(unit[None]), [grid], config.tau[0], config.eps)
                box = to_pixels(part.box, store.patch_size, store.image_size(index))
                cuts[block][store.ids[index]] = Discovery(
                    box, part.eigenvector.reshape(grid), part.mask, store.patch_size, part.is_cut
                )
                progress.advance()
    return cuts


def _other_cuts(store: FeatureStore, config: TokenCutConfig, network: Backbone, found: ByBlock) -> dict[str, ByBlock]:
    """Cuts of the first images with their mean token subtracted and without the mean of each position.

    Where at no block most images have no cut there is nothing to look into: nothing. Means of positions need images
    of one grid.
    """
    gone = any(sum(not cut.is_cut for cut in cuts.values()) > len(cuts) / 2 for cuts in found.values() if cuts)
    if not gone or config.centre or config.positions != "keep":
        return {}
    ways = {"centred": config.model_copy(update={"centre": True})}
    if len(store.ids) > 1 and len({store.grid(index) for index in range(len(store.ids))}) == 1:
        ways["position removed"] = config.model_copy(update={"positions": "mean"})
    return {way: _discoveries(store, treated, network, MOST_CUTS) for way, treated in ways.items()}


def _attention(backbone: Backbone, shown: GalleryImages, store: FeatureStore) -> ByBlock:
    """CLS attention (heads, h, w) of every shown image, sized as in ``store``; empty for networks without."""
    to_input = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)
    maps_of: ByBlock = {block: {} for block in store.blocks}
    for index, name in enumerate(store.ids):
        pixels = load_pixels(store.transform, shown.path(index), backbone.size_multiple)
        with torch.inference_mode():
            maps = cls_attention(backbone, to_input([pixels], *pixels.shape[1:]), store.blocks)
        if maps is None:
            return {}
        for block, heads in maps.items():
            maps_of[block][name] = heads[0].cpu().numpy().reshape(-1, *store.grid(index))
    return maps_of


def _columns(task: Task, model: ShownModel, shown: GalleryImages, typical: float, scratch: Path) -> list[GalleryModel]:
    """The columns of a network: one, or one for the levels of each grid where levels have grids of their own.

    Levels of more than :data:`LARGEST_DRAWN` tokens on images whose sides are ``typical`` have none.
    """
    label, asked = model.label, model.blocks
    weights = task.inputs.get(f"weights:{label}")
    whole: Backbone = open_backbone(model.backbone, weights, task.device, task.settings.precision)
    parts = [
        (backbone, blocks)
        for backbone in whole.parts
        if (blocks := [block for block in backbone.numbers if isinstance(asked, str) or block in asked])
    ]
    cells = [_cells(task.settings, backbone, typical) for backbone, _ in parts]
    drawn = [number for number, count in enumerate(cells) if count <= LARGEST_DRAWN]
    drawn = drawn or [int(np.argmin(cells))]  # the coarsest, of smaller images (_side)
    notes = [
        f"block{'s' if len(blocks) > 1 else ''} {', '.join(map(str, blocks))} left out: {cells[number]:,} cells of "
        f"{backbone.patch_size} pixels in an image, above {LARGEST_DRAWN:,}"
        for number, (backbone, blocks) in enumerate(parts)
        if number not in drawn
    ]
    columns = []
    for number in drawn:
        backbone, blocks = parts[number]
        cell = "" if len(whole.parts) == 1 else f", {backbone.patch_size} px a cell"
        column = _column(task, label, f"{label}{cell}", backbone, blocks, shown, scratch / str(number), notes)
        columns.append(replace(column, words=f"{model.words or label}{cell}"))
        notes = []  # one of the network's captions is enough
    return columns


def _column(
    task: Task,
    label: str,
    name: str,
    backbone: Backbone,
    blocks: list[int],
    shown: GalleryImages,
    scratch: Path,
    notes: Sequence[str],
) -> GalleryModel:
    """One column: features of the shown images, probe predictions, TokenCut, attention of these blocks.

    ``notes`` are what its caption says beside, as of images whose graphs are too large to cut here.
    """
    settings: GallerySettings = task.settings
    (read,), (facet,) = (backbone.read_at((asked,)) for asked in (settings.read, settings.facet))
    norm, of_cuts = (usual_norm(read_point, settings.norm) for read_point in (read, facet))
    square, native = Transform(mode="square", size=_side(settings, backbone, shown)), Transform(mode="native")
    store = export(backbone, shown, scratch / "shown", blocks, read, norm, transform=square, cls=False)
    skips = dataset_of(task)[0].skip_broken
    whole = large_enough(shown, backbone.size_multiple) if skips else shown
    small = cuttable(whole, backbone)
    notes = list(notes)
    if too_large := len(whole) - len(small):
        images = f"{too_large} of {len(whole)} images"
        notes.append(f"TokenCut of {images} left out: above {LARGEST_DRAWN:,} cells at their own size")
    for note in notes:
        log.warning("gallery, %s: %s", name, note)
    most = 0 if shown.labelled is not None or shown.boxes else MOST_CUTS
    discoveries: ByBlock = {}
    other_cuts: dict[str, ByBlock] = {}
    if len(small):
        keys = export(backbone, small, scratch / "cut", blocks, facet, of_cuts, transform=native, cls=False)
        discoveries = _discoveries(keys, settings.cut, backbone, most)
        other_cuts = _other_cuts(keys, settings.cut, backbone, discoveries)
    inputs = {
        role.partition(":")[0]: part_folder(path, blocks)
        for role, path in task.inputs.items()
        if role.partition(":")[2] == label
    }
    rows = [row for path in inputs.values() for row in rows_in(path) if not row.is_baseline]
    return GalleryModel(
        name=name,
        store=store,
        predictions=_predictions(store, inputs["probe"]) if "probe" in inputs else {},
        discoveries=discoveries,
        other_cuts=other_cuts,
        attention=_attention(backbone, shown, store),
        maps={
            layer: read_maps(inputs[layer], shown.ids)
            for layer in LAYERS
            if LAYERS[layer].source == "maps" and layer in inputs
        },
        surfaces=surface_maps(task, label, shown.ids, blocks),
        strips=strip_maps(task, label, blocks),
        rows=rows,
        description="; ".join([_described(backbone, square, (read, norm), facet, settings.cut.positions), *notes]),
    )


def _side(settings: GallerySettings, backbone: Backbone, shown: GalleryImages) -> int:
    """Pixels of the square that is shown: as set, else about 32 patches a side.

    No more pixels than the images have, and no fewer than the probe's, in whole patches; but of at most
    :data:`LARGEST_DRAWN` cells.
    """
    multiple = backbone.size_multiple
    most = math.isqrt(LARGEST_DRAWN) * backbone.patch_size // multiple * multiple
    return min(_wanted_side(settings, backbone, _typical_side(shown)), max(most, multiple))


def _typical_side(shown: GalleryImages) -> float:
    """The median, over images, of the side in pixels of a square of their area."""
    return float(np.median([math.sqrt(math.prod(image_size(path))) for path in shown.paths]))


def _wanted_side(settings: GallerySettings, backbone: Backbone, typical: float) -> int:
    """:func:`_side` without a bound of cells, of images whose sides are ``typical``."""
    if settings.section.size is not None:
        return settings.section.size
    side = max(settings.least, min(_PATCHES * backbone.patch_size, typical, _LARGEST))
    return whole_patches(round(side), backbone.size_multiple)


def _cells(settings: GallerySettings, backbone: Backbone, typical: float) -> int:
    """Cells of the square that would be shown of images whose sides are ``typical``."""
    return (_wanted_side(settings, backbone, typical) // backbone.patch_size) ** 2


def _described(backbone: Backbone, square: Transform, read: tuple[str, str], facet: str, positions: str) -> str:
    """Return the facts for a caption that no result row has; ``read`` is the facet and norm of the pictures."""
    means = " (means over the images of this page)" if positions in {"mean", "mean_kept"} else ""
    treated = "" if positions == "keep" else f", positions {positions}{means}"
    return (
        f"{backbone.depth} blocks of {backbone.dim} channels and {backbone.num_heads} heads, patches of "
        f"{backbone.patch_size}; PCA, similarity and probe of {read[0]}, norm {read[1]}, and attention at "
        f"{square.label}; TokenCut on {facet} at native size{treated}; weights {backbone.weights_hash[:12]}"
    )


def write_gallery(task: Task) -> None:
    """The pages, contact sheets of each model's blocks and of all models at one block, ``roughness.json``.

    Images are shown ``page`` at a time: the first in ``index.html``, others in ``page-N/index.html``, in the colours of
    the first. What a page shows is forgotten before the next, so that memory does not grow with images. Sheets, strip
    and images of other data sets are of the first page.

    ``strip.json`` has each model's block on the strip that heads the report: the one chosen for its first benchmark.
    ``roughness.json`` has the block of the contact sheets (``block``) and, as ``models``, {model: {block: Geary's C of
    each image's PCA picture, in the order of the pages; null for none}}. ``outliers.json`` has of each model and block
    the share of patches of outlying norm, their mean norm and the median, on the first page.
    """
    shown, section = gallery_images(task), task.settings.section
    pages = shown.pages(section.page)
    # an id that is not there is said before any work
    chosen_images(shown.ids, section.similarity, "gallery.similarity")
    chosen_images(pages[0].ids, section.sheet, "gallery.sheet")
    kept: list[_PageSummary] = []
    typical = _typical_side(shown)
    for number, page in enumerate(pages):
        kept.append(_make_page(task, page, number, len(pages), typical, kept[0].bases if kept else None))
    first, sizes = kept[0], [len(page) for page in pages]
    models = {
        name: _joined([summary.roughness[place] for summary in kept], sizes) for place, name in enumerate(first.names)
    }
    write_json(task.out / "roughness.json", {"block": first.block, "models": models})


@dataclass(frozen=True)
class _PageSummary:
    """Summary of a page that was written: the columns' names, the sheets' block, roughness and PCA bases."""

    names: list[str]
    block: int
    roughness: list[dict[int, list[float]]]
    bases: list[dict[int, PcaBasis]]


def _make_page(
    task: Task, page: GalleryImages, number: int, pages: int, typical: float, bases: list[dict[int, PcaBasis]] | None
) -> _PageSummary:
    """Compute and write one page, in the colours of ``bases``; whatever else it needed is freed with this frame."""
    settings: GallerySettings = task.settings
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=task.out, ignore_cleanup_errors=True) as scratch:
        columns = [
            (model.label, column)
            for place, model in enumerate(settings.models)
            for column in _columns(task, model, page, typical, Path(scratch) / str(place))
        ]
        names, stores = [column.name for _, column in columns], [column.store for _, column in columns]
        views = pca_views(stores, page.ids, bases)
        deepest = max(block for store in stores if store is not None for block in store.blocks)
        block = settings.section.block or max(1, deepest - 1)
        _write_page(task, page, columns, views, block, number, pages)
    return _PageSummary(names, block, views.roughness, views.bases)


def _joined(pages: Sequence[Mapping[int, Sequence[float]]], sizes: Sequence[int]) -> dict[int, list[float | None]]:
    """A value an image of every block, page after page; None where a page has none."""
    blocks = sorted({block for page in pages for block in page})
    whole = {
        block: [value for page, size in zip(pages, sizes, strict=True) for value in page.get(block, [math.nan] * size)]
        for block in blocks
    }
    return {block: [value if math.isfinite(value) else None for value in values] for block, values in whole.items()}


def _write_page(
    task: Task,
    page: GalleryImages,
    columns: Sequence[tuple[str, GalleryModel]],
    views: PcaViews,
    block: int,
    number: int,
    pages: int,
) -> None:
    """One page of several; the sheets beside the first. ``columns`` come with the labels of their networks."""
    settings: GallerySettings = task.settings
    section, labelled = settings.section, page.labelled
    images = [image_of(page, index) for index in range(len(page))]
    folders = [f"page-{page_number + 1}" if page_number else "" for page_number in range(pages)]
    links = [str(PurePosixPath("../" if number else "", folder, "index.html")) for folder in folders]
    classes = None if labelled is None else Classes(labelled.class_names, labelled.palette)
    if isinstance(similar := section.similarity, int):
        similar = 0 if number else similar
    else:
        similar = tuple(name for name in similar if name in page.ids)
    build_gallery(
        [column for _, column in columns],
        images if number else [*images, *strip_images(task), *surface_images(task)],
        task.out / folders[number],
        section.model_copy(update={"similarity": similar}),
        title=settings.title,
        default_block=block,
        classes=classes,
        views=views,
        pages=links if pages > 1 else (),
        page=number,
    )
    if not number:
        names = [column.name for _, column in columns]
        strip = [_block_of_strip(task, column, section.block, label) for label, column in columns]
        photos = dict(zip(page.ids, page.paths, strict=True))
        titles = [column.title for _, column in columns]
        write_sheets(
            photos, titles, views.aligned, block, task.out, section.sheet, strip, formats=section.sheet_formats
        )
        write_json(
            task.out / "outliers.json",
            {
                name: {str(at): asdict(count) for at, count in by_block.items()}
                for name, by_block in zip(names, views.outliers, strict=True)
            },
        )
        write_json(task.out / "strip.json", dict(zip(names, strip, strict=True)))
        write_previews(
            Pictured(
                images, [column for _, column in columns],
                lambda place, name: _block_of_strip(task, columns[place][1], section.block, columns[place][0], name),
                views, classes, strip,
            ),
            task.out,
        )  # fmt: skip


def _block_of_strip(task: Task, column: GalleryModel, asked: int | None, label: str = "", of_task: str = "") -> int:
    """The block asked for; else the one chosen for a network's first benchmark without the images it is scored on.

    With ``of_task`` for the first benchmark of that task.

    Else, or where the network has no such block, its last but one.
    """
    stored = column.store.blocks if column.store is not None else ()
    default = max(1, max(stored, default=2) - 1)
    if asked is not None:
        return asked if asked in stored else default
    scores = Scores(principal({column.name: column.rows}), _records(task, label or column.name))
    for benchmark in (known for known in scores.benchmarks if of_task in {"", known.task}):
        rows = scores.rows(column.name, benchmark, scores.last_epoch(column.name, benchmark))
        chosen = scores.chosen(rows)
        if chosen is not None and column.store is not None and int(chosen.blocks[0]) in column.store.blocks:
            return int(chosen.blocks[0])
    return default


def _records(task: Task, label: str) -> dict[EvalResult, ImageRecords]:
    """Return each image's contribution to the rows of a network."""
    return {
        row: records
        for role, path in task.inputs.items()
        if role.partition(":")[2] == label
        for row, records in read_records(path).items()
    }
