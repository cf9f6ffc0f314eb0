"""Evaluation that depth and surface normals share: linear heads, stacked and scored image by image.

It also chooses among the heads and saves the results.

Shapes: G groups of blocks (one head each, a rate), L learning rates, n images, M measures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.errors import DataError
from dinoskip.io.files import atomic_path, save_tensors, write_json
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult
from dinoskip.settings.tasks import TaskInputs
from eval.heads import FittedHeads, read_ahead
from eval.labelled import Constants, NamedImages
from eval.probe.stack import HeadStack
from eval.rows import Trials, chosen_rows, log_best, row_like, scored_rows
from eval.stacked import folded_heads, groups_of, held_out, name_of, place_of, read_like

MAPPED = 4  # places along a side of a token, in maps that are saved
_BASELINE_IMAGES = 1000  # of the training images, evenly spread: enough for a mean


@dataclass(frozen=True)
class Measures:
    """The measures of a task, each of an image; learning rates are chosen by ``error``, blocks by ``share``."""

    task: str
    names: Sequence[str]
    error: str
    share: str


@dataclass(frozen=True, eq=False)
class ScoredHeads:
    """``scores`` float64 (G, L, n, M) of every image; NaN where none counts.

    ``maps`` float16 (G, L, m, ..., h, w) are the predictions for the first images; those of smaller images are edged
    with NaN.
    """

    scores: NDArray[np.float64]
    maps: NDArray[np.float16]


class SurfaceHeads(FittedHeads, ABC):
    """Trained heads of a task whose images are scored one by one."""

    @property
    def constants(self) -> Constants | None:
        """BatchNorm's, which are folded into saved heads; None without it."""
        return None

    @staticmethod
    @abstractmethod
    def read(dataset: Any, row: int) -> tuple[torch.Tensor, ...]:
        """An image uint8 (3, H, W) as it is scored, and its labels."""

    @abstractmethod
    def scores(self, image: torch.Tensor, *labels: torch.Tensor) -> Iterator[torch.Tensor]:
        """The measures (L, M) of an image, for each group."""

    @abstractmethod
    def maps(self, image: torch.Tensor) -> Iterator[torch.Tensor]:
        """Predictions (L, ..., h, w) at four places a token's side, for each group."""

    @torch.no_grad()
    def score(
        self, dataset: Any, rows: NDArray[np.int64], title: str, mapped: int = 0, workers: int = 0
    ) -> ScoredHeads:
        """Score all heads on images ``rows``, each once, and keep maps of the first ``mapped``."""
        scores: list[NDArray[np.float64]] = []
        kept: list[NDArray[np.float16]] = []
        for _, (image, *labels) in read_ahead(title, rows.tolist(), lambda row: self.read(dataset, row), workers):
            truth = [label.to(self.features.device, non_blocking=True) for label in labels]
            scores.append(np.stack([score.cpu().numpy() for score in self.scores(image, *truth)]))
            if len(kept) < mapped:
                kept.append(np.stack([predicted.cpu().numpy().astype(np.float16) for predicted in self.maps(image)]))
        every = np.stack(scores, 2)
        every[~self.stack.finite().cpu().numpy()] = np.nan
        return ScoredHeads(every, _of_one_size(kept))


def _of_one_size(maps: Sequence[NDArray[np.float16]]) -> NDArray[np.float16]:
    """Stack maps (G, L, ..., h, w) of images into (G, L, m, ..., h, w)."""
    if not maps:
        return np.empty((0,) * 5, np.float16)
    sides = np.max([predicted.shape[-2:] for predicted in maps], axis=0)
    edges = [(sides - predicted.shape[-2:]).tolist() for predicted in maps]
    none = [(0, 0)] * (maps[0].ndim - 2)
    padded = [
        np.pad(predicted, [*none, (0, below), (0, beside)], constant_values=np.nan)
        for predicted, (below, beside) in zip(maps, edges, strict=True)
    ]
    return np.stack(padded, 2)


@dataclass(frozen=True, eq=False)
class ChosenHeads:
    """Heads with their scores on held-out training images (None: none are held out) and on the scored split."""

    measures: Measures
    stack: HeadStack
    heldout: NDArray[np.float64] | None
    scored: ScoredHeads

    @property
    def names(self) -> list[str]:
        """Names of the groups of blocks: ``"3"``, or ``"3+6+9+12"``."""
        return [name_of(group) for group in self.stack.groups]

    def _lowest(self, scores: NDArray[np.float64]) -> list[int]:
        error = self.measures.names.index(self.measures.error)
        return lowest_trials(scores[..., error], self.names, self.measures.task)

    @property
    def chosen(self) -> list[int]:
        """The learning rate of each group with the lowest error on held-out images, without any on the scored ones."""
        return self._lowest(self.scored.scores if self.heldout is None else self.heldout)

    def rows(self, template: EvalResult) -> list[RecordedRow]:
        """Rows of every group: the chosen learning rate's, with several rates then those ``best on validation``.

        Without held-out images several rates are chosen on validation, and the rows say so.
        """
        names, scores, several = self.measures.names, self.scored.scores, len(self.stack.rates) > 1
        best, share = self._lowest(scores), names.index(self.measures.share)
        recorded: list[RecordedRow] = []
        for group, (name, trials_of) in enumerate(zip(self.names, self.chosen, strict=True)):
            held = None if self.heldout is None else 100 * float(np.nanmean(self.heldout[group, trials_of, :, share]))
            trials = Trials(scores[group, trials_of], scores[group, best[group]], several, held, share)
            of_group = replace(read_like(template, self.stack.groups[group]), block=name)
            recorded += chosen_rows(of_group, lambda row, measured: scored_rows(row, names, measured), trials)
        return recorded

    def write(
        self,
        out: Path,
        ids: Sequence[str],
        template: EvalResult,
        baselines: Mapping[str, NDArray[np.float64]],
        settings: Mapping[str, Any],
        constants: Constants | None = None,
    ) -> list[EvalResult]:
        """Write rows, records, heads, trials and maps into ``out``; return the rows.

        ``ids`` are the scored images, ``baselines`` scores (n, M) by the rule's name, ``constants`` BatchNorm's.
        """
        recorded = self.rows(template)
        for metric in (self.measures.error, self.measures.share):
            log_best(recorded, metric)
        for name, of_baseline in baselines.items():
            recorded += scored_rows(template.baseline(name, 0.0), self.measures.names, of_baseline)
        save_tensors(out / "heads.safetensors", folded_heads(self.stack, self.chosen, constants), {"format": "1"})
        write_json(out / f"{self.measures.task}.json", {"config": dict(settings), "heads": self._trials()})
        maps = self.scored.maps
        own_maps = {
            f"block{place_of(self.stack, self.stack.groups[group], name)}": maps[group, trials_of]
            for group, (name, trials_of) in enumerate(zip(self.names, self.chosen, strict=True))
            if maps.size
        }
        names = np.array(ids[: maps.shape[2]], dtype=np.str_)
        with atomic_path(out / "maps.npz") as temporary, open(temporary, "wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, ids=names, **own_maps)
        return write_recorded_rows(out, ids, recorded)

    def _trials(self) -> list[dict[str, Any]]:
        rates = self.stack.rates
        return [
            {
                "block": place_of(self.stack, self.stack.groups[group], name),
                "learning_rate": rates[trials_of],
                "learning_rates": list(rates),
                "heldout_rmse": None if self.heldout is None else self._means(self.heldout[group]),
                "validation_rmse": self._means(self.scored.scores[group]),
            }
            for group, (name, trials_of) in enumerate(zip(self.names, self.chosen, strict=True))
        ]

    def _means(self, scores: NDArray[np.float64]) -> list[float | None]:
        """Mean error of each trial of scores (L, n, M); None where there is none."""
        errors = scores[..., self.measures.names.index(self.measures.error)]
        values = [trial[np.isfinite(trial)] for trial in errors]
        return [float(trial.mean()) if trial.size else None for trial in values]


def evaluate_surfaces(
    measures: Measures,
    given: TaskInputs,
    fit: Callable[..., SurfaceHeads],
    baselines: Callable[[Any, Any, Any], Mapping[str, NDArray[np.float64]]],
    resolution: str,
    *,
    cls: bool = False,
) -> list[EvalResult]:
    """Fit the heads of every block and of the ``multiscale`` blocks together, and write what they score.

    ``fit`` trains heads on images of a data set, as :func:`dinoskip_dense.depth.fit.fit_heads`. ``baselines`` are
    scores (n, M) of rules that look at no image, of both data sets and the settings; ``resolution`` is what rows say
    of images; ``cls``: heads read the class token, too.
    """
    config, train, val = given.settings, given.labels["train"], given.labels["val"]
    fitted, held = split_images(train, val, config.holdout, given.seed)
    groups = groups_of(given.block_numbers, given.multiscale, cls=cls, facets=given.facets)
    heads = fit(given, fitted, groups)
    heldout = heads.score(train, held, "held-out", workers=given.workers).scores if len(held) else None
    scored = heads.score(val, np.arange(len(val)), "validation", config.maps, given.workers)
    protocol = f"{config.label}, fitted on {train.split}"
    template = row_like(given, measures.task, norm=config.norm, resolution=resolution, protocol=protocol)
    return ChosenHeads(measures, heads.stack, heldout, scored).write(
        given.out, val.ids, template, baselines(train, val, config), {**config.own_settings, "seed": given.seed},
        heads.constants,
    )  # fmt: skip


def split_images(
    train: NamedImages, val: NamedImages, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training images that heads are fitted on, and those held out; :class:`DataError` if a split has no image."""
    for dataset in (train, val):
        if not dataset.ids:
            raise DataError(f"{dataset.name}: no image in {dataset.split}")
    return held_out(len(train.ids), share, seed)


def baseline_images(count: int) -> list[int]:
    """Numbers of the at most 1,000 of ``count`` training images, evenly spread, that rules are made of."""
    rows = np.unique(np.linspace(0, count - 1, min(count, _BASELINE_IMAGES)).astype(int))
    return [int(row) for row in rows]


def lowest_trials(errors: NDArray[np.float64], names: Sequence[str], what: str) -> list[int]:
    """Return for each group the trial of the lowest mean error, of ``errors`` (G, L, n); the first of equals.

    ``names`` are the groups', ``what`` the task's. Raises :class:`DataError` for a group of which no trial has a score.
    """
    there = np.isfinite(errors)
    count = there.sum(-1)
    means = np.where(count > 0, np.where(there, errors, 0.0).sum(-1) / np.maximum(count, 1), np.inf)
    for name, of_group in zip(names, means, strict=True):
        if not np.isfinite(of_group).any():
            raise DataError(f"{what}: block {name}: no head has a score", "lower the learning rates or check labels")
    return [int(index) for index in means.argmin(1)]
