"""Depth by linear heads on a data set: fit, choice of learning rates, scores, result rows, predicted maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from dinoskip.config import dump
from dinoskip.console import log
from dinoskip.data.geometry import DepthDataset
from dinoskip.errors import DataError
from dinoskip.files import atomic_path, save_tensors, write_json
from dinoskip.models import Backbone
from dinoskip.records import RecordedRow, write_recorded_rows
from dinoskip.results import EvalResult, best_by_heldout
from eval.depth.config import DepthConfig
from eval.depth.fit import DepthHeads, ScoredDepth, fit_heads, score_heads
from eval.depth.scores import NAMES, depth_scores
from eval.image_scores import lowest_trials, scored_rows
from eval.stacked import folded_heads, groups_of, held_out, name_of

_ERROR, _SHARE = NAMES.index("RMSE"), NAMES.index("delta1")
_BASELINE_IMAGES = 1000  # of the training images, evenly spread: enough for a mean
_BASELINE_GRID = (120, 160)
_MILLIMETRES = 65_536


@dataclass(frozen=True)
class _Measured:
    """Heads with their scores on held-out training images (None: none are held out) and on the scored split."""

    heads: DepthHeads
    names: list[str]
    chosen: list[int]
    heldout: NDArray[np.float64] | None
    scored: ScoredDepth

    def of(self, group: int, trial: int) -> NDArray[np.float64]:
        scores: NDArray[np.float64] = self.scored.scores[group, trial]
        return scores


def evaluate(
    backbone: Backbone,
    train: DepthDataset,
    val: DepthDataset,
    blocks: Sequence[int] | str,
    out: Path,
    config: DepthConfig,
    context: Mapping[str, Any],
    *,
    seed: int = 0,
    multiscale: Sequence[int] | None = None,
    workers: int = 0,
) -> list[EvalResult]:
    """Fit depth heads on every block (``blocks``: numbers or ``"all"``) and on the ``multiscale`` blocks together.

    Writes ``rows.json``, ``records.npz``, ``heads.safetensors``, ``depth.json`` (all trials) and ``maps.npz`` into
    ``out``. Rows of every block: each of :data:`eval.depth.scores.NAMES`, of the learning rate with the lowest RMSE on
    held-out training images; with several rates also those ``best on validation``; then the baselines. Without
    held-out images (``holdout: 0``) several rates are chosen on validation, as the references do, and the rows say so.
    """
    numbers = list(range(1, backbone.depth + 1)) if isinstance(blocks, str) else sorted(set(blocks))
    measured = _measure(backbone, train, val, groups_of(numbers, multiscale, cls=config.cls), config, seed, workers)
    context = {"protocol": f"{config.label}, fitted on {train.split}", **context}
    like = EvalResult(
        metric="", value=0.0, task="depth", block="", dataset=val.name, split=val.split, n=len(val), facet="out",
        norm=config.norm, resolution=f"native, {config.evaluated} crop", seed=seed, weights=backbone.weights_hash,
    ).with_context(context)  # fmt: skip
    recorded = _rows(measured, like)
    _log_best([one.row for one in recorded])
    recorded += _baselines(train, val, config, like)
    _save(Path(out), measured, val, config, seed)
    return write_recorded_rows(Path(out), val.ids, recorded)


def _measure(
    backbone: Backbone, train: DepthDataset, val: DepthDataset, groups: Sequence[Any], config: DepthConfig, seed: int,
    workers: int,
) -> _Measured:  # fmt: skip
    if not len(train) or not len(val):
        raise DataError(f"{train.name}: no image in {train.split if not len(train) else val.split}")
    fitted, held = held_out(len(train), config.holdout, seed)
    heads = fit_heads(backbone, train, fitted, groups, config, seed=seed, workers=workers)
    names = [name_of(group) for group in heads.stack.groups]
    heldout = score_heads(heads, train, held, "held-out", workers=workers).scores if len(held) else None
    scored = score_heads(heads, val, np.arange(len(val)), "validation", config.maps, workers)
    chosen = lowest_trials((scored.scores if heldout is None else heldout)[..., _ERROR], names, "depth")
    return _Measured(heads, names, chosen, heldout, scored)


def _rows(measured: _Measured, like: EvalResult) -> list[RecordedRow]:
    several = len(measured.heads.stack.rates) > 1
    best = lowest_trials(measured.scored.scores[..., _ERROR], measured.names, "depth")
    recorded: list[RecordedRow] = []
    for group, (name, mine) in enumerate(zip(measured.names, measured.chosen, strict=True)):
        own = replace(like, block=name, note="best on validation" if several and measured.heldout is None else "")
        rows = scored_rows(own, NAMES, measured.of(group, mine))
        if measured.heldout is not None:
            held = 100 * float(np.nanmean(measured.heldout[group, mine, :, _SHARE]))
            rows[_SHARE] = replace(rows[_SHARE], row=replace(rows[_SHARE].row, heldout=held))
        recorded += rows
        if several and measured.heldout is not None:
            noted = scored_rows(replace(own, note="best on validation"), NAMES, measured.of(group, best[group]))
            recorded += [replace(one, values=None) for one in noted]
    return recorded


def _log_best(rows: Sequence[EvalResult]) -> None:
    errors = [row for row in rows if row.metric == "RMSE"]
    best = min(errors, key=lambda row: np.nan_to_num(row.value, nan=np.inf))
    log.info("depth: best is block %s with RMSE %s m", best.block, best.shown)
    if (chosen := best_by_heldout(row for row in rows if row.metric == NAMES[_SHARE])) is not None:
        log.info("depth: chosen by held-out training images is block %s with delta1 %s", chosen.block, chosen.shown)


def _baselines(train: DepthDataset, val: DepthDataset, config: DepthConfig, like: EvalResult) -> list[RecordedRow]:
    """Rows of two rules that look at no image: the median depth everywhere, and the mean depth of each place.

    Of up to 1,000 training images, evenly spread; places are those of a grid of 120 × 160.
    """
    rows = np.unique(np.linspace(0, len(train) - 1, min(len(train), _BASELINE_IMAGES)).astype(int))
    counts, total, seen = np.zeros(_MILLIMETRES, np.int64), np.zeros(_BASELINE_GRID), np.zeros(_BASELINE_GRID)
    for row in rows:
        depth = train.depth(int(row))
        known = (depth > config.min_depth) & (depth < config.max_depth)
        counts += np.bincount(np.rint(1000 * depth[known]).astype(np.int64), minlength=_MILLIMETRES)[:_MILLIMETRES]
        places = [(np.arange(n) + 0.5) * side // n for n, side in zip(_BASELINE_GRID, depth.shape, strict=True)]
        index = np.ix_(*(place.astype(int) for place in places))
        total += np.where(known[index], depth[index], 0.0)
        seen += known[index]
    if not counts.sum():
        between = f"{config.min_depth:g} and {config.max_depth:g} m"
        raise DataError(f"{train.name} {train.split}: no depth between {between}")
    median = float(np.searchsorted(counts.cumsum(), counts.sum() / 2)) / 1000
    mean = torch.from_numpy(np.where(seen > 0, total / np.maximum(seen, 1), median)).float()[None, None]
    scores = np.full((2, len(val), len(NAMES)), np.nan)
    for i in range(len(val)):
        truth = torch.from_numpy(val.depth(i))
        smooth = interpolate(mean, size=truth.shape, mode="bilinear", align_corners=False)[0, 0]
        both = torch.stack([torch.full_like(truth, median), smooth])
        scores[:, i] = depth_scores(both, truth, config.min_depth, config.max_depth, config.evaluated).numpy()
    named = zip(("median depth", "mean depth of each place"), scores, strict=True)
    return [one for name, own in named for one in scored_rows(like.baseline(name, 0.0), NAMES, own)]


def _save(out: Path, measured: _Measured, val: DepthDataset, config: DepthConfig, seed: int) -> None:
    """Write the heads, the trials and the maps."""
    stack = measured.heads.stack
    tensors = folded_heads(stack, measured.chosen, measured.heads.norm.constants())
    save_tensors(out / "heads.safetensors", tensors, {"format": "1"})
    trials = [
        {
            "block": name,
            "learning_rate": stack.rates[mine],
            "learning_rates": list(stack.rates),
            "heldout_rmse": None if measured.heldout is None else _means(measured.heldout[group]),
            "validation_rmse": _means(measured.scored.scores[group]),
        }
        for group, (name, mine) in enumerate(zip(measured.names, measured.chosen, strict=True))
    ]
    settings = {name: value for name, value in dump(config).items() if name in DepthConfig.model_fields}
    write_json(out / "depth.json", {"config": {**settings, "seed": seed}, "heads": trials})
    maps = {f"block{name}": measured.scored.maps[group, mine]
            for group, (name, mine) in enumerate(zip(measured.names, measured.chosen, strict=True))
            if measured.scored.maps.size}  # fmt: skip
    with atomic_path(out / "maps.npz") as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, ids=np.array(val.ids[: config.maps], dtype=np.str_), **maps)


def _means(scores: NDArray[np.float64]) -> list[float | None]:
    """Mean RMSE of each trial of scores (L, n, 9); None where there is none."""
    values = [own[np.isfinite(own)] for own in scores[..., _ERROR]]
    return [float(own.mean()) if own.size else None for own in values]
