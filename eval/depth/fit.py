"""Linear depth heads of every block, of several blocks together and of every learning rate, trained in one stack.

One pass of a batch through the backbone gives the features of all blocks to all heads (:mod:`eval.probe.stack`).
Shapes: G groups of blocks (one head each, a rate), L learning rates, n images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from dinoskip.data.geometry import DepthDataset
from dinoskip.models import Backbone
from dinoskip.randomness import numpy_rng
from eval.depth.augment import augmented
from eval.depth.bins import bin_depths, expected_depth, logit_gradients, upsampled
from eval.depth.config import DepthConfig
from eval.depth.scores import NAMES, depth_scores
from eval.frozen import FrozenFeatures, Grid
from eval.heads import HeadFit, Truth, read_ahead, train_heads
from eval.labelled import Constants
from eval.probe.live import RunningNorm
from eval.probe.loaders import TrainingBatch
from eval.probe.stack import HeadStack
from eval.schedules import cycled_momentum, rate_factor
from eval.stacked import Group, draw_uniform
from eval.surfaces import ScoredHeads

_INIT_DEVIATION = 0.01
_MAPPED = 4  # places along a side of a token, in maps that are saved
_PREDICTED = {"cpu": 2**24, "cuda": 2**28}  # pixels predicted at once


@dataclass(frozen=True)
class DepthHeads:
    """Trained heads: their stack, the running BatchNorm of what they read, and the frozen features themselves."""

    stack: HeadStack
    norm: RunningNorm
    features: FrozenFeatures
    config: DepthConfig

    @property
    def constants(self) -> Constants:
        """BatchNorm's, which are folded into saved heads."""
        return self.norm.constants()

    @property
    def bins(self) -> torch.Tensor:
        """Depths of the bins in metres, float32 (K,)."""
        config = self.config
        return bin_depths(config.bins, config.min_depth, config.max_depth, self.features.device)

    def predict(self, images: Sequence[torch.Tensor], size: tuple[int, int] | None) -> Iterator[torch.Tensor]:
        """Yield the depths (L, n, H, W) of uint8 images (3, H, W), for each group.

        ``size`` is (H, W); None: as many places as heads have, 4 a token's side at most.
        """
        features, grid = self.features(images)
        constants = self.constants
        tokens = {key: (x - constants[key][0]) * constants[key][1] for key, x in features.items()}
        for group in range(len(self.stack.groups)):
            yield self._depths(self.stack.logits(group, tokens), len(images), grid, size)

    def _depths(self, logits: torch.Tensor, count: int, grid: Grid, size: tuple[int, int] | None) -> torch.Tensor:
        config = self.config
        z = logits.view(len(self.stack.rates), config.bins, count, *grid)
        depths = torch.cat([expected_depth(upsampled(one, config.upsample), self.bins) for one in torch.split(z, 1)])
        if size is None:
            size = (_MAPPED * grid[0], _MAPPED * grid[1])
        return interpolate(depths, size=size, mode="bilinear", align_corners=False)


def fit_heads(
    backbone: Backbone,
    dataset: DepthDataset,
    rows: NDArray[np.int64],
    groups: Sequence[Group],
    config: DepthConfig,
    *,
    seed: int = 0,
    workers: int = 0,
) -> DepthHeads:
    """Train the heads of all ``groups`` and learning rates on images ``rows``; a function of the arguments alone."""
    keys = sorted({key for group in groups for key in group})
    features = FrozenFeatures(backbone, keys, config.norm)
    stack = HeadStack(
        groups, sorted(config.learning_rates), config.bins, features.dim, config.weight_decay, features.device,
        affine=config.batchnorm, betas=(0.9, config.second_beta), clip=config.clip,
        init_std=_INIT_DEVIATION if config.init == "normal" else 0.0, seed=seed,
    )  # fmt: skip
    if config.init == "uniform":
        draw_uniform(stack, seed)
    heads = DepthHeads(stack, RunningNorm(active=config.batchnorm), features, config)
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
    train_heads(stack, features, rows, fit, config, seed=seed, workers=workers)
    return heads


def _crop(
    dataset: DepthDataset, row: int, epoch: int, config: DepthConfig, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    rng = numpy_rng(seed, "depth-augment", dataset.ids[row], epoch)
    image, depth = augmented(dataset.read(row), dataset.depth(row), config, rng)
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1), torch.from_numpy(depth)


@torch.no_grad()
def score_heads(
    heads: DepthHeads, dataset: DepthDataset, rows: NDArray[np.int64], title: str, mapped: int = 0, workers: int = 0
) -> ScoredHeads:
    """Score all heads on images ``rows`` of ``dataset``, each once, and keep maps of the first ``mapped``.

    Measures are :data:`eval.depth.scores.NAMES`; maps are (h, w), at four places a token's side.
    """
    config, stack = heads.config, heads.stack
    scores = np.full((len(stack.groups), len(stack.rates), len(rows), len(NAMES)), np.nan)
    kept: list[NDArray[np.float16]] = []

    def read(position: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = int(rows[position])
        image = torch.from_numpy(np.ascontiguousarray(dataset.read(row))).permute(2, 0, 1)
        return image, torch.from_numpy(dataset.depth(row))

    for position, (image, depth) in read_ahead(title, range(len(rows)), read, workers):
        views = [image, image.flip(2)] if config.flip_test else [image]
        truth = depth.to(heads.features.device, non_blocking=True)
        for group, depths in enumerate(heads.predict(views, (truth.shape[0], truth.shape[1]))):
            whole = (depths[:, 0] + depths[:, 1].flip(2)) / 2 if config.flip_test else depths[:, 0]
            each = depth_scores(whole, truth, config.min_depth, config.max_depth, config.evaluated)
            scores[group, :, position] = each.cpu().numpy()
        if position < mapped:
            kept.append(np.stack([_small(one) for one in heads.predict([image], None)]))
    scores[~stack.finite().cpu().numpy()] = np.nan
    return ScoredHeads(scores, _of_one_size(kept))


def _small(depths: torch.Tensor) -> NDArray[np.float16]:
    return depths[:, 0].cpu().numpy().astype(np.float16)


def _of_one_size(maps: Sequence[NDArray[np.float16]]) -> NDArray[np.float16]:
    """Stack maps (G, L, h, w) of images into (G, L, m, h, w); those smaller than the largest are edged with NaN."""
    if not maps:
        return np.empty((0, 0, 0, 0, 0), np.float16)
    height, width = (max(one.shape[axis] for one in maps) for axis in (2, 3))
    whole = np.full((*maps[0].shape[:2], len(maps), height, width), np.nan, np.float16)
    for i, one in enumerate(maps):
        whole[:, :, i, : one.shape[2], : one.shape[3]] = one
    return whole
