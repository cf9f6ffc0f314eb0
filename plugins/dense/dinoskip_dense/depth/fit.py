"""Linear depth heads of every block, of several blocks together and of every learning rate, trained in one stack.

One pass of a batch through the backbone gives the features of all blocks to all heads (:mod:`eval.probe.stack`).
Shapes: G groups of blocks (one head each, a rate), L learning rates, n images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from dinoskip.runtime.randomness import numpy_rng
from dinoskip.settings.tasks import TaskInputs
from dinoskip_dense.depth.augment import augmented
from dinoskip_dense.depth.bins import bin_depths, expected_depth, logit_gradients, upsampled
from dinoskip_dense.depth.config import DepthConfig
from dinoskip_dense.depth.scores import depth_scores
from dinoskip_dense.geometry import DepthDataset
from dinoskip_dense.surfaces import MAPPED, SurfaceHeads
from eval.frozen import FrozenFeatures, Grid
from eval.heads import HeadFit, Truth, train_heads
from eval.labelled import Constants
from eval.probe.live import RunningNorm
from eval.probe.loaders import TrainingBatch
from eval.probe.stack import HeadStack
from eval.schedules import cycled_momentum, rate_factor
from eval.stacked import Group, draw_uniform

_INIT_DEVIATION = 0.01  # DINOv3's depth head (init: normal)


@dataclass(frozen=True)
class DepthHeads(SurfaceHeads):
    """Trained depth heads, with the running BatchNorm of what they read."""

    config: DepthConfig
    norm: RunningNorm

    @property
    def constants(self) -> Constants:
        """The running statistics."""
        return self.norm.constants()

    @property
    def bins(self) -> torch.Tensor:
        """Depths of the bins in metres, float32 (K,)."""
        config = self.config
        return bin_depths(config.bins, config.min_depth, config.max_depth, self.features.device)

    @staticmethod
    def read(dataset: DepthDataset, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """An image and its depth (H, W) in metres."""
        image = torch.from_numpy(np.ascontiguousarray(dataset.read(row))).permute(2, 0, 1)
        return image, torch.from_numpy(dataset.depth(row))

    def scores(self, image: torch.Tensor, *labels: torch.Tensor) -> Iterator[torch.Tensor]:
        """Measures (L, 9), :data:`dinoskip_dense.depth.scores.NAMES`, by the depth (H, W), for each group."""
        config, (truth,) = self.config, labels
        views = [image, image.flip(2)] if config.flip_test else [image]
        for depths in self.predict(views, (truth.shape[0], truth.shape[1])):
            whole = (depths[:, 0] + depths[:, 1].flip(2)) / 2 if config.flip_test else depths[:, 0]
            yield depth_scores(whole, truth, config.min_depth, config.max_depth, config.evaluated)

    def maps(self, image: torch.Tensor) -> Iterator[torch.Tensor]:
        """Depths (L, h, w) for each group."""
        return (depths[:, 0] for depths in self.predict([image], None))

    def predict(self, images: Sequence[torch.Tensor], size: tuple[int, int] | None) -> Iterator[torch.Tensor]:
        """Yield the depths (L, n, H, W) of uint8 images (3, H, W), for each group.

        ``size`` is (H, W); None: four places a token's side.
        """
        features, grid = self.features(images)
        size = size or (MAPPED * grid[0], MAPPED * grid[1])
        constants, bins = self.constants, self.bins
        tokens = {key: (x - constants[key][0]) * constants[key][1] for key, x in features.items()}
        for group in range(len(self.stack.groups)):
            z = self.stack.logits(group, tokens).view(len(self.stack.rates), len(bins), len(images), *grid)
            each = [expected_depth(upsampled(logits, self.config.upsample), bins) for logits in torch.split(z, 1)]
            yield interpolate(torch.cat(each), size=size, mode="bilinear", align_corners=False)


def fit_heads(given: TaskInputs, rows: NDArray[np.int64], groups: Sequence[Group]) -> DepthHeads:
    """Train the heads of all ``groups`` and learning rates on training images ``rows``; a function of these alone."""
    config: DepthConfig = given.settings
    dataset, seed = given.labels["train"], given.seed
    features = FrozenFeatures(given.backbone, chain.from_iterable(groups), config.norm)
    stack = HeadStack(
        groups, sorted(config.learning_rates), config.bins, features.dim, config.weight_decay, features.device,
        # 0.9 of AdamW, unless the schedule is one cycle, which varies it
        affine=config.batchnorm, betas=(0.9, config.second_beta), clip=config.clip,
        init_std=_INIT_DEVIATION if config.init == "normal" else 0.0, seed=seed,
    )  # fmt: skip
    if config.init == "uniform":
        draw_uniform(stack, seed)
    heads = DepthHeads(stack, features, config, RunningNorm(active=config.batchnorm))
    bins, steps = heads.bins, config.iterations

    def crops(batch: TrainingBatch) -> tuple[list[torch.Tensor], Truth]:
        pairs = [_crop(dataset, row, batch.epoch, config, seed) for row in batch.rows.tolist()]
        return [image for image, _ in pairs], (torch.stack([depth for _, depth in pairs]),)

    def gradients(logits: torch.Tensor, grid: Grid, truth: Truth, step: int) -> torch.Tensor:
        variance = step >= config.mean_only
        return logit_gradients(
            logits, grid, truth[0], bins, times=config.upsample, pooled=config.pooled, variance=variance
        )

    def momentum(step: int) -> float | None:
        return cycled_momentum(step, steps, config.warmup) if config.schedule == "one cycle" else None

    fit = HeadFit(
        "depth heads", steps, crops, gradients,
        rate=lambda step: rate_factor(config.schedule, step, steps, config.warmup), momentum=momentum,
        norm=lambda read: {key: heads.norm.training(key, x) for key, x in read.items()},
    )  # fmt: skip
    train_heads(stack, features, rows, fit, given)
    return heads


def _crop(
    dataset: DepthDataset, row: int, epoch: int, config: DepthConfig, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    rng = numpy_rng(seed, "depth-augment", dataset.ids[row], epoch)
    image, depth = augmented(dataset.read(row), dataset.depth(row), config, rng)
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1), torch.from_numpy(depth)
