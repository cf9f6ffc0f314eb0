"""Linear heads of surface normals, of every block, of several together and of every learning rate, in one stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from dinoskip.data.geometry import NormalsDataset
from dinoskip.models import Backbone
from dinoskip.randomness import numpy_rng
from eval.frozen import FrozenFeatures, Grid
from eval.heads import HeadFit, Truth, read_ahead, train_heads
from eval.normals.angles import NAMES, logit_gradients, normal_scores, to_pixels
from eval.normals.augment import Example, augmented, square
from eval.normals.config import NormalsConfig
from eval.probe.loaders import TrainingBatch
from eval.probe.stack import HeadStack
from eval.schedules import rate_factor
from eval.stacked import Group, draw_uniform
from eval.surfaces import ScoredHeads

_MAPPED = 4  # places along a side of a token, in maps that are saved


@dataclass(frozen=True)
class NormalHeads:
    """Trained heads: their stack, and the frozen features that they read."""

    stack: HeadStack
    features: FrozenFeatures
    config: NormalsConfig
    constants: None = None

    def predict(self, image: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the maps (L, 1, c, h, w) of an image uint8 (3, H, W), for each group."""
        features, grid = self.features([image])
        for group in range(len(self.stack.groups)):
            logits = self.stack.logits(group, features).view(len(self.stack.rates), self.config.channels, 1, *grid)
            yield logits.transpose(1, 2)


def fit_heads(
    backbone: Backbone,
    dataset: NormalsDataset,
    rows: NDArray[np.int64],
    groups: Sequence[Group],
    config: NormalsConfig,
    *,
    seed: int = 0,
    workers: int = 0,
) -> NormalHeads:
    """Train the heads of all ``groups`` and learning rates on images ``rows``; a function of the arguments alone."""
    keys = sorted({key for group in groups for key in group})
    features = FrozenFeatures(backbone, keys, config.norm)
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
    train_heads(stack, features, rows, fit, config, seed=seed, workers=workers)
    return NormalHeads(stack, features, config)


def _crop(dataset: NormalsDataset, row: int, epoch: int, config: NormalsConfig, seed: int) -> Example:
    return augmented(dataset.read(row), config, numpy_rng(seed, "normals-augment", dataset.ids[row], epoch))


@torch.no_grad()
def score_heads(
    heads: NormalHeads, dataset: NormalsDataset, rows: NDArray[np.int64], title: str, mapped: int = 0, workers: int = 0
) -> ScoredHeads:
    """Score all heads on the squares of images ``rows``, each once, and keep maps of the first ``mapped``.

    Measures are :data:`eval.normals.angles.NAMES`; maps are unit normals (3, h, w) of the image's square.
    """
    stack, device = heads.stack, heads.features.device
    scores = np.full((len(stack.groups), len(stack.rates), len(rows), len(NAMES)), np.nan)
    kept: list[NDArray[np.float16]] = []

    def read(position: int) -> Example:
        return square(dataset.read(int(rows[position])))

    for position, (image, *labels) in read_ahead(title, range(len(rows)), read, workers):
        truth, valid = (one.to(device, non_blocking=True) for one in labels)
        small = []
        for group, maps in enumerate(heads.predict(image)):
            pixels = to_pixels(maps, (truth.shape[1], truth.shape[2]), heads.config.upsample)[:, 0, :3]
            scores[group, :, position] = normal_scores(pixels, truth, valid).cpu().numpy()
            if position < mapped:
                small.append(_small(maps[:, 0, :3]))
        if small and (not kept or small[0].shape == kept[0].shape[1:]):
            kept.append(np.stack(small))
    scores[~stack.finite().cpu().numpy()] = np.nan
    return ScoredHeads(scores, np.stack(kept, 2) if kept else np.empty((0,) * 6, np.float16))


def _small(vectors: torch.Tensor) -> NDArray[np.float16]:
    size = tuple(_MAPPED * side for side in vectors.shape[2:])
    unit = torch.nn.functional.normalize(interpolate(vectors, size=size, mode="bilinear", align_corners=False), dim=1)
    return unit.cpu().numpy().astype(np.float16)
