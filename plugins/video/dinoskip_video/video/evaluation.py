"""Video object segmentation on a data set: masks of the first frame carried on by the features of every block.

A video's frames go through the network once, and all blocks follow its objects at the same time. What is held is the
context of one video. docs/video.md has the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dinoskip.errors import DataError
from dinoskip.io.files import write_json
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult
from dinoskip.runtime.console import Progress
from dinoskip.settings.tasks import TaskInputs
from dinoskip_video.sequences import VOID, SequenceDataset, VideoSequence
from dinoskip_video.video.config import VideoConfig
from dinoskip_video.video.frames import FramePasses, checked_label
from dinoskip_video.video.propagation import (
    PropagationRule,
    VideoMemory,
    at_size,
    first_masks,
    hard_labels,
    unit_tokens,
)
from dinoskip_video.video.scores import ObjectScores, frame_scores, object_scores
from dinoskip_video.video.strips import Strip
from eval.places import Layer, Place, places_of
from eval.rows import log_best, mean_record, mean_rows, row_like

FIRST_MASK = "first mask"


@dataclass(frozen=True)
class _VideoScores:
    """J and F of one video's objects over the frames that are scored, each (K, n)."""

    j: NDArray[np.float64]
    f: NDArray[np.float64]

    @property
    def of_objects(self) -> tuple[ObjectScores, ObjectScores]:
        return object_scores(self.j), object_scores(self.f)


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Follow the objects of every video (:class:`SequenceDataset`) with every block of every facet.

    ``norms`` are those of ``facets``; strips are of the first. With ``multiscale`` also with these blocks together, by
    the mean of their cosines. Writes ``rows.json`` (J&F, J and F with intervals over videos, recall and decay, in
    percent; then those of the first mask repeated), ``records.npz`` (what each video adds to J&F, J and F),
    ``objects.json`` ``{video: {block: {"J": [...], "F": [...]}}}`` and the strips of the first videos. Raises
    :class:`DataError` naming a frame or mask that cannot be used, :class:`ConfigError` for impossible settings.
    """
    config: VideoConfig = given.settings
    (dataset,) = given.labels.values()
    given.out.mkdir(parents=True, exist_ok=True)
    places = places_of(given)
    passes = FramePasses(given.backbone, places, config, given.workers)
    scores: dict[str, list[_VideoScores]] = {label: [] for label in (*places, FIRST_MASK)}
    with Progress("video", len(dataset), "frames") as progress:

        def follow(number: int, folder: Path) -> dict[str, NDArray[np.float64]]:
            sequence = dataset.sequences[number]
            strip = Strip(sequence) if number < config.pictures else None
            followed = _follow(passes, sequence, strip, progress)
            if strip is not None:
                strip.write(folder / "strips" / f"{number:04d}")
            return {label: np.stack([of_label.j, of_label.f]) for label, of_label in followed.items()}

        for of_video in given.parts.each("videos", len(dataset.sequences), follow, given.out):
            for label in scores:
                scores[label].append(_VideoScores(*of_video[label]))
    row = row_like(given, "video", n=len(dataset.sequences), protocol=config.label, resolution=config.resolution)
    recorded = []
    for label, place in places.items():
        recorded += _rows(place.row(row), scores[label])
    log_best(recorded, "J&F")
    template = row.baseline(FIRST_MASK, 0.0)
    recorded += [record for record in _rows(template, scores[FIRST_MASK]) if record.values is not None]
    write_json(given.out / "objects.json", _objects(dataset, scores))
    return write_recorded_rows(given.out, [sequence.name for sequence in dataset.sequences], recorded)


def _follow(
    passes: FramePasses, sequence: VideoSequence, strip: Strip | None, progress: Progress
) -> dict[str, _VideoScores]:
    """Return J and F of one video by every place, and by the first mask repeated."""
    places, config = passes.places, passes.config
    first = sequence.label(0)
    shape = (int(first.shape[0]), int(first.shape[1]))
    repeated = np.where(first == VOID, 0, first).astype(np.uint8)
    objects = int(repeated.max())
    if not objects:
        raise DataError(f"{sequence.annotations[0]}: has no object, there is nothing to follow")
    patch = passes.backbone.patch_size
    size = config.input_size(*shape, passes.backbone.size_multiple)
    grid = size[0] // patch, size[1] // patch
    rule = PropagationRule(config.radius, config.top_k, config.temperature)
    masks = torch.from_numpy(first_masks(first, grid)).to(passes.backbone.device)
    memories: dict[str, VideoMemory] = {}
    values: dict[str, list[NDArray[np.float64]]] = {label: [] for label in (*places, FIRST_MASK)}
    first_facet = next(iter(places.values())).facet
    for index, tokens in enumerate(passes.tokens(sequence, size)):
        truth = checked_label(sequence, index, shape)
        if strip is not None:
            strip.add_frame(index, truth)
        scored = 0 < index < len(sequence) - 1
        for label, place in places.items():
            joined = _joined(tokens, place)
            if index == 0:
                memories[label] = VideoMemory(joined, masks, config.memory)
                continue
            soft = memories[label].follow(joined, grid, rule)
            drawn = strip if place.facet == first_facet else None
            if scored or (drawn is not None and drawn.shows(index)):
                predicted = at_size(hard_labels(soft, grid, patch), shape)
                if scored:
                    values[label].append(frame_scores(predicted, truth, objects))
                if drawn is not None:
                    drawn.add(label, index, predicted)
        if scored:
            values[FIRST_MASK].append(frame_scores(repeated, truth, objects))
        progress.advance()
    stacked = {label: np.stack(frames, -1) for label, frames in values.items()}  # (K, 2, n)
    return {label: _VideoScores(of_label[:, 0], of_label[:, 1]) for label, of_label in stacked.items()}


def _joined(tokens: Mapping[Layer, Tensor], place: Place) -> Tensor:
    """Return unit tokens (T, C) of a block, or (T, C·n) of several: their cosine is the mean of the blocks' cosines."""
    # The script reads one block. Of several ours votes by the mean of their cosines: every block counts alike.
    parts = [unit_tokens(tokens[layer]) for layer in place.layers]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1) / len(parts) ** 0.5


def _rows(template: EvalResult, videos: Sequence[_VideoScores]) -> list[RecordedRow]:
    """Return the rows of J&F, J and F with records, then of recall and decay, in percent: means over all objects."""
    j, f = zip(*(video.of_objects for video in videos), strict=True)
    counts = [len(scores.mean) for scores in j]
    sums = {name: [video.mean.sum() for video in of] for name, of in (("J", j), ("F", f))}
    both = [(region + boundary) / 2 for region, boundary in zip(sums["J"], sums["F"], strict=True)]
    named = {"J&F": both, **sums}
    rows = mean_rows(template, [(metric, mean_record(scores, counts)) for metric, scores in named.items()])
    for name, of in (("J", j), ("F", f)):
        for part in ("recall", "decay"):
            value = float(np.concatenate([getattr(scores, part) for scores in of]).mean())
            rows.append(RecordedRow(replace(template, metric=f"{name} {part}", value=100 * value)))
    return rows


def _objects(dataset: SequenceDataset, scores: Mapping[str, Sequence[_VideoScores]]) -> dict[str, Any]:
    return {
        sequence.name: {
            label: {"J": of_label[number].j.mean(1).tolist(), "F": of_label[number].f.mean(1).tolist()}
            for label, of_label in scores.items()
        }
        for number, sequence in enumerate(dataset.sequences)
    }
