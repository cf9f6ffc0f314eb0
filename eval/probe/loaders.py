"""Tokens and labels that probes are trained and scored on, stored or computed on demand (:mod:`eval.probe.live`).

A key names tokens: (norm, block). Tokens come normalised by BatchNorm without scale and shift, which are the
heads' own (:mod:`eval.probe.stack`). Shapes: L learning rates, K classes, C channels, n images of T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.runtime.randomness import numpy_rng
from eval.labelled import BatchNormedTokens, Constants, Key, LabelledTokens, labels_ahead
from eval.probe.config import ProbeConfig
from eval.probe.targets import CachedTargets, Targets, masked
from eval.upsampling import upsampled_classes

_LABELS = 32  # label maps read at once, to find those of one size
_IMAGES = {"cpu": 1, "cuda": 16}  # images scored at once: a CPU wants them in its cache


@dataclass(frozen=True)
class TrainingBatch:
    """A batch of training: its step, the pass over the images that it begins in, and the numbers of its images."""

    step: int
    epoch: int
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class ScoredBatch:
    """Images of one label size to be scored: their ``positions`` (n,) among those asked for, labels uint8 (n, H, W).

    ``tokens`` are (n·T, C) of every key; ``classes`` makes classes (n, L, H, W) of logits (n, L, K, T).
    """

    positions: NDArray[np.int64]
    labels: NDArray[np.uint8]
    tokens: Mapping[Key, torch.Tensor]
    classes: Callable[[torch.Tensor], torch.Tensor]


class Recipe(Protocol):
    """The settings that say how often images are visited."""

    @property
    def batch_size(self) -> int:
        """Images of one step of the fit."""

    def steps(self, images: int) -> int:
        """Optimizer steps on so many training images."""


class TokenLoader(Protocol):
    """One split of a data set."""

    data: LabelledTokens
    device: torch.device

    def batches(self, planned: Iterable[TrainingBatch]) -> Iterator[tuple[Mapping[Key, torch.Tensor], Targets]]:
        """Yield tokens (n·T, C) of every key, normalised, and targets of each batch."""

    def scored_batches(self, rows: NDArray[np.int64]) -> Iterator[ScoredBatch]:
        """Yield images ``rows``, each once, tokens normalised by the statistics of training.

        Raises :class:`DataError` at the end if tokens were not finite.
        """

    def constants(self) -> Constants:
        """BatchNorm's statistics that :meth:`scored_batches` uses."""


def training_batches(rows: NDArray[np.int64], recipe: Recipe, seed: int) -> Iterator[TrainingBatch]:
    """Yield the batches of a training on images ``rows``: one new order a pass, the last batch of a pass may be short.

    A function of the arguments alone; with ``iterations`` passes go on until these are done.
    """
    steps = recipe.steps(len(rows))
    step = epoch = 0
    while step < steps:
        order = rows[numpy_rng(seed, "probe-order", epoch).permutation(len(rows))]
        # mmsegmentation samples without end and has no short batch. Here every image is seen once a pass.
        for at in range(0, len(rows), recipe.batch_size):
            if step == steps:
                return
            yield TrainingBatch(step, epoch, order[at : at + recipe.batch_size])
            step += 1
        epoch += 1


class StoredTokenLoader:
    """Frozen tokens of square images. ``tokens[key]`` (N, T, C) as in :class:`eval.labelled.LabelledTokens`.

    ``fitted`` are the numbers of the images that may be visited.
    """

    def __init__(
        self,
        data: LabelledTokens,
        tokens: Mapping[Key, Any],
        constants: Constants,
        recipe: ProbeConfig,
        device: torch.device,
        fitted: NDArray[np.int64] | None = None,
    ) -> None:
        self.data, self.device = data, device
        self._constants = constants
        self._tokens = BatchNormedTokens(tokens, device, constants, keep=fitted is not None)
        self._targets: CachedTargets | None = None
        if fitted is not None:
            self._targets = CachedTargets(
                lambda i: masked(data.checked_label(i), recipe.mask),
                fitted, data.num_classes, data.grid, recipe.refine, device,
            )  # fmt: skip

    def batches(self, planned: Iterable[TrainingBatch]) -> Iterator[tuple[Mapping[Key, torch.Tensor], Targets]]:
        assert self._targets is not None
        for batch in planned:
            yield self._tokens.batch(batch.rows), self._targets.batch(batch.rows)
        self._tokens.check()

    def scored_batches(self, rows: NDArray[np.int64]) -> Iterator[ScoredBatch]:
        ahead = labels_ahead(self.data.checked_label, rows.tolist())
        for at in range(0, len(rows), _LABELS):
            chunk = rows[at : at + _LABELS]
            labels = list(islice(ahead, len(chunk)))
            for places in of_one_size(labels, _IMAGES[self.device.type]):
                together = np.stack([labels[i] for i in places])
                tokens = self._tokens.batch(chunk[places])
                yield ScoredBatch(at + places, together, tokens, upsampling(self.data.grid, together.shape[1:]))
        self._tokens.check()

    def constants(self) -> Constants:
        return self._constants


def of_one_size(labels: Sequence[NDArray[np.uint8]], most: int) -> Iterator[NDArray[np.int64]]:
    """Yield the places of label maps (H, W) of one size, at most so many together; each place once."""
    by_size: dict[tuple[int, ...], list[int]] = {}
    for i, label in enumerate(labels):
        by_size.setdefault(label.shape, []).append(i)
    for places in by_size.values():
        for at in range(0, len(places), most):
            yield np.array(places[at : at + most])


def upsampling(grid: tuple[int, int], size: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what turns logits (n, L, K, h·w) into classes (n, L, H, W): interpolation to ``size``, then the best."""

    def classes(logits: torch.Tensor) -> torch.Tensor:
        maps = logits.reshape(-1, logits.shape[2], *grid)
        return upsampled_classes(maps, (size[0], size[1])).view(*logits.shape[:2], *size)

    return classes
