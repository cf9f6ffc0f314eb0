"""Linear heads of surface normals, of every block, of several together and of every learning rate, in one stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate, normalize

from dinoskip.runtime.randomness import numpy_rng
from dinoskip.settings.tasks import TaskInputs
from dinoskip_dense.geometry import NormalsDataset
from dinoskip_dense.normals.angles import logit_gradients, normal_scores, to_pixels
from dinoskip_dense.normals.augment import Example, augmented, square
from dinoskip_dense.normals.config import NormalsConfig
from dinoskip_dense.surfaces import MAPPED, SurfaceHeads
from eval.frozen import FrozenFeatures, Grid
from eval.heads import HeadFit, Truth, train_heads
from eval.probe.loaders import TrainingBatch
from eval.probe.stack import HeadStack
from eval.schedules import rate_factor
from eval.stacked import Group, draw_uniform


class NormalHeads(SurfaceHeads):
    """Trained heads of surface normals."""

    config: NormalsConfig

    @staticmethod
    def read(dataset: NormalsDataset, row: int) -> Example:
        """The square in the middle of an image, its normals, and where they are known."""
        return square(dataset.read(row))

    def scores(self, image: torch.Tensor, *labels: torch.Tensor) -> Iterator[torch.Tensor]:
        """Measures (L, 4), :data:`dinoskip_dense.normals.angles.NAMES`, by normals (3, S, S), where known (S, S)."""
        truth, valid = labels
        for maps in self.predict(image):
            pixels = to_pixels(maps, (truth.shape[1], truth.shape[2]), self.config.upsample)[:, 0, :3]
            yield normal_scores(pixels, truth, valid)

    def maps(self, image: torch.Tensor) -> Iterator[torch.Tensor]:
        """Unit normals (L, 3, h, w) for each group."""
        for maps in self.predict(image):
            size = tuple(MAPPED * side for side in maps.shape[3:])
            yield normalize(interpolate(maps[:, 0, :3], size=size, mode="bilinear", align_corners=False), dim=1)

    def predict(self, image: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the maps (L, 1, c, h, w) of an image uint8 (3, H, W), for each group."""
        features, grid = self.features([image])
        for group in range(len(self.stack.groups)):
            logits = self.stack.logits(group, features).view(len(self.stack.rates), self.config.channels, 1, *grid)
            yield logits.transpose(1, 2)


def fit_heads(given: TaskInputs, rows: NDArray[np.int64], groups: Sequence[Group]) -> NormalHeads:
    """Train the heads of all ``groups`` and learning rates on training images ``rows``; a function of these alone."""
    config: NormalsConfig = given.settings
    dataset, seed = given.labels["train"], given.seed
    features = FrozenFeatures(given.backbone, chain.from_iterable(groups), config.norm)
    stack = HeadStack(
        groups, sorted(config.learning_rates), config.channels, features.dim, config.weight_decay, features.device
    )
    draw_uniform(stack, seed)
    steps = config.steps(len(rows))

    def crops(batch: TrainingBatch) -> tuple[list[torch.Tensor], Truth]:
        examples = [_crop(dataset, row, batch.epoch, config, seed) for row in batch.rows.tolist()]
        images, truths, valids = zip(*examples, strict=True)
        return list(images), (torch.stack(truths), torch.stack(valids))

    def gradients(logits: torch.Tensor, grid: Grid, truth: Truth, step: int) -> torch.Tensor:
        return logit_gradients(logits, grid, *truth, channels=config.channels, times=config.upsample)

    fit = HeadFit(
        "normal heads", steps, crops, gradients,
        rate=lambda step: rate_factor("quarter cosine", step, steps, config.warmup),
    )  # fmt: skip
    train_heads(stack, features, rows, fit, given)
    return NormalHeads(stack, features, config)


def _crop(dataset: NormalsDataset, row: int, epoch: int, config: NormalsConfig, seed: int) -> Example:
    return augmented(dataset.read(row), config, numpy_rng(seed, "normals-augment", dataset.ids[row], epoch))
