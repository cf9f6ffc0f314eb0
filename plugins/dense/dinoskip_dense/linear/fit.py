"""Linear classifiers of every block, number of blocks, input and learning rate, trained in one stack.

One pass of a batch through the backbone gives the class tokens and mean patch tokens of all blocks to all heads.
Shapes: G groups (what a head reads), L learning rates, K classes, n images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from dinoskip.data.crops import TRIES, draw_boxes
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.errors import ConfigError
from dinoskip.io.resize import centre_crop
from dinoskip.runtime.environment import memory_limit
from dinoskip.runtime.randomness import numpy_rng
from dinoskip.settings.read_points import ReadAt
from dinoskip.settings.tasks import TaskInputs
from dinoskip_dense.linear.config import LinearConfig
from eval.frozen import FrozenFeatures
from eval.heads import FittedHeads, HeadFit, Truth, read_ahead, train_heads
from eval.probe.loaders import TrainingBatch
from eval.probe.stack import HeadStack
from eval.schedules import rate_factor
from eval.stacked import Group

_INIT_DEVIATION = 0.01  # eval_linear.py of DINO, and of DINOv2
_SHOWN = 64  # images a forward pass, when they are scored
_COPIES = 3  # of all weights, at once: themselves, their momentum, their gradient


def groups_of(
    blocks: Sequence[int],
    several: Sequence[int] | None,
    config: LinearConfig,
    facets: Sequence[str] = ("out",),
    first: int = 1,
) -> list[Group]:
    """Return what each head reads: for every block the class tokens of the last 1, 4, ... blocks up to it, then those
    of ``several`` blocks; each without and with the mean patch token of its last block, as ``config.inputs`` says.

    The same again at every one of ``facets``. ``first`` is the first block that there is.
    """
    lasts = [(block, last) for block in blocks for last in config.last if last <= block - first + 1]
    spans = [tuple(range(block - last + 1, block + 1)) for block, last in lasts]
    spans += [tuple(several)] if several and tuple(several) not in spans else []
    groups: list[Group] = []
    for facet, span in ((facet, span) for facet in facets for span in spans):
        tokens: Group = tuple((str(ReadAt("cls", facet)), block) for block in span)
        mean = (str(ReadAt("mean", facet)), span[-1])
        groups += [tokens if reading == "cls" else (*tokens, mean) for reading in config.inputs]
    return groups


def span_of(group: Group) -> str:
    """``"12"``, or ``"9+10+11+12"``: the blocks whose class tokens a head reads."""
    return "+".join(str(block) for kind, block in group if ReadAt.parse(kind).of == "cls")


def fit_heads(given: TaskInputs, rows: NDArray[np.int64], groups: Sequence[Group]) -> FittedHeads:
    """Train the heads of all ``groups`` and learning rates on training images ``rows``; a function of these alone.

    Raises :class:`ConfigError` if their weights do not fit in memory
    (:func:`dinoskip.runtime.environment.memory_limit`)."""
    config: LinearConfig = given.settings
    folder, seed = given.labels["train"], given.seed
    features = FrozenFeatures(given.backbone, chain.from_iterable(groups), config.norm)
    classes = len(folder.class_names)
    size = 4 * _COPIES * sum(map(len, groups)) * len(config.rates) * classes * features.dim
    if size > memory_limit():
        raise ConfigError(
            f"linear: the heads take {size / 2**30:.1f} GiB of {memory_limit() / 2**30:.1f}",
            "take fewer blocks (evaluate.blocks) or learning rates",
        )
    stack = HeadStack(
        groups, config.rates, classes, features.dim, config.weight_decay, features.device,
        optimizer="sgd", init_std=_INIT_DEVIATION, seed=seed,
    )  # fmt: skip
    steps, epoch_steps = config.steps(len(rows)), -(-len(rows) // config.batch_size)

    def crops(batch: TrainingBatch) -> tuple[list[torch.Tensor], Truth]:
        images = [_crop(folder, row, batch.epoch, config, seed) for row in batch.rows.tolist()]
        return images, (torch.from_numpy(folder.labels[batch.rows]),)

    fit = HeadFit(
        "linear heads", steps, crops, lambda logits, grid, truth, step: logit_gradients(logits, truth[0], classes),
        rate=lambda step: rate_factor(config.schedule, step, steps, epoch_steps=epoch_steps),
    )  # fmt: skip
    train_heads(stack, features, rows, fit, given)
    return FittedHeads(stack, features, config)


def logit_gradients(logits: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Return the gradient of every head's mean cross-entropy by its logits (L·K, n), for ``labels`` int64 (n,)."""
    gradient = torch.softmax(logits.view(-1, classes, len(labels)), 1)
    ones = torch.ones((), dtype=gradient.dtype, device=gradient.device)
    gradient.scatter_add_(1, labels.expand(len(gradient), 1, -1), -ones.expand(len(gradient), 1, len(labels)))
    return gradient.div_(len(labels)).view_as(logits)


def _crop(folder: LabelledFolder, row: int, epoch: int, config: LinearConfig, seed: int) -> torch.Tensor:
    """A random part of an image (torchvision's RandomResizedCrop and flip), uint8 (3, S, S)."""
    rng = numpy_rng(seed, "linear-augment", folder.ids[row], epoch)
    image = torch.from_numpy(folder.read(row)).permute(2, 0, 1)
    sides = np.array(image.shape[1:])
    boxes = draw_boxes(rng.random((1, TRIES, 4)), sides[:1], sides[1:], np.array([config.scale]))
    top, left, height, width = boxes[0].tolist()
    part = image[None, :, top : top + height, left : left + width]
    size = (config.size, config.size)
    resized = interpolate(part, size=size, mode=config.interpolation, antialias=True, align_corners=False)[0]
    return resized.flip(2) if rng.random() < config.flip else resized


@dataclass(frozen=True)
class LinearHits:
    """Whether the best class is right, and whether one of the best five is: bool (G, L, n) of every head and image."""

    first: NDArray[np.bool_]
    five: NDArray[np.bool_]


@torch.no_grad()
def score_heads(
    heads: FittedHeads, folder: LabelledFolder, rows: NDArray[np.int64], title: str, workers: int = 0
) -> LinearHits:
    """Classify the centre crops of images ``rows`` by all heads; what a diverged head says is never right."""
    stack, config = heads.stack, heads.config
    shape = (len(stack.groups), len(stack.rates), len(rows))
    first, five = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    jobs = [np.arange(at, min(at + _SHOWN, len(rows))) for at in range(0, len(rows), _SHOWN)]

    def read(job: NDArray[np.int64]) -> list[torch.Tensor]:
        images = (torch.from_numpy(folder.read(int(row))).permute(2, 0, 1) for row in rows[job])
        return [centre_crop(image, config.size) for image in images]

    for job, images in read_ahead(title, jobs, read, workers, len):
        features, _ = heads.features(images)
        labels = torch.from_numpy(folder.labels[rows[job]]).to(heads.features.device, non_blocking=True)
        for group in range(shape[0]):
            logits = stack.logits(group, features).view(shape[1], -1, len(job))
            best = logits.topk(min(5, logits.shape[1]), 1).indices == labels
            first[group][:, job], five[group][:, job] = best[:, 0].cpu().numpy(), best.any(1).cpu().numpy()
    good = stack.finite().cpu().numpy()[..., None]
    return LinearHits(first & good, five & good)
