"""Semantic correspondence on a set of pairs: PCK of every block, each image through the network once.

docs/correspondence.md has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import write_json
from dinoskip.io.parts import Parts
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult
from dinoskip.runtime.console import Progress
from dinoskip.settings.tasks import TaskInputs
from dinoskip_video.correspondence.config import CorrespondenceConfig
from dinoskip_video.correspondence.matching import Matched, Matcher, Placement
from dinoskip_video.correspondence.pictures import draw_pair
from dinoskip_video.correspondence.windows import FeatureWindow, groups_of_pairs
from dinoskip_video.keypoints import KeypointDataset, KeypointPair
from eval.places import Layer, Place, places_of
from eval.rows import log_best, mean_record, mean_rows, row_like

SAME_PLACE = "same place"
Hits = NDArray[np.bool_]
F64 = NDArray[np.float64]


class Pck(NamedTuple):
    """The share of points that are hit: of all points together, and the mean of the pairs' own shares; 0..1."""

    per_point: float
    per_image: float


def pck(hits: Sequence[Hits]) -> Pck:
    """Return the PCK of pairs, each with a bool for every visible point, those without any left out; nan for none."""
    there = [image_hits for image_hits in hits if len(image_hits)]
    if not there:
        return Pck(float("nan"), float("nan"))
    return Pck(float(np.concatenate(there).mean()), float(np.mean([image_hits.mean() for image_hits in there])))


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Find the keypoints of every pair (:class:`KeypointDataset`) with every block of every facet.

    ``norms`` are those of ``facets``; pictures are of the first. With ``multiscale`` also with these blocks together:
    unit features side by side. Writes ``rows.json`` (for each alpha PCK per point and per image with intervals over
    pairs, and its mean over categories, in percent; then those of the same place in the other image), ``records.npz``
    (what each pair adds), ``categories.json`` ``{block: {category: {alpha: [per point, per image]}}}`` and pictures of
    the first pairs. Raises :class:`DataError` naming an image that cannot be used, :class:`ConfigError` for impossible
    settings.
    """
    config: CorrespondenceConfig = given.settings
    (dataset,) = given.labels.values()
    if config.size % (multiple := given.backbone.size_multiple):
        near = max(1, round(config.size / multiple)) * multiple
        raise ConfigError(f"size: {config.size} is not a multiple of the patch size {multiple}", f"try {near}")
    # All pairs. The scripts of sd-dino and LiFT default to 20 and 100 a category, LiFT's drawn with replacement.
    if not dataset.pairs:
        raise DataError(f"{dataset.name} {dataset.split}: there is no pair")
    given.out.mkdir(parents=True, exist_ok=True)
    places = places_of(given)
    matched = _matched(FeatureWindow(given.backbone, dataset, places, config, given.workers), given.out, given.parts)
    row = row_like(
        given, "correspondence", n=len(dataset.pairs), protocol=config.protocol, resolution=config.resolution,
        classes=len(dataset.class_names),
    )  # fmt: skip
    recorded: list[RecordedRow] = []
    for label, place in places.items():
        recorded += _rows(place.row(row), dataset, matched[label], config)
    log_best(recorded, recorded[0].row.metric)
    template = row.baseline(SAME_PLACE, 0.0)
    recorded += [row for row in _rows(template, dataset, _same_place(dataset), config) if row.values is not None]
    write_json(given.out / "categories.json", {label: _categories(dataset, matched[label], config) for label in places})
    return write_recorded_rows(given.out, [pair.id for pair in dataset.pairs], recorded)


def _matched(window: FeatureWindow, out: Path, parts: Parts) -> dict[str, list[Matched]]:
    """Points found by every place in every pair, in the set's order; pictures of the first pairs and facet.

    Groups of pairs that share no image are parts of the work.
    """
    dataset, groups = window.dataset, groups_of_pairs(window.dataset)
    matched: dict[str, dict[int, Matched]] = {label: {} for label in window.places}
    used = {image for pair in dataset.pairs for image in (pair.source, pair.target)}
    with Progress("correspondence", len(used) + len(dataset.pairs), "images and pairs") as progress:

        def match(number: int, folder: Path) -> dict[str, F64]:
            found: dict[str, F64] = {}
            for label, of_label in _match_group(window, groups[number], folder, progress).items():
                found[f"found {label}"] = np.concatenate([one.found for one in of_label])
                found[f"wanted {label}"] = np.concatenate([one.wanted for one in of_label])
                found[f"extents {label}"] = np.array([one.extent for one in of_label])
            return found

        for numbers, found in zip(groups, parts.each("groups", len(groups), match, out), strict=True):
            ends = np.cumsum([len(dataset.pairs[number].source_points) for number in numbers])[:-1]
            for label in matched:
                points = (np.split(found[f"{what} {label}"], ends) for what in ("found", "wanted"))
                every = zip(numbers, *points, found[f"extents {label}"].tolist(), strict=True)
                matched[label] |= {number: Matched(*of_pair) for number, *of_pair in every}
    return {label: [by_pair[number] for number in range(len(dataset.pairs))] for label, by_pair in matched.items()}


def _match_group(
    window: FeatureWindow, numbers: Sequence[int], out: Path, progress: Progress
) -> dict[str, list[Matched]]:
    """Points found by every place in the pairs of a group, in its order."""
    wanted = window.places
    first = next(iter(wanted.values())).facet
    dataset, config, device = window.dataset, window.config, window.backbone.device
    matcher = Matcher(config, window.grid, window.backbone.patch_size)
    matched: dict[str, list[Matched]] = {label: [] for label in wanted}
    pairs = [dataset.pairs[number] for number in numbers]
    images = sorted({image for pair in pairs for image in (pair.source, pair.target)})
    places = {image: Placement.of(dataset.size(image), config) for image in images}
    with window.of(images, out, progress) as tokens:
        target, prepared = -1, {}
        for number, pair in zip(numbers, pairs, strict=True):
            if pair.target != target:
                target = pair.target
                features = {label: _joined(tokens(target), way, device) for label, way in wanted.items()}
                prepared = {label: matcher.prepared(read, places[target]) for label, read in features.items()}
            source = tokens(pair.source)
            for label, way in wanted.items():
                read = _joined(source, way, device), pair.source_points, places[pair.source]
                descriptors = matcher.descriptors(*read)
                matched[label].append(
                    matcher.match(descriptors, prepared[label], pair.target_points, pair.extent, places[target])
                )
            if number < config.pictures:
                own_points = {label: matched[label][-1] for label, way in wanted.items() if way.facet == first}
                draw_pair(dataset, pair, own_points, places[target], config, out / "pairs" / f"{number:04d}")
            progress.advance()
    return matched


def _joined(tokens: Mapping[Layer, NDArray[np.float32]], place: Place, device: torch.device) -> torch.Tensor:
    """Tokens (h·w, C) of a block as they are, or of several at unit length side by side."""
    parts = [torch.from_numpy(tokens[layer]).to(device) for layer in place.layers]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([torch.nn.functional.normalize(part, dim=-1) for part in parts], 1)


def _same_place(dataset: KeypointDataset) -> list[Matched]:
    """The rule that looks at no image: a point is at the same share of the other image's width and height."""
    predicted = []
    for pair in dataset.pairs:
        (high, wide), (other_high, other_wide) = dataset.size(pair.source), dataset.size(pair.target)
        scaled = pair.source_points * (other_wide / wide, other_high / high)
        predicted.append(Matched(scaled, pair.target_points, pair.extent))
    return predicted


def _hits(pair: KeypointPair, matched: Matched, alpha: float, strict: bool) -> Hits:
    return np.asarray(matched.hits(alpha, strict)[pair.visible])


def _rows(
    template: EvalResult, dataset: KeypointDataset, matched: Sequence[Matched], config: CorrespondenceConfig
) -> list[RecordedRow]:
    """Rows of every alpha: per point and per image with records, and the mean of the categories' PCK per point."""
    records, means = [], []
    for alpha in config.alphas:
        hits = [_hits(pair, to, alpha, config.padded) for pair, to in zip(dataset.pairs, matched, strict=True)]
        right, counts = (np.array([int(part(pair_hits)) for pair_hits in hits]) for part in (np.sum, len))
        share = np.divide(right, counts, out=np.zeros(len(hits)), where=counts > 0)
        name = f"PCK@{alpha:g}"
        records += [
            (f"{name} per image", mean_record(share, counts > 0)),
            (f"{name} per point", mean_record(right, counts)),
        ]
        categories = _by_category(dataset, hits)
        per_category = [pck(hits_of).per_point for hits_of in categories.values()]
        weights = [len(hits_of) for hits_of in categories.values()]
        for how, value in (("", np.mean(per_category)), (" by pairs", np.average(per_category, weights=weights))):
            row = replace(template, metric=f"{name} per point, mean of categories{how}", value=100 * float(value))
            means.append(RecordedRow(row))
    return mean_rows(template, records) + means


def _by_category(dataset: KeypointDataset, hits: Sequence[Hits]) -> dict[str, list[Hits]]:
    """Hits of the pairs with a visible point, by category in alphabetical order."""
    of_category: dict[str, list[Hits]] = {name: [] for name in dataset.class_names}
    for pair, pair_hits in zip(dataset.pairs, hits, strict=True):
        if len(pair_hits):
            of_category[pair.category].append(pair_hits)
    return {name: hits_of for name, hits_of in of_category.items() if hits_of}


def _categories(dataset: KeypointDataset, matched: Sequence[Matched], config: CorrespondenceConfig) -> dict[str, Any]:
    scores: dict[str, dict[str, list[float]]] = {}
    for alpha in config.alphas:
        hits = [_hits(pair, to, alpha, config.padded) for pair, to in zip(dataset.pairs, matched, strict=True)]
        for name, hits_of in _by_category(dataset, hits).items():
            scores.setdefault(name, {})[f"{alpha:g}"] = list(pck(hits_of))
    return scores
