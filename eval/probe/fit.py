"""Linear segmentation probes of frozen features: every block, norm, learning rate and multiscale sum in one fit.

Protocols by name are in :mod:`eval.probe.config` (docs/protocols.md). All of them train heads in one stack
(:mod:`eval.probe.stack`), on features kept on disk or on augmented images through the backbone
(:mod:`eval.probe.live`). The learning rate is chosen on a held-out part of the training images; the validation set is
scored once, at full size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.data.segmentation import IGNORE
from dinoskip.errors import ConfigError, DataError
from dinoskip.results.rows import FIXED, HELD_OUT, Selection
from dinoskip.runtime.console import Progress
from dinoskip.runtime.distributed import choose_device
from dinoskip.runtime.randomness import numpy_rng
from eval.labelled import Constants, Key, LabelledTokens, TokensUnderNorm, batchnorm_statistics
from eval.metrics import ConfusionMatrix, SegmentationScores
from eval.probe.config import ProbeConfig
from eval.probe.heads import LinearHead
from eval.probe.loaders import StoredTokenLoader, TokenLoader, training_batches
from eval.probe.optimizer import rate_scale
from eval.probe.stack import HeadStack
from eval.upsampling import on_gpu

LEARNING_RATES = ProbeConfig().learning_rates
_AS_STORED = ""  # the norm of tokens that are taken as they come

Group = tuple[Key, ...]
Norms = Mapping[str, Callable[[torch.Tensor], torch.Tensor] | None]  # None: as stored


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
        """Learning rates of all trials, in their order."""
        return tuple(rate for rate, _ in self.trials)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the trial that was chosen on held-out images."""
        return self.trials[self.chosen][0]


def selection_of(result: ProbeResult) -> Selection:
    """Return how a probe's learning rate and weight decay were chosen."""
    return HELD_OUT if len(result.trials) > 1 else FIXED


def score_heads(
    stack: HeadStack, loader: TokenLoader, rows: NDArray[np.int64], title: str, chosen: Sequence[int] = ()
) -> tuple[list[list[SegmentationScores]], NDArray[np.int32]]:
    """Score every head on images ``rows`` at full label size; [group][trial]. One group's logits at a time.

    ``chosen`` is a trial (its number) a group; their areas (groups, images, 3, K) are returned, too. What a head that
    has diverged predicts is not counted: its scores are nan. Nothing is read back from a GPU before the end.
    """
    classes, trials, device = loader.data.num_classes, len(stack.rates), loader.device
    size = (classes + 1) * classes  # label × prediction, with a row for ignored pixels: cheaper than leaving them out
    counts = torch.zeros(len(stack.groups), trials, size, dtype=torch.int64, device=device)
    areas = torch.zeros(len(chosen), len(rows), 3, classes, dtype=torch.int32, device=device)
    finite = stack.finite()
    with Progress(title, len(rows), "images") as progress:
        for batch in loader.scored_batches(rows):
            n = len(batch.labels)
            labels = torch.from_numpy(batch.labels).to(device, non_blocking=True).to(torch.int32)
            bins = torch.arange(n * trials, dtype=torch.int32, device=device).view(n, trials, 1, 1) * size
            bins = bins + torch.where(labels == IGNORE, classes, labels)[:, None] * classes
            where = torch.from_numpy(batch.positions).to(device, non_blocking=True)
            for group in range(len(counts)):
                logits = stack.logits(group, batch.tokens).view(trials, classes, n, -1).permute(2, 0, 1, 3)
                pairs = _histogram((bins + batch.classes(logits)).flatten(), n * trials * size).view(n, trials, size)
                pairs *= finite[group, :, None]
                counts[group] += pairs.sum(0)
                if chosen:
                    of_group = pairs[:, chosen[group]].view(n, classes + 1, classes)[:, :-1]
                    parts = of_group.diagonal(dim1=1, dim2=2), of_group.sum(1), of_group.sum(2)
                    areas[group, where] = torch.stack(parts, 1).to(torch.int32)
            progress.advance(n)
    return [[_scores(part, classes) for part in head_counts] for head_counts in counts.cpu()], areas.cpu().numpy()


def _histogram(values: torch.Tensor, size: int) -> torch.Tensor:
    """Return how often 0..size-1 occur in ``values`` (m,), int64; without ``bincount`` on a GPU, whose host waits."""
    if on_gpu(values):
        # 32 bits: a batch has fewer pixels than 2^31, and half the traffic is left of atomics into few bins
        one = torch.ones((), dtype=torch.int32, device=values.device)
        counts = torch.zeros(size, dtype=torch.int32, device=values.device)
        return counts.scatter_add_(0, values.long(), one.expand(len(values))).long()
    return torch.bincount(values, minlength=size)


def _scores(counts: torch.Tensor, classes: int) -> SegmentationScores:
    matrix = ConfusionMatrix(classes)
    matrix.counts[:-1, :-1] = counts.view(classes + 1, classes)[:-1].numpy()
    return matrix.scores()


def split_images(count: int, holdout: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (fitted, held-out) image numbers, a function of count, part and seed alone.

    The protocols hold nothing out: they have one rate, or do not say on which images the best of several is chosen.
    Here the validation set is scored once, because the best of five rates on the images that are reported is too high.
    """
    if count < 2:
        raise ConfigError(f"probe: {count} training image; at least 2 are needed to hold one out")
    order = numpy_rng(seed, "probe-holdout").permutation(count)
    held = min(count - 1, max(1, round(holdout * count)))
    return np.sort(order[held:]), np.sort(order[:held])


def _best(scores: Sequence[SegmentationScores]) -> int:
    """Return the trial with the best mIoU, the first of equals; one without a mIoU only if none has one."""
    return max(range(len(scores)), key=lambda i: (np.nan_to_num(scores[i].miou, nan=-1.0), -i))


def head_groups(blocks: Sequence[int], multiscale: Sequence[int] | None, norms: Sequence[str]) -> list[Group]:
    """Return what each head reads: every block alone, then the ``multiscale`` ones together; for every norm."""
    several = [tuple(multiscale)] if multiscale else []
    return [tuple((norm, b) for b in group) for norm in norms for group in [*((b,) for b in blocks), *several]]


def keys_of(groups: Sequence[Group]) -> list[Key]:
    """Return every (norm, block) that any of ``groups`` reads, once."""
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

    ``settings`` are others of :class:`ProbeConfig`. Returns one result a block, in the order given, then the multiscale
    one. Deterministic by ``seed`` (the held-out split and the order of images). Memory is bounded by
    :func:`dinoskip.runtime.environment.memory_limit`: tokens beyond half of it are read batch by batch.
    """
    recipe = ProbeConfig(learning_rates=tuple(learning_rates), epochs=epochs, **settings)
    groups = head_groups(blocks, multiscale, [_AS_STORED])
    return fit_stored(train, val, groups, {_AS_STORED: None}, recipe, seed, choose_device(device))


def tokens_under_norms(data: LabelledTokens, keys: Sequence[Key], norms: Norms, device: torch.device) -> dict[Key, Any]:
    """Return the tokens (N, T, C) of every key, whose norm is applied when they are read."""
    changes = {key: norms[key[0]] for key in keys}
    return {
        key: data.tokens[key[1]] if change is None else TokensUnderNorm(data.tokens[key[1]], change, device)
        for key, change in changes.items()
    }


def fit_stored(
    train: LabelledTokens,
    val: LabelledTokens,
    groups: Sequence[Group],
    norms: Norms,
    recipe: ProbeConfig,
    seed: int,
    device: torch.device,
) -> list[ProbeResult]:
    """Fit heads of ``groups`` on stored tokens under ``norms``, choose trials, score them: a result a group."""
    keys = keys_of(groups)
    missing = sorted({b for _, b in keys} - (set(train.tokens) & set(val.tokens)))
    if missing:
        raise ConfigError(f"probe: block {missing[0]} is not in the features", "export it too")
    tokens, read = (tokens_under_norms(data, keys, norms, device) for data in (train, val))
    fitted, held = split_images(train.count, recipe.holdout, seed)
    constants: Constants = {}
    for key, stored in tokens.items():
        if recipe.batchnorm == "none":
            constants[key] = torch.zeros(stored.shape[2], device=device), torch.ones(stored.shape[2], device=device)
        else:
            constants[key] = batchnorm_statistics(stored, fitted, device)
    dim = tokens[keys[0]].shape[2]
    loader = StoredTokenLoader(train, tokens, constants, recipe, device, fitted)
    stack = fit_heads(loader, groups, dim, fitted, recipe, seed)
    return choose_and_score(stack, loader, held, lambda: StoredTokenLoader(val, read, constants, recipe, device))


def fit_heads(
    loader: TokenLoader, groups: Sequence[Group], dim: int, rows: NDArray[np.int64], recipe: ProbeConfig, seed: int
) -> HeadStack:
    """Train heads of all ``groups`` and trials on images ``rows`` of ``loader``, whose tokens have ``dim`` channels."""
    rates, decays = zip(*recipe.trials, strict=True)
    affine, classes = recipe.batchnorm == "affine", loader.data.num_classes
    options: dict[str, Any] = {"affine": affine, "init_std": recipe.init_std, "seed": seed}
    stack = HeadStack(groups, rates, classes, dim, decays, loader.device, optimizer=recipe.optimizer, **options)
    train_stack(stack, loader, rows, recipe, seed)
    return stack


def train_stack(stack: HeadStack, loader: TokenLoader, rows: NDArray[np.int64], recipe: ProbeConfig, seed: int) -> None:
    """Train all heads on images ``rows`` of ``loader``."""
    steps = recipe.steps(len(rows))
    with torch.no_grad(), Progress("probes", steps, "steps") as progress:
        for done, (tokens, targets) in enumerate(loader.batches(training_batches(rows, recipe, seed))):
            stack.step(tokens, targets, rate_scale(recipe, done, steps))
            progress.advance()


@torch.no_grad()
def choose_and_score(
    stack: HeadStack, train: TokenLoader, held: NDArray[np.int64], open_val: Callable[[], TokenLoader]
) -> list[ProbeResult]:
    """Choose a trial for every group on the held-out images, then score all on the validation set."""
    on_held, _ = score_heads(stack, train, held, "held-out")
    _check_choice(stack, on_held)
    chosen = [_best(scores) for scores in on_held]
    val = open_val()
    on_val, areas = score_heads(stack, val, np.arange(val.data.count), "validation", chosen)
    results = []
    for g, (group, slots) in enumerate(zip(stack.groups, chosen, strict=True)):
        best = _best(on_val[g])
        heldout, validation = (tuple(s.miou for s in scores[g]) for scores in (on_held, on_val))
        weights, bias = stack.folded(g, slots, train.constants())
        head = LinearHead({block: weights[norm, block] for norm, block in group}, bias)
        scores = (slots, on_val[g][slots], best, on_val[g][best])
        blocks, trials = tuple(block for _, block in group), tuple(zip(stack.rates, stack.decays, strict=True))
        results.append(ProbeResult(blocks, group[0][0], trials, heldout, validation, *scores, head, areas[g]))
    return results


def _check_choice(stack: HeadStack, on_held: Sequence[Sequence[SegmentationScores]]) -> None:
    """Raise :class:`DataError` where no trial has a score on the held-out images, so that none can be chosen."""
    finite = stack.finite().any(1).tolist()
    for group, scores, good in zip(stack.groups, on_held, finite, strict=True):
        if all(np.isnan(score.miou) for score in scores):
            name = "+".join(str(block) for _, block in group)
            if not good:
                raise DataError(f"probe: block {name}: every head has diverged", "lower the learning rates")
            raise DataError("probe: the held-out training images have no labelled pixel", "raise probe.holdout")
