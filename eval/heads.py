"""The fit that all heads share which images go through the network for: depth, surface normals, linear classification.

One pass of a batch through the frozen network gives the features of all blocks to all heads (:mod:`eval.probe.stack`).
A task says how its images are cut, what the gradient of its loss is, and how the rate goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray

from dinoskip.runtime.console import Progress
from dinoskip.settings.tasks import TaskInputs
from eval.frozen import FrozenFeatures, Grid
from eval.labelled import Key
from eval.prefetch import prefetched, threads_of
from eval.probe.loaders import TrainingBatch, training_batches
from eval.probe.stack import HeadStack

T = TypeVar("T")
U = TypeVar("U")
Truth = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class FittedHeads:
    """Trained heads: their stack, the frozen features that they read, and how they were fitted."""

    stack: HeadStack
    features: FrozenFeatures
    config: Any


@dataclass(frozen=True)
class HeadFit:
    """The procedure by which a task fits its heads.

    Args:
        title: what the bar of progress says.
        steps: optimizer steps.
        crops: the images of a batch, uint8 (3, H, W), and what they are fitted to; called in threads.
        gradients: of all heads' losses by their logits, from the logits, the grid, the truth and the step.
        rate: the factor on every learning rate at a step.
        momentum: AdamW's first beta at a step; None: the stack's.
        norm: what is done to features before the heads read them.
    """

    title: str
    steps: int
    crops: Callable[[TrainingBatch], tuple[list[torch.Tensor], Truth]]
    gradients: Callable[[torch.Tensor, Grid, Truth, int], torch.Tensor]
    rate: Callable[[int], float]
    momentum: Callable[[int], float | None] = lambda step: None
    norm: Callable[[Mapping[Key, torch.Tensor]], Mapping[Key, torch.Tensor]] = lambda read: read


def train_heads(
    stack: HeadStack, features: FrozenFeatures, rows: NDArray[Any], fit: HeadFit, given: TaskInputs
) -> None:
    """Train all heads of ``stack`` on images ``rows``, in batches as the settings say (``batch_size``, ``steps``)."""
    batches = training_batches(rows, given.settings, given.seed)
    with torch.no_grad(), Progress(fit.title, fit.steps, "steps") as progress:
        for batch, (images, labels) in prefetched(batches, fit.crops, threads_of(given.workers)):
            read, grid = features(images)
            truth = tuple(part.to(features.device, non_blocking=True) for part in labels)
            stack.step_with(
                fit.norm(read),
                lambda logits, grid=grid, truth=truth, step=batch.step: fit.gradients(  # type: ignore[misc]
                    logits, grid, truth, step
                ),
                fit.rate(batch.step),
                momentum=fit.momentum(batch.step),
            )
            progress.advance()


def read_ahead(
    title: str, items: Sequence[T], read: Callable[[T], U], workers: int, count: Callable[[T], int] = lambda _: 1
) -> Iterator[tuple[T, U]]:
    """Yield items and what is read of them, in threads ahead of their use; ``count`` are the images of an item."""
    with Progress(title, sum(map(count, items)), "images") as progress:
        for item, content in prefetched(items, read, threads_of(workers)):
            yield item, content
            progress.advance(count(item))
