"""Linear segmentation probes of frozen features: every block, learning rate and multiscale sum in one fit.

Protocol (docs/protocols.md): BatchNorm without affine, 1×1 convolution, logits upsampled bilinearly to
the label, cross-entropy without pixel 255; AdamW with cosine decay, no augmentation of cached features. The learning
rate is chosen on a held-out part of the training images; the validation set is scored once, at full label size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator

from dinoskip.config import Config, Multiscale
from dinoskip.console import Progress, log
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.voc import IGNORE
from dinoskip.distributed import choose_device
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureStore
from dinoskip.files import write_json
from dinoskip.randomness import numpy_rng
from dinoskip.results import EvalResult, write_rows
from eval.baselines import segmentation_baselines
from eval.bootstrap import miou_intervals
from eval.heads import LinearHead, save_heads, upsampled_classes
from eval.labelled import LabelledTokens, NormalisedTokens, batchnorm_statistics
from eval.metrics import ConfusionMatrix, SegmentationScores
from eval.stacked import HeadStack, Targets, cosine_scale, make_targets

LEARNING_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
_SCORED = 8  # images scored from one read


class ProbeConfig(Config):
    """Settings of the probes. ``refine``: how much finer than the tokens the loss is integrated, see eval.stacked;
    1 is the fast variant: cross-entropy of tokens with soft labels.
    """

    learning_rates: tuple[float, ...] = Field(default=LEARNING_RATES, min_length=1)
    epochs: int = Field(default=30, ge=1)
    batch_size: int = Field(default=16, ge=1)
    weight_decay: float = Field(default=1e-4, ge=0)
    holdout: float = Field(default=0.1, gt=0, lt=1)
    multiscale: Multiscale | None = None
    refine: int = Field(default=2, ge=1, le=16)
    protocol: str = "paper"
    seed: int = 0

    @field_validator("learning_rates")
    @classmethod
    def _positive(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        if min(rates) <= 0 or len(set(rates)) != len(rates):
            raise ValueError("learning rates must be positive and different")
        return rates

    @property
    def label(self) -> str:
        """What result rows say about the protocol."""
        loss = "soft token labels" if self.refine == 1 else f"loss grid ×{self.refine}"
        return f"{self.protocol}, {self.epochs} epochs, {loss}"


@dataclass(frozen=True)
class ProbeResult:
    """One probe: a block, or the sum of several, with its chosen head.

    ``heldout`` and ``validation`` are mIoU (0..1) per learning rate. The chosen head has the best held-out mIoU (the
    smaller rate on a tie); it is kept as fitted, without the held-out images, and is what ``scores`` are of.
    ``best_*`` is what choosing on the validation set itself would have given. ``areas`` int32 (images, 3, K) are the
    chosen head's, image by image of the validation set (``ConfusionMatrix.areas``).
    """

    blocks: tuple[int, ...]
    learning_rates: tuple[float, ...]
    heldout: tuple[float, ...]
    validation: tuple[float, ...]
    learning_rate: float
    scores: SegmentationScores
    best_learning_rate: float
    best_scores: SegmentationScores
    head: LinearHead
    areas: NDArray[np.int32]

    @property
    def name(self) -> str:
        """``"3"``, or ``"3+6+9+12"``."""
        return "+".join(map(str, self.blocks))


def _score(
    stack: HeadStack,
    data: LabelledTokens,
    tokens: NormalisedTokens,
    rows: NDArray[np.int64],
    title: str,
    chosen: Sequence[int] = (),
) -> tuple[list[list[SegmentationScores]], NDArray[np.int32]]:
    """Score every head on images ``rows`` at full label size; [group][learning rate]. One group's logits at a time.

    ``chosen`` is a learning rate (its number) a group; their areas (groups, images, 3, K) are returned, too.
    """
    classes, rates = data.num_classes, len(stack.rates)
    size = (classes + 1) * classes  # label × prediction, with a row for ignored pixels: cheaper than leaving them out
    counts = torch.zeros(len(stack.groups), rates * size, dtype=torch.int64, device=tokens.device)
    areas = np.zeros((len(chosen), len(rows), 3, classes), dtype=np.int32)
    offsets = torch.arange(rates, dtype=torch.int32, device=tokens.device)[:, None, None] * size
    with Progress(title, len(rows), "images") as progress:
        for at in range(0, len(rows), _SCORED):
            some = rows[at : at + _SCORED]
            batch = tokens.batch(some)
            logits = [stack.logits(g, batch).view(rates, classes, len(some), *data.grid) for g in range(len(counts))]
            for i, row in enumerate(some):
                label = torch.from_numpy(data.checked_label(int(row)).astype(np.int32)).to(tokens.device)
                base = offsets + torch.where(label == IGNORE, classes, label) * classes
                for group, z in enumerate(logits):
                    found = upsampled_classes(z[:, :, i], (label.shape[0], label.shape[1]))
                    part = torch.bincount((base + found).flatten(), minlength=counts.shape[1])
                    counts[group] += part
                    if chosen:
                        mine = part.view(rates, classes + 1, classes)[chosen[group], :-1]
                        three = torch.stack([mine.diagonal(), mine.sum(0), mine.sum(1)])
                        areas[group, at + i] = three.cpu().numpy()
            progress.advance(len(some))
    return [[_scores(part, classes) for part in one.view(rates, -1).cpu()] for one in counts], areas


def _scores(counts: torch.Tensor, classes: int) -> SegmentationScores:
    matrix = ConfusionMatrix(classes)
    matrix.counts[:-1, :-1] = counts.view(classes + 1, classes)[:-1].numpy()
    return matrix.scores()


def _split(count: int, holdout: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (fitted, held-out) image numbers, a function of count, part and seed alone."""
    if count < 2:
        raise ConfigError(f"probe: {count} training image; at least 2 are needed to hold one out")
    order = numpy_rng(seed, "probe-holdout").permutation(count)
    held = min(count - 1, max(1, round(holdout * count)))
    return np.sort(order[held:]), np.sort(order[:held])


def _best(scores: Sequence[SegmentationScores]) -> int:
    return max(range(len(scores)), key=lambda i: (np.nan_to_num(scores[i].miou, nan=-1.0), -i))


def fit_probes(
    train: LabelledTokens,
    val: LabelledTokens,
    blocks: Sequence[int],
    learning_rates: Sequence[float] = LEARNING_RATES,
    epochs: int = 30,
    *,
    batch_size: int = 16,
    weight_decay: float = 1e-4,
    holdout: float = 0.1,
    multiscale: Sequence[int] | None = None,
    refine: int = 2,
    seed: int = 0,
    device: str = "auto",
) -> list[ProbeResult]:
    """Fit one head a block and learning rate, and on the sum of the ``multiscale`` blocks; score them on ``val``.

    Returns one result a block, in the order given, then the multiscale one. Deterministic by ``seed`` (the held-out
    split and the order of images). Bounded memory: tokens beyond 2 GiB are read batch by batch.
    """
    rates = tuple(sorted(learning_rates))
    groups = [(block,) for block in blocks] + ([tuple(multiscale)] if multiscale else [])
    missing = sorted({b for group in groups for b in group} - (set(train.tokens) & set(val.tokens)))
    if missing:
        raise ConfigError(f"probe: block {missing[0]} is not in the features", "export it too")
    where = choose_device(device)
    used = sorted({block for group in groups for block in group})
    fitted, held = _split(train.count, holdout, seed)
    statistics = {block: batchnorm_statistics(train.tokens[block], fitted, where) for block in used}
    tokens = NormalisedTokens(train, used, where, statistics)
    dim = train.tokens[used[0]].shape[-1]
    stack = HeadStack(groups, rates, train.num_classes, dim, weight_decay, where)
    targets = make_targets(train.checked_label, fitted.tolist(), train.num_classes, train.grid, refine)
    train_stack(stack, tokens, targets.to(where), fitted, epochs=epochs, batch_size=batch_size, seed=seed)
    on_held, _ = _score(stack, train, tokens, held, "held-out")
    chosen = [_best(scores) for scores in on_held]
    read = NormalisedTokens(val, used, where, statistics)
    on_val, areas = _score(stack, val, read, np.arange(val.count), "validation", chosen)
    results = []
    for g, (group, mine) in enumerate(zip(groups, chosen, strict=True)):
        best = _best(on_val[g])
        heldout, validation = (tuple(s.miou for s in scores[g]) for scores in (on_held, on_val))
        given, best_given = (rates[mine], on_val[g][mine]), (rates[best], on_val[g][best])
        head = stack.folded(g, mine, statistics)
        results.append(ProbeResult(group, rates, heldout, validation, *given, *best_given, head, areas[g]))
    return results


def train_stack(
    stack: HeadStack,
    tokens: NormalisedTokens,
    targets: Targets,
    rows: NDArray[np.int64],
    *,
    epochs: int,
    batch_size: int,
    seed: int,
) -> None:
    """Train all heads on images ``rows``, whose ``targets`` are in that order; one new order of images an epoch."""
    steps = epochs * -(-len(rows) // batch_size)
    done = 0
    with torch.no_grad(), Progress("probes", steps, "steps") as progress:
        for epoch in range(epochs):
            order = numpy_rng(seed, "probe-order", epoch).permutation(len(rows))
            for at in range(0, len(rows), batch_size):
                some = order[at : at + batch_size]
                index = torch.from_numpy(some).to(tokens.device)
                stack.step(tokens.batch(rows[some]), targets, index, cosine_scale(done, steps))
                done += 1
                progress.advance()


def evaluate(
    train_store: FeatureStore,
    val_store: FeatureStore,
    train_set: SegmentationDataset,
    val_set: SegmentationDataset,
    out: Path,
    config: ProbeConfig,
    context: Mapping[str, Any],
    *,
    device: str = "auto",
) -> list[EvalResult]:
    """Probe every block of the stores and write ``heads.safetensors``, ``probes.json`` and ``rows.json`` into ``out``.

    Rows: mIoU with its interval, mAcc and aAcc in percent of the chosen heads, and mIoU with note ``best on
    validation``; then the mIoU of the majority class.
    """
    if train_store.weights_hash != val_store.weights_hash:
        raise DataError(f"{val_store.path}: features of other weights than {train_store.path}")
    same = ("blocks", "facet", "norm", "transform")
    for name in same:
        if getattr(train_store, name) != getattr(val_store, name):
            raise DataError(f"{val_store.path}: {name} differs from {train_store.path}")
    options = config.model_dump(exclude={"protocol", "learning_rates", "epochs"})
    train, val = LabelledTokens.of(train_store, train_set), LabelledTokens.of(val_store, val_set)
    results = fit_probes(
        train,
        val,
        val_store.blocks,
        config.learning_rates,
        config.epochs,
        device=device,
        **options,
    )
    out = Path(out)
    details = [_details(result) for result in results]
    save_heads(out / "heads.safetensors", [r.head for r in results], {"classes": val_set.class_names, "format": 1})
    fitted = {"list": train_set.list_name, "ids": list(train_store.ids) if train_set.drawn else "all"}
    write_json(out / "probes.json", {"config": config.model_dump(mode="json"), "train": fitted, "probes": details})
    context = {"protocol": f"{config.label}, fitted on {train_set.list_name}", **context}
    intervals = miou_intervals([result.areas for result in results], config.seed)
    rows = [
        row
        for result, interval in zip(results, intervals, strict=True)
        for row in _rows(result, interval, val_store, val_set, config, context)
    ]
    rows += segmentation_baselines(train.pixels_per_image(), val.pixels_per_image(), rows[0])
    write_rows(out / "rows.json", rows)
    best = max(results, key=lambda result: result.scores.miou)
    log.info("probe: best is block %s with %.1f mIoU", best.name, 100 * best.scores.miou)
    return rows


def _finite(values: Sequence[float] | NDArray[np.float64]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _details(result: ProbeResult) -> dict[str, Any]:
    return {
        "block": result.name,
        "learning_rates": list(result.learning_rates),
        "heldout_miou": _finite(result.heldout),
        "validation_miou": _finite(result.validation),
        "learning_rate": result.learning_rate,
        "best_learning_rate": result.best_learning_rate,
        "iou": _finite(result.scores.iou),
    }


def _rows(
    result: ProbeResult,
    interval: tuple[float, float],
    store: FeatureStore,
    dataset: SegmentationDataset,
    config: ProbeConfig,
    context: Mapping[str, Any],
) -> list[EvalResult]:
    scores, best = result.scores, result.best_scores
    low, high = (100 * end for end in interval)
    values = [("mIoU", scores.miou, "", low, high), ("mAcc", scores.macc, "", None, None)]
    values += [("aAcc", scores.aacc, "", None, None), ("mIoU", best.miou, "best on validation", None, None)]
    return [
        EvalResult(
            metric=metric,
            value=100 * value,
            task="probe",
            block=result.name,
            dataset=dataset.name,
            split=dataset.split,
            n=len(store.ids),
            facet=store.facet,
            norm=store.norm,
            protocol=config.label,
            resolution=f"{store.transform.label}, scored at label size",
            classes=dataset.num_classes,
            seed=config.seed,
            weights=store.weights_hash,
            note=note,
            low=low,
            high=high,
        ).with_context(context)
        for metric, value, note, low, high in values
    ]
