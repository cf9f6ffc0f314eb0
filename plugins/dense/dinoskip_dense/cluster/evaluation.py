"""Unsupervised segmentation of a data set: patches clustered at every block, clusters matched to classes, mIoU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate

from dinoskip.errors import ConfigError
from dinoskip.features import FeatureSet, FeatureStore, as_float
from dinoskip.features.transform import central_corner
from dinoskip.io.files import write_json
from dinoskip.io.resize import short_side_size
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import CROSS_FITTED, SHOWN, EvalResult
from dinoskip.runtime.console import Progress
from dinoskip.runtime.distributed import choose_device
from dinoskip.settings.tasks import TaskInputs
from dinoskip_dense.cluster.config import ClusteringConfig
from dinoskip_dense.cluster.matching import (
    ImageCounts,
    confusion,
    cross_matched_areas,
    match,
    matched_areas,
    total_counts,
)
from dinoskip_dense.cluster.spaces import Clustering, cosine_clusterings, kmeans_clustering, kmeans_of_parts
from eval.baselines import majority_areas
from eval.labelled import places, token_cosine
from eval.picture_maps import write_map_index
from eval.rows import log_best, miou_row, row_like, rows_of_seeds, segmentation_rows
from eval.upsampling import upsampled_classes

Fit = tuple[int, int]  # number of clusters, seed
_MATCHED = {"halves": "matched on other images, ", "reported": ""}
_SELECTED = {"halves": CROSS_FITTED, "reported": SHOWN}  # how the classes of clusters were
_READ_VALUES = 2**24  # features, or scores of clusters, held at once: 64 MiB


@dataclass(frozen=True, eq=False)
class _Counts:
    """Confusions of every image, for each fit and block, and the labelled pixels of each image and class (n, C)."""

    of: dict[tuple[Fit, int], list[ImageCounts]]
    labelled: NDArray[np.int64]


def scored_label(label: NDArray[np.uint8], config: ClusteringConfig) -> NDArray[np.uint8]:
    """Return a label map as it is scored: as it is, or cropped or brought to size as the image, by nearest."""
    if config.sizing == "crop":
        height, width = short_side_size(label.shape[0], label.shape[1], config.size)
        top, left = central_corner(height, width, config.size)
        sized = _nearest(label, (height, width))
        return sized[top : top + config.size, left : left + config.size]
    if config.scored_at is None:
        return label
    rows = np.arange(config.scored_at) * config.size // config.scored_at  # torch's nearest, after Pillow's
    return _nearest(label, (config.size, config.size))[rows[:, None], rows[None]]


def _nearest(label: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(label).resize(size[::-1], Image.Resampling.NEAREST))


def _fits(
    features: FeatureSet, config: ClusteringConfig, fits: Sequence[Fit], device: torch.device
) -> dict[Fit, dict[int, Clustering]]:
    if isinstance(features, FeatureStore):
        return {fit: _fit(features, config, fit, device) for fit in fits}
    if not config.passes_once:
        raise ConfigError(f"{features.path}: these clusters need features that are stored", "export them first")
    return kmeans_of_parts(features, fits, config)


def _fit(store: FeatureStore, config: ClusteringConfig, fit: Fit, device: torch.device) -> dict[int, Clustering]:
    clusters, seed = fit
    if config.method == "cosine":
        tokens = {block: store.tokens(block) for block in store.blocks}
        return cosine_clusterings(tokens, clusters, config, seed, device)
    clusterings = {}
    with Progress(f"{clusters} clusters", len(store.blocks), "blocks") as progress:
        for block in store.blocks:
            clusterings[block] = kmeans_clustering(store.tokens(block), clusters, config, seed, block)
            progress.advance()
    return clusterings


def _count(
    store: FeatureStore,
    label: Callable[[int], NDArray[np.uint8]],
    classes: int,
    fits: Mapping[Fit, Mapping[int, Clustering]],
    config: ClusteringConfig,
    maps: Mapping[int, NDArray[Any]],
    device: torch.device,
) -> _Counts:
    """Count every image's pixels by cluster and class; write the clusters of patches, by the first fit, to ``maps``."""
    h, w = store.grid(0)
    first, most = next(iter(fits)), max(clusters for clusters, _ in fits)
    step = max(1, _READ_VALUES // (len(store.blocks) * h * w * max(store.dim, most)))
    fits = {fit: {block: found.to(device) for block, found in of_blocks.items()} for fit, of_blocks in fits.items()}
    counts: dict[tuple[Fit, int], list[ImageCounts]] = {(fit, block): [] for fit in fits for block in store.blocks}
    labelled = np.zeros((len(store), classes), dtype=np.int64)
    with Progress("clusters, scores", len(store), "images") as progress:
        for at in range(0, len(store), step):
            read = {b: torch.from_numpy(as_float(store.tokens(b)[at : at + step])).to(device) for b in store.blocks}
            truth = [scored_label(label(i), config) for i in range(at, min(at + step, len(store)))]
            for i, labels in enumerate(truth, at):
                labelled[i] = np.bincount(labels.ravel(), minlength=256)[:classes]
            for fit, of_blocks in fits.items():
                scores = torch.stack([of_blocks[block].scores(tokens) for block, tokens in read.items()])
                scores = scores.view(*scores.shape[:2], h, w, fit[0]).movedim(-1, 2)  # (L, n, K, h, w)
                if fit == first:
                    for block, chosen in zip(store.blocks, scores.argmax(2).cpu().numpy(), strict=True):
                        maps[block][at : at + step] = chosen
                for i, labels in enumerate(truth):
                    clusters = _clusters(scores[:, i], (labels.shape[0], labels.shape[1]), config)
                    for block, of_block in zip(store.blocks, clusters, strict=True):
                        image = ImageCounts.of(confusion(of_block, labels, (fit[0], classes)))
                        counts[fit, block].append(image)
            progress.advance(len(truth))
    return _Counts(counts, labelled)


def _clusters(scores: torch.Tensor, size: tuple[int, int], config: ClusteringConfig) -> NDArray[Any]:
    """Return the clusters (L, H, W) of scores (L, K, h, w): of upsampled scores, or those of patches by nearest."""
    if config.scored_at is None:
        return upsampled_classes(scores, size).cpu().numpy()
    chosen = scores.argmax(1, keepdim=True).float()
    return interpolate(chosen, size=size, mode="nearest")[:, 0].long().cpu().numpy()


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Cluster patches at every block, and score the clusters of the images ``val`` (:class:`SegmentationDataset`).

    Clustered are the patches of the features ``train``, which may be windows of which drawn ones alone are kept
    (``config.passes_once``), or without any those of ``val``. Writes ``rows.json`` with ``records.npz``: mIoU with its
    interval, mAcc and aAcc in percent of every block and number of clusters (with several seeds their mean and
    deviation, then each), then the mIoU of one cluster for everything; ``clusters_block{b}.npy`` (N, h, w), the
    clusters of patches by the first fit, and ``clusters.json``, the class of each of them on all images,
    ``{block: [class, or -1]}``. Scores are of classes that other halves of the images give, and their records the sum
    over all splits, unless ``config.matched_on`` is ``reported``; rows say which (``selected``).

    Raises :class:`ConfigError` for features that are sized otherwise, :class:`DataError` if ids differ or features are
    not finite.
    """
    config: ClusteringConfig = given.settings
    store, dataset, out, device = given.features["val"], given.labels["val"], given.out, choose_device(given.device)
    fit_store = given.features.get("train", store)
    for read, part in ((store, "val"), (fit_store, config.fitted_on)):
        wanted = type(store.transform).model_validate(config.transform("train" if part == "train" else "val"))
        if read.transform != wanted:
            raise ConfigError(f"{read.path}: its images are {read.transform.label}", f"export with {wanted.label}")
    where, classes = places(store, dataset), dataset.num_classes
    out.mkdir(parents=True, exist_ok=True)
    seeds = range(given.seed, given.seed + config.seeds)
    fits = _fits(fit_store, config, [(clusters, s) for clusters in config.numbers(classes) for s in seeds], device)
    maps = {
        block: np.lib.format.open_memmap(
            out / f"clusters_block{block}.npy", mode="w+", dtype=np.uint16, shape=(len(store), *store.grid(0))
        )
        for block in store.blocks
    }
    counts = _count(store, lambda i: dataset.label(where[i]), classes, fits, config, maps, device)
    cosines = {block: token_cosine(store.tokens(block), device) for block in store.blocks}
    at = "label size" if config.scored_at is None else f"{config.scored_at} square"
    at = "the crop's size" if config.sizing == "crop" else at
    fitted_on = given.settings.train_split if config.fitted_on == "train" else dataset.split
    about = row_like(
        given, "cluster", "mIoU", protocol=f"{config.label}, {_MATCHED[config.matched_on]}fitted on {fitted_on}",
        resolution=f"{store.transform.label}, scored at {at}", classes=classes, selected=_SELECTED[config.matched_on],
    )  # fmt: skip
    recorded = _recorded(counts, fits, config, about, cosines, store, out)
    floor = about.baseline("one cluster", 0.0)
    recorded.append(miou_row(floor, majority_areas(counts.labelled, counts.labelled)))
    log_best(recorded, "mIoU")
    return write_recorded_rows(out, store.ids, recorded)


def _recorded(
    counts: _Counts,
    fits: Mapping[Fit, Mapping[int, Clustering]],
    config: ClusteringConfig,
    about: EvalResult,
    cosines: Mapping[int, float],
    store: FeatureStore,
    out: Path,
) -> list[RecordedRow]:
    """Rows of all fits: for each number of clusters of the mean over seeds, if there are several, then of each."""
    recorded: list[RecordedRow] = []
    matches: dict[Fit, dict[str, list[int]]] = {}
    for clusters in dict.fromkeys(number for number, _ in fits):
        of_seeds: dict[int, list[RecordedRow]] = {}
        for fit in [fit for fit in fits if fit[0] == clusters]:
            template = replace(about, seed=fit[1], protocol=f"{about.protocol}, {clusters} clusters")
            blocks = {block: counts.of[fit, block] for block in fits[fit]}
            of_seeds[fit[1]], matches[fit] = _rows(blocks, clusters, config, template, cosines)
        recorded += rows_of_seeds(list(of_seeds.values()), of_seeds)
    first = matches[next(iter(fits))]
    write_json(out / "clusters.json", first)
    if config.sizing != "crop":  # what was cropped does not cover the image
        write_map_index(out, store, {int(block): f"clusters_block{block}.npy" for block in first}, first)
    return recorded


def _rows(
    blocks: Mapping[int, Sequence[ImageCounts]],
    clusters: int,
    config: ClusteringConfig,
    about: EvalResult,
    cosines: Mapping[int, float],
) -> tuple[list[RecordedRow], dict[str, list[int]]]:
    """Rows of one fit: mIoU, mAcc and aAcc of every block; and the class of every cluster, by block."""
    chosen = {
        block: match(total_counts(images, (clusters, about.classes)), config.match) for block, images in blocks.items()
    }
    recorded = []
    for block, images in blocks.items():
        template = replace(about, block=str(block), token_cosine=cosines[block])
        recorded += segmentation_rows(template, _areas(images, chosen[block], about, config))
    return recorded, {str(block): assigned.tolist() for block, assigned in chosen.items()}


def _areas(
    images: Sequence[ImageCounts], classes_of: NDArray[np.int64], about: EvalResult, config: ClusteringConfig
) -> NDArray[np.int64]:
    """Areas of all images, of clusters matched on other ones or, as published, on these."""
    if config.matched_on == "reported":
        return matched_areas(images, classes_of, about.classes)
    return cross_matched_areas(images, (len(classes_of), about.classes), config.match, about.seed)
