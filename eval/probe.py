"""Linear segmentation probes of frozen features: every block, norm, learning rate and multiscale sum in one fit.

Protocols by name are in :mod:`dinoskip.protocols` (docs/protocols.md). All of them train heads in one stack
(:mod:`eval.stacked`), on features kept on disk or on augmented images through the backbone (:mod:`eval.live`). The
learning rate is chosen on a held-out part of the training images; the validation set is scored once, at full size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.config import Multiscale
from dinoskip.console import Progress, log
from dinoskip.data.segmentation import IGNORE, SegmentationDataset
from dinoskip.distributed import choose_device
from dinoskip.errors import ConfigError, DataError
from dinoskip.features import FeatureStore
from dinoskip.models import Backbone
from dinoskip.protocols import ProbeRecipe
from dinoskip.randomness import numpy_rng
from dinoskip.results import EvalResult
from eval.descent import rate_scale
from eval.feeds import CachedFeed, Feed, visits
from eval.heads import LinearHead
from eval.labelled import Constants, Derived, Key, LabelledTokens, batchnorm_statistics
from eval.live import LiveFeed, RunningNorm
from eval.metrics import ConfusionMatrix, SegmentationScores
from eval.probe_rows import About, publish
from eval.stacked import HeadStack

LEARNING_RATES = ProbeRecipe().learning_rates
_AS_STORED = ""  # the norm of tokens that are taken as they come

Group = tuple[Key, ...]
Norms = Mapping[str, Callable[[torch.Tensor], torch.Tensor] | None]  # None: as stored


class ProbeConfig(ProbeRecipe):
    """A recipe, the blocks that are probed together, and the first seed."""

    multiscale: Multiscale | None = None
    seed: int = 0


@dataclass(frozen=True)
class ProbeResult:
    """One probe: a block under a norm, or the sum of several, with its chosen head.

    ``trials`` are (learning rate, weight decay); ``heldout`` and ``validation`` their mIoU (0..1). ``chosen`` is the
    trial with the best held-out mIoU (the smaller rate on a tie); its head is kept as fitted, without the held-out
    images, and is what ``scores`` are of. ``best`` is what choosing on the validation set itself would have given.
    ``areas`` int32 (images, 3, K) are the chosen head's, image by image of the validation set
    (``ConfusionMatrix.areas``).
    """

    blocks: tuple[int, ...]
    norm: str
    trials: tuple[tuple[float, float], ...]
    heldout: tuple[float, ...]
    validation: tuple[float, ...]
    chosen: int
    scores: SegmentationScores
    best: int
    best_scores: SegmentationScores
    head: LinearHead
    areas: NDArray[np.int32]

    @property
    def name(self) -> str:
        """``"3"``, or ``"3+6+9+12"``."""
        return "+".join(map(str, self.blocks))

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """Of the trials."""
        return tuple(rate for rate, _ in self.trials)

    @property
    def learning_rate(self) -> float:
        """The chosen one."""
        return self.trials[self.chosen][0]


def _score(
    stack: HeadStack, feed: Feed, rows: NDArray[np.int64], title: str, chosen: Sequence[int] = ()
) -> tuple[list[list[SegmentationScores]], NDArray[np.int32]]:
    """Score every head on images ``rows`` at full label size; [group][trial]. One group's logits at a time.

    ``chosen`` is a trial (its number) a group; their areas (groups, images, 3, K) are returned, too. What a head that
    has diverged predicts is not counted: its scores are nan.
    """
    classes, trials = feed.data.num_classes, len(stack.rates)
    size = (classes + 1) * classes  # label × prediction, with a row for ignored pixels: cheaper than leaving them out
    counts = torch.zeros(len(stack.groups), trials * size, dtype=torch.int64, device=feed.device)
    areas = np.zeros((len(chosen), len(rows), 3, classes), dtype=np.int32)
    offsets = torch.arange(trials, dtype=torch.int32, device=feed.device)[:, None, None] * size
    finite = stack.finite()
    with Progress(title, len(rows), "images") as progress:
        for at, image in enumerate(feed.shown(rows)):
            label = torch.from_numpy(image.label.astype(np.int32)).to(feed.device)
            base = offsets + torch.where(label == IGNORE, classes, label) * classes
            for group in range(len(counts)):
                found = image.classes(stack.logits(group, image.tokens).view(trials, classes, -1))
                part = torch.bincount((base + found).flatten(), minlength=counts.shape[1])
                part.view(trials, size).mul_(finite[group, :, None])
                counts[group] += part
                if chosen:
                    mine = part.view(trials, classes + 1, classes)[chosen[group], :-1]
                    areas[group, at] = torch.stack([mine.diagonal(), mine.sum(0), mine.sum(1)]).cpu().numpy()
            progress.advance()
    return [[_scores(part, classes) for part in one.view(trials, -1).cpu()] for one in counts], areas


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


def _groups(blocks: Sequence[int], multiscale: Sequence[int] | None, norms: Sequence[str]) -> list[Group]:
    several = [tuple(multiscale)] if multiscale else []
    return [tuple((norm, b) for b in group) for norm in norms for group in [*((b,) for b in blocks), *several]]


def _keys(groups: Sequence[Group]) -> list[Key]:
    return sorted({key for group in groups for key in group})


def fit_probes(
    train: LabelledTokens,
    val: LabelledTokens,
    blocks: Sequence[int],
    learning_rates: Sequence[float] = LEARNING_RATES,
    epochs: int = 30,
    *,
    multiscale: Sequence[int] | None = None,
    seed: int = 0,
    device: str = "auto",
    **settings: Any,
) -> list[ProbeResult]:
    """Fit one head a block and learning rate, and on the sum of the ``multiscale`` blocks; score them on ``val``.

    ``settings`` are others of :class:`ProbeRecipe`. Returns one result a block, in the order given, then the multiscale
    one. Deterministic by ``seed`` (the held-out split and the order of images). Memory is bounded by
    :func:`dinoskip.environment.memory_limit`: tokens beyond half of it are read batch by batch.
    """
    recipe = ProbeRecipe(learning_rates=tuple(learning_rates), epochs=epochs, **settings)
    groups = _groups(blocks, multiscale, [_AS_STORED])
    return _fit_cached(train, val, groups, {_AS_STORED: None}, recipe, seed, choose_device(device))


def _fit_cached(
    train: LabelledTokens,
    val: LabelledTokens,
    groups: Sequence[Group],
    norms: Norms,
    recipe: ProbeRecipe,
    seed: int,
    device: torch.device,
) -> list[ProbeResult]:
    keys = _keys(groups)
    missing = sorted({b for _, b in keys} - (set(train.tokens) & set(val.tokens)))
    if missing:
        raise ConfigError(f"probe: block {missing[0]} is not in the features", "export it too")

    def under(data: LabelledTokens, norm: str, block: int) -> Any:
        change = norms[norm]
        return data.tokens[block] if change is None else Derived(data.tokens[block], change, device)

    tokens, read = ({key: under(data, *key) for key in keys} for data in (train, val))
    fitted, held = _split(train.count, recipe.holdout, seed)
    constants: Constants = {}
    for key, stored in tokens.items():
        if recipe.batchnorm == "none":
            constants[key] = torch.zeros(stored.shape[2], device=device), torch.ones(stored.shape[2], device=device)
        else:
            constants[key] = batchnorm_statistics(stored, fitted, device)
    dim = tokens[keys[0]].shape[2]
    feed = CachedFeed(train, tokens, constants, recipe, device, fitted)
    stack = fit_heads(feed, groups, dim, fitted, recipe, seed)
    return _chosen(stack, feed, held, lambda: CachedFeed(val, read, constants, recipe, device))


def fit_heads(
    feed: Feed, groups: Sequence[Group], dim: int, rows: NDArray[np.int64], recipe: ProbeRecipe, seed: int
) -> HeadStack:
    """Train every head of ``groups`` and trials on images ``rows`` of ``feed``, whose tokens have ``dim`` channels."""
    rates, decays = zip(*recipe.trials, strict=True)
    affine, classes = recipe.batchnorm == "affine", feed.data.num_classes
    options: dict[str, Any] = {"affine": affine, "init_std": recipe.init_std, "seed": seed}
    stack = HeadStack(groups, rates, classes, dim, decays, feed.device, optimizer=recipe.optimizer, **options)
    train_stack(stack, feed, rows, recipe, seed)
    return stack


def train_stack(stack: HeadStack, feed: Feed, rows: NDArray[np.int64], recipe: ProbeRecipe, seed: int) -> None:
    """Train all heads on images ``rows`` of ``feed``."""
    steps = recipe.steps(len(rows))
    with torch.no_grad(), Progress("probes", steps, "steps") as progress:
        for done, (tokens, targets) in enumerate(feed.batches(visits(rows, recipe, seed))):
            stack.step(tokens, targets, rate_scale(recipe, done, steps))
            progress.advance()


@torch.no_grad()
def _chosen(stack: HeadStack, train: Feed, held: NDArray[np.int64], open_val: Callable[[], Feed]) -> list[ProbeResult]:
    """Choose a trial for every group on the held-out images, then score all on the validation set."""
    on_held, _ = _score(stack, train, held, "held-out")
    chosen = [_best(scores) for scores in on_held]
    val = open_val()
    on_val, areas = _score(stack, val, np.arange(val.data.count), "validation", chosen)
    finite, results = stack.finite(), []
    for g, (group, mine) in enumerate(zip(stack.groups, chosen, strict=True)):
        best = _best(on_val[g])
        heldout, validation = (tuple(s.miou for s in scores[g]) for scores in (on_held, on_val))
        weights, bias = stack.folded(g, mine, train.constants())
        head = LinearHead({block: weights[norm, block] for norm, block in group}, bias)
        scores = (mine, on_val[g][mine], best, on_val[g][best])
        blocks, trials = tuple(block for _, block in group), tuple(zip(stack.rates, stack.decays, strict=True))
        results.append(ProbeResult(blocks, group[0][0], trials, heldout, validation, *scores, head, areas[g]))
        if not bool(finite[g, mine]):
            log.warning("probe: block %s: every head has diverged; lower the learning rates", results[-1].name)
    return results


def evaluate(
    train_store: FeatureStore,
    val_store: FeatureStore,
    train_set: SegmentationDataset,
    val_set: SegmentationDataset,
    out: Path,
    config: ProbeConfig,
    context: Mapping[str, Any],
    *,
    norms: Sequence[str] = (),
    backbone: Backbone | None = None,
    device: str = "auto",
) -> list[EvalResult]:
    """Probe every block of the stores and write heads, ``probes.json`` and ``rows.json`` into ``out``.

    The norm is the stores' own; or ``norms``, which ``backbone`` applies when stores of norm ``none`` are read. Rows:
    mIoU with its interval, mAcc and aAcc in percent of the chosen heads, and mIoU with note ``best on validation``;
    then the mIoU of the majority class. With several seeds: rows of each, and of their mean (:mod:`eval.probe_rows`).
    """
    train, val = LabelledTokens.pair(train_store, val_store, train_set, val_set)
    applied = _derivations(val_store, norms, backbone)
    groups = _groups(val_store.blocks, config.multiscale, list(applied))
    seeds = range(config.seed, config.seed + config.seeds)
    fits = [_fit_cached(train, val, groups, applied, config, seed, choose_device(device)) for seed in seeds]
    size = f"{val_store.transform.label}, scored at label size"
    about = About(train, val, train_set, val_set, val_store.facet, val_store.weights_hash, train_store.ids, size)
    return publish(out, fits, config, about, context)


def _derivations(store: FeatureStore, norms: Sequence[str], backbone: Backbone | None) -> Norms:
    """How every norm is made of what the store holds; :class:`ConfigError` if it cannot be."""
    if not norms or list(norms) == [store.norm]:
        return {store.norm: None}
    if store.norm != "none" or store.facet != "out" or backbone is None:
        raise ConfigError(
            f"{store.path}: holds {store.facet} of norm {store.norm}", "several norms need out of norm none"
        )
    if backbone.weights_hash != store.weights_hash:
        raise DataError(f"{store.path}: features of other weights than {backbone.spec}")

    def apply(norm: str) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda tokens: backbone.normed(tokens.to(backbone.device, backbone.dtype), norm)

    try:
        for norm in norms:
            backbone.normed(torch.zeros(1, 1, backbone.dim, device=backbone.device, dtype=backbone.dtype), norm)
    except ValueError as error:
        raise ConfigError(f"probe: {error}") from error
    return {norm: None if norm == "none" else apply(norm) for norm in norms}


def evaluate_live(
    backbone: Backbone,
    train_set: SegmentationDataset,
    val_set: SegmentationDataset,
    blocks: Sequence[int] | str,
    out: Path,
    config: ProbeConfig,
    context: Mapping[str, Any],
    *,
    norms: Sequence[str] = ("final",),
    workers: int = 0,
) -> list[EvalResult]:
    """As :func:`evaluate`, with images that go through the backbone as they are needed; ``blocks`` may be ``"all"``."""
    numbers = list(range(1, backbone.depth + 1)) if isinstance(blocks, str) else sorted(set(blocks))
    beyond = [b for b in {*numbers, *(config.multiscale or ())} if b > backbone.depth]
    if beyond:
        raise ConfigError(f"probe: block {beyond[0]} is beyond the {backbone.depth} blocks of {backbone.spec}")
    groups = _groups(numbers, config.multiscale, norms)
    train, val = (LabelledTokens.labels_of(part) for part in (train_set, val_set))

    def fit(seed: int) -> list[ProbeResult]:
        statistics = RunningNorm(active=config.batchnorm != "none")
        feed, val_feed = (
            LiveFeed(backbone, part, labels, _keys(groups), config, statistics, seed=seed, workers=workers)
            for part, labels in ((train_set, train), (val_set, val))
        )
        fitted, held = _split(train.count, config.holdout, seed)
        stack = fit_heads(feed, groups, backbone.dim, fitted, config, seed)
        return _chosen(stack, feed, held, lambda: val_feed)

    fits = [fit(seed) for seed in range(config.seed, config.seed + config.seeds)]
    about = About(train, val, train_set, val_set, "out", backbone.weights_hash, train_set.ids, config.resolution)
    return publish(out, fits, config, about, context)
