"""Saliency of a data set: TokenCut's object of every image and block as a mask at the image's size, scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.errors import ConfigError
from dinoskip.features import FeatureSet, FeatureStore
from dinoskip.io.images import read_image
from dinoskip.io.parts import Parts
from dinoskip.models import Backbone
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import SHOWN, EvalResult
from dinoskip.results.statistics import explained_interval
from dinoskip.runtime.console import Progress
from dinoskip.runtime.distributed import choose_device
from dinoskip.settings.config import dump
from dinoskip.settings.tasks import TaskInputs
from dinoskip_dense.saliency.config import SaliencyConfig
from dinoskip_dense.saliency.scores import count_masks, f_curve
from dinoskip_dense.saliency.solver import BilateralGrid, solve
from eval.baselines import BOXES, boxes_as_masks
from eval.labelled import places
from eval.picture_maps import write_map_index
from eval.resumed import ResumedArrays, degeneracy
from eval.rows import baseline_rows, log_best, percent_row, row_like
from eval.tokencut.cut import TokenCut, each
from eval.tokencut.positions import open_removal, take_out_positions
from eval.tokencut.store import CutRule, ImageCuts, cut_pixels, cut_store, shares_without_cut

F64 = NDArray[np.float64]
Grid = tuple[int, int]


class _Cuts:
    """Masks of every block, bool (sum of T,), and which cuts (L, N) are degenerate; in files.

    An image of fewer than 3 tokens is all object, one without a cut has none.
    """

    def __init__(
        self, features: FeatureSet, config: SaliencyConfig, out: Path, network: Backbone | None, parts: Parts
    ) -> None:
        assert features.offsets is not None
        self.features, self.offsets = features, features.offsets
        self.files = files = ResumedArrays(features, [dump(config)], out, parts)
        shape = (len(features.blocks), len(features))
        self.degenerate, self.complete, self.ties = (
            files.array(name, np.bool_, shape, 1) for name in ("degenerate", "complete", "ties")
        )
        self.cosines = files.array("cosines", np.float64, shape, 1)
        self.positions = open_removal(features, config.positions, network, files.array)
        total = (int(self.offsets[-1]),)
        self.masks = [files.kept(f"masks_block{block}", np.bool_, total, "tokens") for block in features.blocks]
        if files.new:
            self.cosines[:] = np.nan
            for mask in self.masks:
                mask[:] = True
        files.begin()

    def cut_all(self, config: SaliencyConfig, device: torch.device, workers: int) -> None:
        """Cut every image that is not done, part by part."""
        groups = [(block,) for block in self.features.blocks]

        def work(part: FeatureStore) -> Iterator[tuple[int, tuple[int, ImageCuts]]]:
            rule = CutRule((config.tau,), config.eps, config.centre, positions=self.positions)
            for item, cuts in cut_store(part, groups, rule, device, workers):
                yield item.image, (groups.index((item.blocks[0],)), cuts)

        def take(i: int, found: tuple[int, ImageCuts]) -> None:
            number, cuts = found
            cut = cuts.cuts[0]
            self.masks[number][slice(*self.offsets[i : i + 2])] = cut.component.ravel()
            self.degenerate[number, i], self.complete[number, i] = cut.degenerate, cut.complete
            self.ties[number, i] = cut.ambiguous
            self.cosines[number, i] = cuts.cosine

        self.files.fill("saliency", len(groups), work, take)

    def of(self, i: int) -> NDArray[np.bool_]:
        """Return the masks (L, h, w) of image ``i`` at all blocks."""
        rows = slice(*self.offsets[i : i + 2])
        return np.stack([mask[rows] for mask in self.masks]).reshape(-1, *self.features.grid(i))


def _at_size(masks: NDArray[np.bool_], size: Grid) -> NDArray[np.bool_]:
    """Bring masks (L, h, w) to the image's size by nearest, as the reference does."""
    resized = interpolate(torch.from_numpy(masks)[None].float(), size=size, mode="nearest")
    return resized[0].numpy() > 0.5


@dataclass(frozen=True, eq=False)
class _ImageScores:
    """An image's F, IoU, accuracy (3, L + baselines) of masks; with the solver F (L, 255), IoU and accuracy (2, L)."""

    plain: F64
    curves: F64 | None
    smooth: F64 | None


def _score(
    cuts: _Cuts,
    dataset: SegmentationDataset,
    place: int,
    i: int,
    solver: bool,
    pixels: Mapping[str, Sequence[TokenCut | None]],
) -> _ImageScores:
    truth = dataset.label(place)
    size = truth.shape[0], truth.shape[1]
    masks = _at_size(cuts.of(i), size)
    others = list(boxes_as_masks(size).values())
    cut = [cuts[i] for cuts in pixels.values()]
    others += [np.ones(size, np.bool_) if c is None else _at_size(c.component[None], size)[0] for c in cut]
    counts = count_masks(np.concatenate([masks, np.stack(others)]), truth)
    plain = np.stack([counts.f, counts.iou, counts.accuracy])
    if not solver:
        return _ImageScores(plain, None, None)
    maps = solve(BilateralGrid.of(read_image(dataset.path(place))), masks.astype(np.float64))
    smooth = count_masks(maps > 0.5, truth)
    return _ImageScores(
        plain, np.stack([f_curve(grey, truth) for grey in maps]), np.stack([smooth.iou, smooth.accuracy])
    )


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Cut and score every image of a data set (:class:`SegmentationDataset`) at every block.

    The features must be patch tokens (facet ``key`` by protocol) of images whose sides were rounded to whole patches
    (transform mode ``rounded``). Writes ``rows.json`` with ``records.npz``: maxF, IoU and accuracy in percent, of each
    image then the mean, of every block, with ``config.solver`` again after the bilateral solver, then of the baselines'
    boxes as masks; for each block ``masks_block{b}.npy`` bool (sum of T,) in store order, and with the solver
    ``f_block{b}.npy`` float32 (n, 255), F by threshold.

    Features are a store, or windows, whose images are cut as they are computed: the same call in the same ``out``
    continues after the last whole window.

    Raises :class:`ConfigError` for features of another image size, :class:`DataError` if ids differ or features cannot
    be cut.
    """
    config: SaliencyConfig = given.settings
    out, workers, (store,), (dataset,) = given.out, given.workers, given.features.values(), given.labels.values()
    if store.transform.mode != "rounded":
        raise ConfigError(
            f"{store.path}: its images were sized otherwise ({store.transform.label})",
            "export with transform mode rounded",
        )
    where = places(store, dataset)
    out.mkdir(parents=True, exist_ok=True)
    cuts = _Cuts(store, config, out, given.backbone, given.parts)
    take_out_positions(cuts.positions, store, given.backbone, out, given.parts)
    cuts.cut_all(config, choose_device(given.device), workers)
    write_map_index(out, store, {block: f"masks_block{block}.npy" for block in store.blocks})
    pixels = cut_pixels(dataset, where, store, config.tau, config.eps, workers) if config.pixels else {}
    scores = _score_all(cuts, dataset, where, config.solver, pixels, out, workers)
    scored_at = f"{store.transform.label}, scored at image size"
    template = row_like(given, "saliency", "maxF", protocol=config.label, resolution=scored_at)
    baselines: dict[str, dict[str, Any]] = {name: {} for name in BOXES}
    baselines |= {name: shares_without_cut(of_set) for name, of_set in pixels.items()}
    recorded = _recorded(cuts, scores, template, config.solver, baselines)
    log_best(recorded, "maxF")
    cuts.files.finish()
    return write_recorded_rows(out, store.ids, recorded)


@dataclass(frozen=True, eq=False)
class _Scores:
    """:class:`_ImageScores` of all n images; ``curves`` are (n, 255) of each block, in files, if there was a solver."""

    plain: F64
    smooth: F64
    curves: Sequence[NDArray[np.float32]]


def _score_all(
    cuts: _Cuts,
    dataset: SegmentationDataset,
    where: Sequence[int],
    solver: bool,
    pixels: Mapping[str, Sequence[TokenCut | None]],
    out: Path,
    workers: int,
) -> _Scores:
    count, blocks = len(cuts.features), cuts.features.blocks
    curves = [
        np.lib.format.open_memmap(out / f"f_block{block}.npy", mode="w+", dtype=np.float32, shape=(count, 255))
        for block in (blocks if solver else ())
    ]
    scores = _Scores(
        np.empty((count, 3, len(blocks) + len(BOXES) + len(pixels))), np.empty((count, 2, len(blocks))), curves
    )
    with Progress("saliency, scores", count, "images") as progress:
        images = each(lambda i: _score(cuts, dataset, where[i], i, solver, pixels), count, workers)
        for i, scored in enumerate(images):
            scores.plain[i] = scored.plain
            if scored.curves is not None and scored.smooth is not None:
                scores.smooth[i] = scored.smooth
                for curve, values in zip(curves, scored.curves, strict=True):
                    curve[i] = values
            progress.advance()
    return scores


def _recorded(
    cuts: _Cuts, scores: _Scores, template: EvalResult, solver: bool, baselines: Mapping[str, Mapping[str, Any]]
) -> list[RecordedRow]:
    """Rows of every block, of the masks and after the solver, then of the baselines, with fields of their own.

    The threshold of a soft map's maxF is chosen on these images (:data:`dinoskip.results.rows.SHOWN`); masks have none.
    """
    recorded: list[RecordedRow] = []
    blocks, plain = cuts.features.blocks, scores.plain
    for number, block in enumerate(blocks):
        said = degeneracy(cuts.degenerate[number], cuts.complete[number], cuts.cosines[number], cuts.ties[number])
        about = replace(template, block=str(block), **said)
        recorded += _rows(about, plain[:, 0, number], plain[:, 1:, number])
        if solver:
            curve = scores.curves[number]
            best = curve[:, curve.mean(0, dtype=np.float64).argmax()].astype(np.float64)
            about = replace(about, protocol=f"{template.protocol}, bilateral solver")
            of_threshold, *others = _rows(about, best, scores.smooth[:, :, number])
            recorded += [replace(of_threshold, row=replace(of_threshold.row, selected=SHOWN)), *others]
    for number, (name, fields) in enumerate(baselines.items(), len(blocks)):
        of_rule = baseline_rows(name, _rows(template, plain[:, 0, number], plain[:, 1:, number]))
        recorded += [replace(record, row=replace(record.row, **fields)) for record in of_rule]
    return recorded


def _rows(template: EvalResult, f: F64, others: F64) -> list[RecordedRow]:
    """Rows of maxF, of F (n,) at its threshold, and of IoU and accuracy (n, 2)."""
    measures = (("maxF", f), ("IoU", others[:, 0]), ("accuracy", others[:, 1]))
    return [
        percent_row(template, metric, values.mean(), explained_interval(values), np.ascontiguousarray(values))
        for metric, values in measures
    ]
