"""What probes are trained and scored on, whether it is kept on disk or made as it is needed (:mod:`eval.probe.live`).

A key names tokens: (norm, block). Tokens come normalised by BatchNorm without scale and shift, which are the
heads' own (:mod:`eval.probe.stack`). Shapes: L learning rates, K classes, C channels, n images of T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.randomness import numpy_rng
from eval.labelled import BatchNormedTokens, Constants, Key, LabelledTokens
from eval.probe.config import ProbeConfig
from eval.probe.targets import CachedTargets, Targets, masked
from eval.upsampling import upsampled_classes

_READ = 8  # images scored from one read


@dataclass(frozen=True)
class TrainingBatch:
    """A batch of training: its step, the pass over the images that it begins in, and the numbers of its images."""

    step: int
    epoch: int
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class ScoredImage:
    """An image to be scored: its label (H, W), its tokens (T, C), and how logits (L, K, T) become classes (L, H, W)."""

    label: NDArray[np.uint8]
    tokens: Mapping[Key, torch.Tensor]
    classes: Callable[[torch.Tensor], torch.Tensor]


class TokenLoader(Protocol):
    """One split of a data set."""

    data: LabelledTokens
    device: torch.device

    def batches(self, planned: Iterable[TrainingBatch]) -> Iterator[tuple[Mapping[Key, torch.Tensor], Targets]]:
        """Yield tokens (n·T, C) of every key, normalised, and targets of each batch."""

    def scored_images(self, rows: NDArray[np.int64]) -> Iterator[ScoredImage]:
        """Yield images ``rows`` in order, tokens normalised by the statistics of training."""

    def constants(self) -> Constants:
        """BatchNorm's statistics that :meth:`scored_images` uses."""


def training_batches(rows: NDArray[np.int64], recipe: ProbeConfig, seed: int) -> Iterator[TrainingBatch]:
    """Yield the batches of a training on images ``rows``: one new order a pass, the last batch of a pass may be short.

    A function of the arguments alone; with ``iterations`` passes go on until these are done.
    """
    steps = recipe.steps(len(rows))
    step = epoch = 0
    while step < steps:
        order = rows[numpy_rng(seed, "probe-order", epoch).permutation(len(rows))]
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
        """See :class:`TokenLoader`."""
        assert self._targets is not None
        for batch in planned:
            yield self._tokens.batch(batch.rows), self._targets.batch(batch.rows)

    def scored_images(self, rows: NDArray[np.int64]) -> Iterator[ScoredImage]:
        """See :class:`TokenLoader`."""
        for at in range(0, len(rows), _READ):
            some = rows[at : at + _READ]
            tokens = {key: x.view(len(some), -1, x.shape[1]) for key, x in self._tokens.batch(some).items()}
            for i, row in enumerate(some):
                label = self.data.checked_label(int(row))
                mine = {key: x[i] for key, x in tokens.items()}
                yield ScoredImage(label, mine, upsampling(self.data.grid, label.shape))

    def constants(self) -> Constants:
        """See :class:`TokenLoader`."""
        return self._constants


def upsampling(grid: tuple[int, int], size: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what turns logits (L, K, h·w) into classes (L, H, W): interpolation to ``size``, then the best."""
    return lambda logits: upsampled_classes(logits.view(*logits.shape[:2], *grid), (size[0], size[1]))
