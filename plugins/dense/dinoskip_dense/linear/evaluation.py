"""Linear classification on a data set: fit, choice of rates and inputs, accuracies, result rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dinoskip.errors import DataError
from dinoskip.io.files import save_tensors, write_json
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult
from dinoskip.settings.read_points import ReadAt
from dinoskip.settings.tasks import TaskInputs
from dinoskip_dense.linear.config import LinearConfig
from dinoskip_dense.linear.fit import LinearHits, fit_heads, groups_of, score_heads, span_of
from eval.baselines import classification_baselines
from eval.heads import FittedHeads
from eval.rows import Trials, chosen_rows, hits_row, log_best, row_like
from eval.stacked import held_out, place_of, read_like

Trial = tuple[int, int]
"""Numbers of a group and of a learning rate."""


@dataclass(frozen=True)
class _Measured:
    """Heads with their hits on held-out training images (None: none are held out) and on the scored split."""

    heads: FittedHeads
    heldout: LinearHits | None
    scored: LinearHits

    @property
    def spans(self) -> dict[str, list[int]]:
        """The groups of every row, by facet and blocks: those that read the same class tokens."""
        groups: dict[str, list[int]] = {}
        for number, group in enumerate(self.heads.stack.groups):
            groups.setdefault(place_of(self.heads.stack, group, span_of(group)), []).append(number)
        return groups

    def best(self, groups: Sequence[int], hits: LinearHits) -> Trial:
        """The head of most hits, of several groups; the first of equals, of the smaller rate."""
        good = self.heads.stack.finite().cpu().numpy()[list(groups)]
        if not good.any():
            name = span_of(self.heads.stack.groups[groups[0]])
            raise DataError(f"linear: block {name}: every head has diverged", "lower the learning rates")
        counts = np.where(good, hits.first[list(groups)].sum(-1), -1)
        group, rate = np.unravel_index(int(counts.argmax()), counts.shape)
        return groups[int(group)], int(rate)


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Fit classifiers on the features of every block and write what they score.

    Labels are ``train`` and ``val`` (:class:`LabelledFolder`). Writes ``rows.json``, ``records.npz``,
    ``heads.safetensors`` and ``linear.json`` (all trials). Rows: ``top1`` and, of five classes or more, ``top5`` in
    percent, of every block and of the last ``config.last`` blocks up to it (``"9+10+11+12"``), of the input and
    learning rate that are best on held-out training images; those ``best on validation``; then the majority class and
    chance. Without held-out images (``holdout: 0``) the choice is on validation, as in DINOv2, and the rows say so.
    """
    config: LinearConfig = given.settings
    train, val, seed, workers = given.labels["train"], given.labels["val"], given.seed, given.workers
    if not len(train) or not len(val):
        raise DataError("linear: no image in the training or the scored split")
    fitted, held = held_out(len(train), config.holdout, seed)
    groups = groups_of(given.block_numbers, given.multiscale, config, given.facets, given.backbone.numbers[0])
    heads = fit_heads(given, fitted, groups)
    measured = _Measured(
        heads,
        score_heads(heads, train, held, "held-out", workers) if len(held) else None,
        score_heads(heads, val, np.arange(len(val)), "validation", workers),
    )
    template = row_like(
        given, "linear", split=given.settings.val_split, norm=config.norm, protocol=config.label,
        resolution=f"{config.size} center_crop", classes=len(train.class_names),
    )  # fmt: skip
    recorded = _rows(measured, template)
    log_best(recorded, "top1")
    recorded += classification_baselines(train.labels, val.labels, template.classes, replace(template, metric="top1"))
    _save(given.out, measured, config, seed)
    return write_recorded_rows(given.out, val.ids, recorded)


def _rows(measured: _Measured, template: EvalResult) -> list[RecordedRow]:
    stack = measured.heads.stack
    recorded: list[RecordedRow] = []
    for groups in measured.spans.values():
        several = len(groups) * len(stack.rates) > 1
        best = measured.best(groups, measured.scored)
        chosen = best if measured.heldout is None else measured.best(groups, measured.heldout)
        held = None if measured.heldout is None else 100 * float(measured.heldout.first[chosen].mean())
        keys = stack.groups[groups[0]]
        of_span = replace(read_like(template, keys), block=span_of(keys))
        trials = Trials(chosen, best, several, held)
        recorded += chosen_rows(of_span, lambda row, trial: _accuracies(row, measured.scored, trial), trials)
    return recorded


def _accuracies(template: EvalResult, hits: LinearHits, trial: Trial) -> list[RecordedRow]:
    rows = [hits_row(replace(template, metric="top1"), hits.first[trial])]
    return rows + ([hits_row(replace(template, metric="top5"), hits.five[trial])] if template.classes >= 5 else [])


def _save(out: Path, measured: _Measured, config: LinearConfig, seed: int) -> None:
    """Write the chosen heads and all trials."""
    stack = measured.heads.stack
    tensors, details = {}, []
    for name, groups in measured.spans.items():
        group, rate = measured.best(groups, measured.heldout or measured.scored)
        tensors[f"block{name}.bias"] = stack.bias[group, rate].cpu()
        for slot, (owner, (kind, block)) in enumerate(stack.slots):
            if owner == group:
                tensors[f"block{name}.{block}.{ReadAt.parse(kind).of}.weight"] = (
                    stack.weight[slot, rate].cpu().contiguous()
                )
        details.append(
            {
                "block": name,
                "input": _input(measured, group),
                "learning_rate": stack.rates[rate],
                "learning_rates": list(stack.rates),
                "inputs": [_input(measured, group) for group in groups],
                "heldout_top1": None if measured.heldout is None else _shares(measured.heldout.first[groups]),
                "validation_top1": _shares(measured.scored.first[groups]),
            }
        )
    save_tensors(out / "heads.safetensors", tensors, {"format": "1"})
    write_json(out / "linear.json", {"config": {**config.own_settings, "seed": seed}, "heads": details})


def _input(measured: _Measured, group: int) -> str:
    return (
        "cls+mean" if any(ReadAt.parse(kind).of == "mean" for kind, _ in measured.heads.stack.groups[group]) else "cls"
    )


def _shares(hits: NDArray[np.bool_]) -> list[list[float]]:
    """Share of hits of each input and learning rate, of (inputs, L, n)."""
    shares: list[list[float]] = hits.mean(-1).tolist()
    return shares
