"""Surface normals by linear heads on a data set: fit, choice of learning rates, scores, result rows, predicted maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate, normalize

from dinoskip.config import dump
from dinoskip.console import log
from dinoskip.data.geometry import NormalsDataset
from dinoskip.errors import DataError
from dinoskip.files import atomic_path, save_tensors, write_json
from dinoskip.models import Backbone
from dinoskip.records import RecordedRow, write_recorded_rows
from dinoskip.results import EvalResult, best_by_heldout
from eval.image_scores import lowest_trials, scored_rows
from eval.normals.angles import NAMES, normal_scores
from eval.normals.augment import square
from eval.normals.config import NormalsConfig
from eval.normals.fit import NormalHeads, ScoredNormals, fit_heads, score_heads
from eval.stacked import folded_heads, groups_of, held_out, name_of

_ERROR, _SHARE = 0, 1  # of NAMES: what rates are chosen by, and what a block is chosen by
_BASELINE_IMAGES = 1000  # of the training images, evenly spread: enough for a mean
_BASELINE_SIDE = 120


@dataclass(frozen=True)
class _Measured:
    """Heads with their scores on held-out training images (None: none are held out) and on the scored split."""

    heads: NormalHeads
    names: list[str]
    chosen: list[int]
    heldout: NDArray[np.float64] | None
    scored: ScoredNormals


def evaluate(
    backbone: Backbone,
    train: NormalsDataset,
    val: NormalsDataset,
    blocks: Sequence[int] | str,
    out: Path,
    config: NormalsConfig,
    context: Mapping[str, Any],
    *,
    seed: int = 0,
    multiscale: Sequence[int] | None = None,
    workers: int = 0,
) -> list[EvalResult]:
    """Fit heads on every block (``blocks``: numbers or ``"all"``) and on the ``multiscale`` blocks together.

    Writes ``rows.json``, ``records.npz``, ``heads.safetensors``, ``normals.json`` (all trials) and ``maps.npz`` into
    ``out``. Rows, choices and notes as in :func:`eval.depth.evaluation.evaluate`, of :data:`eval.normals.angles.NAMES`.
    """
    if not len(train) or not len(val):
        raise DataError(f"{train.name}: no image in {train.split if not len(train) else val.split}")
    numbers = list(range(1, backbone.depth + 1)) if isinstance(blocks, str) else sorted(set(blocks))
    fitted, held = held_out(len(train), config.holdout, seed)
    groups = groups_of(numbers, multiscale, cls=False)
    heads = fit_heads(backbone, train, fitted, groups, config, seed=seed, workers=workers)
    names = [name_of(group) for group in heads.stack.groups]
    heldout = score_heads(heads, train, held, "held-out", workers=workers).scores if len(held) else None
    scored = score_heads(heads, val, np.arange(len(val)), "validation", config.maps, workers)
    chosen = lowest_trials((scored.scores if heldout is None else heldout)[..., _ERROR], names, "normals")
    measured = _Measured(heads, names, chosen, heldout, scored)
    context = {"protocol": f"{config.label}, fitted on {train.split}", **context}
    like = EvalResult(
        metric="", value=0.0, task="normals", block="", dataset=val.name, split=val.split, n=len(val), facet="out",
        norm=config.norm, resolution="native, centre square", seed=seed, weights=backbone.weights_hash,
    ).with_context(context)  # fmt: skip
    recorded = _rows(measured, like)
    _log_best([one.row for one in recorded])
    recorded += _baselines(train, val, like)
    _save(Path(out), measured, val, config, seed)
    return write_recorded_rows(Path(out), val.ids, recorded)


def _rows(measured: _Measured, like: EvalResult) -> list[RecordedRow]:
    several = len(measured.heads.stack.rates) > 1
    scores = measured.scored.scores
    best = lowest_trials(scores[..., _ERROR], measured.names, "normals")
    recorded: list[RecordedRow] = []
    for group, (name, mine) in enumerate(zip(measured.names, measured.chosen, strict=True)):
        own = replace(like, block=name, note="best on validation" if several and measured.heldout is None else "")
        rows = scored_rows(own, NAMES, scores[group, mine])
        if measured.heldout is not None:
            held = 100 * float(np.nanmean(measured.heldout[group, mine, :, _SHARE]))
            rows[_SHARE] = replace(rows[_SHARE], row=replace(rows[_SHARE].row, heldout=held))
        recorded += rows
        if several and measured.heldout is not None:
            noted = scored_rows(replace(own, note="best on validation"), NAMES, scores[group, best[group]])
            recorded += [replace(one, values=None) for one in noted]
    return recorded


def _log_best(rows: Sequence[EvalResult]) -> None:
    errors = [row for row in rows if row.metric == NAMES[_ERROR]]
    best = min(errors, key=lambda row: np.nan_to_num(row.value, nan=np.inf))
    log.info("normals: best is block %s with RMSE %s degrees", best.block, best.shown)
    if (chosen := best_by_heldout(row for row in rows if row.metric == NAMES[_SHARE])) is not None:
        log.info(
            "normals: chosen by held-out training images is block %s with %s %% within 11.25 degrees",
            chosen.block, chosen.shown,
        )  # fmt: skip


def _baselines(train: NormalsDataset, val: NormalsDataset, like: EvalResult) -> list[RecordedRow]:
    """Rows of two rules that look at no image: the mean normal everywhere, and the mean normal of each place.

    Of up to 1,000 training images, evenly spread; places are those of a grid of 120 × 120.
    """
    total = torch.zeros(3, _BASELINE_SIDE, _BASELINE_SIDE, dtype=torch.float64)
    for row in np.unique(np.linspace(0, len(train) - 1, min(len(train), _BASELINE_IMAGES)).astype(int)):
        _, normals, valid = square(train.read(int(row)))
        known = (normals * valid)[None].double()
        total += interpolate(known, size=total.shape[1:], mode="nearest-exact")[0]
    mean = normalize(total.sum((1, 2)), dim=0).float()
    places = normalize(total, dim=0).float()[None]
    scores = np.full((2, len(val), len(NAMES)), np.nan)
    for i in range(len(val)):
        _, truth, valid = square(val.read(i))
        smooth = interpolate(places, size=truth.shape[1:], mode="bilinear", align_corners=False)[0]
        both = torch.stack([mean[:, None, None].expand_as(truth), smooth])
        scores[:, i] = normal_scores(both, truth, valid).numpy()
    named = zip(("mean normal", "mean normal of each place"), scores, strict=True)
    return [one for name, own in named for one in scored_rows(like.baseline(name, 0.0), NAMES, own)]


def _save(out: Path, measured: _Measured, val: NormalsDataset, config: NormalsConfig, seed: int) -> None:
    """Write the heads, the trials and the maps."""
    stack = measured.heads.stack
    save_tensors(out / "heads.safetensors", folded_heads(stack, measured.chosen), {"format": "1"})
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
    settings = {name: value for name, value in dump(config).items() if name in NormalsConfig.model_fields}
    write_json(out / "normals.json", {"config": {**settings, "seed": seed}, "heads": trials})
    maps = measured.scored.maps
    chosen = {f"block{name}": maps[group, mine]
              for group, (name, mine) in enumerate(zip(measured.names, measured.chosen, strict=True))
              if maps.size}  # fmt: skip
    ids = np.array(val.ids[: maps.shape[2]], dtype=np.str_)
    with atomic_path(out / "maps.npz") as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, ids=ids, **chosen)


def _means(scores: NDArray[np.float64]) -> list[float | None]:
    """Mean RMSE of each trial of scores (L, n, 4); None where there is none."""
    values = [own[np.isfinite(own)] for own in scores[..., _ERROR]]
    return [float(own.mean()) if own.size else None for own in values]
