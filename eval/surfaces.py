"""What depth and surface normals share: stacked linear heads scored image by image, how they are chosen, what is saved.

Shapes: G groups of blocks (one head each, a rate), L learning rates, n images, M measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.console import log
from dinoskip.errors import DataError
from dinoskip.files import atomic_path, save_tensors, write_json
from dinoskip.models import Backbone
from dinoskip.records import RecordedRow, write_recorded_rows
from dinoskip.results import EvalResult, best_by_heldout
from eval.image_scores import lowest_trials, scored_rows
from eval.labelled import Constants, NamedImages
from eval.probe.stack import HeadStack
from eval.stacked import folded_heads, groups_of, held_out, name_of, place_of, read_like

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

    ``maps`` float16 (G, L, m, ...) are the predictions for the first images.
    """

    scores: NDArray[np.float64]
    maps: NDArray[np.float16]


@dataclass(frozen=True, eq=False)
class ChosenHeads:
    """Heads with their scores on held-out training images (None: none are held out) and on the scored split."""

    measures: Measures
    stack: HeadStack
    heldout: NDArray[np.float64] | None
    scored: ScoredHeads

    @property
    def names(self) -> list[str]:
        """Of the groups: ``"3"``, or ``"3+6+9+12"``."""
        return [name_of(group) for group in self.stack.groups]

    def _lowest(self, scores: NDArray[np.float64]) -> list[int]:
        error = self.measures.names.index(self.measures.error)
        return lowest_trials(scores[..., error], self.names, self.measures.task)

    @property
    def chosen(self) -> list[int]:
        """The learning rate of each group with the lowest error on held-out images, without any on the scored ones."""
        return self._lowest(self.scored.scores if self.heldout is None else self.heldout)

    def rows(self, like: EvalResult) -> list[RecordedRow]:
        """Rows of every group: the chosen learning rate's, with several rates then those ``best on validation``.

        Without held-out images several rates are chosen on validation, and the rows say so.
        """
        names, scores, several = self.measures.names, self.scored.scores, len(self.stack.rates) > 1
        best, share = self._lowest(scores), names.index(self.measures.share)
        recorded: list[RecordedRow] = []
        for group, (name, mine) in enumerate(zip(self.names, self.chosen, strict=True)):
            own = replace(
                read_like(like, self.stack.groups[group]),
                block=name,
                note="best on validation" if several and self.heldout is None else "",
            )
            rows = scored_rows(own, names, scores[group, mine])
            if self.heldout is not None:
                held = 100 * float(np.nanmean(self.heldout[group, mine, :, share]))
                rows[share] = replace(rows[share], row=replace(rows[share].row, heldout=held))
            recorded += rows
            if several and self.heldout is not None:
                noted = scored_rows(replace(own, note="best on validation"), names, scores[group, best[group]])
                recorded += [replace(one, values=None) for one in noted]
        return recorded

    def _log_best(self, rows: Sequence[EvalResult]) -> None:
        task, error, share = self.measures.task, self.measures.error, self.measures.share
        errors = [row for row in rows if row.metric == error]
        best = min(errors, key=lambda row: np.nan_to_num(row.value, nan=np.inf))
        log.info("%s: best is block %s, %s %s", task, best.block, error, best.shown)
        if (chosen := best_by_heldout(row for row in rows if row.metric == share)) is not None:
            log.info("%s: chosen by held-out images is block %s, %s %s", task, chosen.block, share, chosen.shown)

    def write(
        self,
        out: Path,
        ids: Sequence[str],
        like: EvalResult,
        baselines: Mapping[str, NDArray[np.float64]],
        settings: Mapping[str, Any],
        constants: Constants | None = None,
    ) -> list[EvalResult]:
        """Write rows, records, heads, trials and maps into ``out``; return the rows.

        ``ids`` are the scored images, ``baselines`` scores (n, M) by the rule's name, ``constants`` BatchNorm's.
        """
        recorded = self.rows(like)
        self._log_best([one.row for one in recorded])
        for name, own in baselines.items():
            recorded += scored_rows(like.baseline(name, 0.0), self.measures.names, own)
        save_tensors(out / "heads.safetensors", folded_heads(self.stack, self.chosen, constants), {"format": "1"})
        write_json(out / f"{self.measures.task}.json", {"config": dict(settings), "heads": self._trials()})
        maps = self.scored.maps
        own_maps = {
            f"block{place_of(self.stack, self.stack.groups[group], name)}": maps[group, mine]
            for group, (name, mine) in enumerate(zip(self.names, self.chosen, strict=True))
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
                "learning_rate": rates[mine],
                "learning_rates": list(rates),
                "heldout_rmse": None if self.heldout is None else self._means(self.heldout[group]),
                "validation_rmse": self._means(self.scored.scores[group]),
            }
            for group, (name, mine) in enumerate(zip(self.names, self.chosen, strict=True))
        ]

    def _means(self, scores: NDArray[np.float64]) -> list[float | None]:
        """Mean error of each trial of scores (L, n, M); None where there is none."""
        errors = scores[..., self.measures.names.index(self.measures.error)]
        values = [own[np.isfinite(own)] for own in errors]
        return [float(own.mean()) if own.size else None for own in values]


@dataclass(frozen=True)
class SurfaceInputs:
    """What heads of surfaces are fitted and scored on, and where all goes.

    ``blocks`` are numbers or ``"all"``; ``context`` are fields of the rows, ``resolution`` what they say of images.
    """

    backbone: Backbone
    train: Any
    val: Any
    blocks: Sequence[int] | str
    out: Path
    config: Any
    context: Mapping[str, Any]
    facets: Sequence[str]
    seed: int
    multiscale: Sequence[int] | None
    workers: int
    resolution: str


def evaluate_surfaces(
    measures: Measures,
    given: SurfaceInputs,
    fit: Callable[..., Any],
    score: Callable[..., ScoredHeads],
    baselines: Callable[[], Mapping[str, NDArray[np.float64]]],
    *,
    cls: bool = False,
) -> list[EvalResult]:
    """Fit the heads of every block and of the ``multiscale`` blocks together, and write what they score.

    ``fit`` trains heads on images of a data set and ``score`` measures them, as :func:`eval.depth.fit.fit_heads` and
    :func:`eval.depth.fit.score_heads`. ``baselines`` are scores (n, M) of rules that look at no image; ``cls``: heads
    read the class token, too.
    """
    config, val, seed = given.config, given.val, given.seed
    depth = given.backbone.depth
    numbers = list(range(1, depth + 1)) if isinstance(given.blocks, str) else sorted(set(given.blocks))
    fitted, held = split_images(given.train, val, config.holdout, seed)
    groups = groups_of(numbers, given.multiscale, cls=cls, facets=given.facets)
    heads = fit(given.backbone, given.train, fitted, groups, config, seed=seed, workers=given.workers)
    heldout = score(heads, given.train, held, "held-out", workers=given.workers).scores if len(held) else None
    scored = score(heads, val, np.arange(len(val)), "validation", config.maps, given.workers)
    like = EvalResult(
        metric="", value=0.0, task=measures.task, block="", dataset=val.name, split=val.split, n=len(val),
        facet=given.facets[0], norm=config.norm, resolution=given.resolution, seed=seed,
        weights=given.backbone.weights_hash,
    ).with_context({"protocol": f"{config.label}, fitted on {given.train.split}", **given.context})  # fmt: skip
    return ChosenHeads(measures, heads.stack, heldout, scored).write(
        Path(given.out), val.ids, like, baselines(), {**config.own_settings, "seed": seed}, heads.constants
    )


def split_images(
    train: NamedImages, val: NamedImages, share: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training images that heads are fitted on, and those held out; :class:`DataError` if a split has no image."""
    for one in (train, val):
        if not one.ids:
            raise DataError(f"{one.name}: no image in {one.split}")
    return held_out(len(train.ids), share, seed)


def baseline_images(count: int) -> list[int]:
    """Numbers of the at most 1,000 of ``count`` training images, evenly spread, that rules are made of."""
    rows = np.unique(np.linspace(0, count - 1, min(count, _BASELINE_IMAGES)).astype(int))
    return [int(row) for row in rows]
