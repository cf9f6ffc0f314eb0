"""Supervised training: ConvNeXt's ImageNet recipe (Liu et al. 2022), which weight selection and Cutting the Skip use.

AdamW at 4e-3 for a batch of 4096, which is 2.5e-4 per 256 images as our optimizers count, weight decay 0.05 throughout,
300 epochs with 50 of warm-up, cosine to 1e-6, RandAugment 9/0.5, mixup 0.8, cutmix 1.0, label smoothing 0.1, random
erasing 0.25, no drop path, no clipping. See docs/supervised.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from dinoskip.data.classification import ClassAugmentConfig, ClassLoader
from dinoskip.data.folders import LabelledFolder
from dinoskip.data.loader import Batch
from dinoskip.data.workers import wait_advice
from dinoskip.distributed import World
from dinoskip.errors import ConfigError, DataError
from dinoskip.files import hash_of
from dinoskip.models.vit import from_config
from dinoskip.training import loop
from dinoskip.training.classifier import Accuracy, Classifier, ClassifierHead, Pooling, soft_cross_entropy
from dinoskip.training.recipe import Rates, Recipe, Schedules, TrainConfig


class SupervisedConfig(TrainConfig):
    """The supervised recipe; the defaults are ConvNeXt's for ImageNet-1k."""

    batch_size: int = Field(4096, ge=1, description="images a step over all ranks and micro-batches")
    warmup_epochs: float = Field(50, ge=0, description="linear warm-up of the learning rate from 0")
    online_every: int = Field(10, ge=0, description="epochs between evaluations; the last is always one; 0 = none")
    clip_grad: float = Field(0.0, ge=0, description="bound on the norm of all gradients together; 0 = none")
    pooling: Pooling = Field("token", description="what the classifier reads: the CLS token, or the mean of patches")
    augment: ClassAugmentConfig = ClassAugmentConfig()


MODEL_DEFAULTS = {"drop_path": 0.0}
OPTIMIZER_DEFAULTS = {"lr": 2.5e-4, "weight_decay": 0.05, "weight_decay_end": 0.05}


def with_defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A job's or study's tree in which ``model`` and ``optimizer`` start from this recipe's defaults, not DINO's."""
    filled = dict(tree)
    for key, defaults in (("model", MODEL_DEFAULTS), ("optimizer", OPTIMIZER_DEFAULTS)):
        own = tree.get(key, {})
        if isinstance(own, Mapping):
            filled[key] = {**defaults, **own}
    return filled


class SupervisedJob(loop.Job):
    """Everything that a supervised run's result depends on, but the images."""

    supervised: SupervisedConfig = SupervisedConfig()

    @model_validator(mode="before")
    @classmethod
    def _recipe_defaults(cls, values: Any) -> Any:
        return with_defaults(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _whole_patches(self) -> SupervisedJob:
        patch, size = self.model.patch_size, self.supervised.augment.size
        if size % patch:
            raise ValueError(f"supervised.augment.size: {size} is not a multiple of the patch size {patch}")
        return self


def supervise(
    job: SupervisedJob,
    train: LabelledFolder,
    val: LabelledFolder | None,
    run_dir: str | Path,
    *,
    device: str = "auto",
    workers: int = 0,
    allow: Collection[str] = (),
) -> Path:
    """Train, or go on training, in ``run_dir``; return the final checkpoint's directory.

    ``val`` is classified every ``online_every`` epochs and at the end; rows of metrics.jsonl then have ``top1`` and
    ``top5`` in percent, and the checkpoint of the best ``top1`` is kept. See :func:`dinoskip.training.loop.train` for
    the other arguments and the errors raised; :class:`DataError` if there are not two classes, or ``val`` has others.
    """
    if len(train.class_names) < 2:
        raise DataError(f"{train.root}: one class only, {train.class_names[0]}: there is nothing to tell apart")
    if val is not None and val.class_names != train.class_names:
        raise DataError(f"{val.root}: its classes are not those of {train.root}")

    def recipe(here: World) -> SupervisedRecipe:
        return SupervisedRecipe(job, train, here, workers)

    def data() -> dict[str, Any]:
        numbered = hash_of([list(train.class_names), train.labels.tolist()])
        own = {"fingerprint": train.fingerprint(), "images": len(train), "labels": numbered}
        return own | ({"val": val.fingerprint()} if val is not None else {})

    observer = Accuracy(val, job.supervised.augment.size, workers=workers) if val is not None else None
    return loop.train(job, recipe, data, run_dir, device=device, observer=observer, allow=allow)


def build(job: SupervisedJob, classes: int, device: torch.device) -> Classifier:
    """The classifier at its start; weights depend on ``job.seed`` alone."""
    backbone = job.backbone(device)
    head = ClassifierHead(backbone.embed_dim, classes, seed=job.seed).to(device)
    return Classifier(backbone, head, job.supervised.pooling).train()


class SupervisedRecipe(Recipe):
    """Cross-entropy with soft targets, as the training loop runs it."""

    observed = "student"

    def __init__(self, job: SupervisedJob, images: LabelledFolder, here: World, workers: int) -> None:
        self.job, self.config, self.names = job, job.supervised, images.ids
        config, self.classes = job.supervised, len(images.class_names)
        workers = here.readers(workers)
        self.loader = ClassLoader(
            images, config.augment, seed=job.seed, batch_size=config.batch_size, rank=here.rank,
            world_size=here.size, accumulate=config.accumulate, workers=workers, device=here.device,
        )  # fmt: skip
        micro = config.batch_size // (here.size * config.accumulate)
        if config.augment.mixes and micro % 2:
            raise ConfigError(
                f"supervised.batch_size: {config.batch_size} makes micro-batches of {micro}, which cannot be mixed in "
                "pairs",
                "take an even number, or augment.mixup=0 and augment.cutmix=0",
            )
        self.schedules = Schedules(config, job.optimizer, self.loader.steps_per_epoch)
        self.networks = {"student": build(job, self.classes, here.device)}
        self.buffers: dict[str, Tensor] = {}
        self.verdict = partial(wait_advice, mode=None, workers=workers)

    def fresh(self, role: str) -> nn.Module:
        """A classifier of the same architecture."""
        backbone = from_config(self.job.model, weight_init="skip")
        return Classifier(backbone, ClassifierHead(backbone.embed_dim, self.classes), self.job.supervised.pooling)

    def rates(self, step: int) -> Rates:
        """See :class:`Schedules`."""
        return self.schedules.at(step)

    def backward(
        self, forward: nn.Module, batch: Batch, rates: Rates, autocast: AbstractContextManager[object]
    ) -> dict[str, Tensor]:
        """Mean cross-entropy of a micro-batch."""
        images, targets = self.loader.views(batch)
        with autocast:
            logits = forward(images)
        loss = soft_cross_entropy(logits, targets)
        torch.autograd.backward(loss / self.config.accumulate)
        return {"loss": loss.detach()}

    def drop_gradients(self, rates: Rates) -> None:
        """None: every parameter is trained in every step."""

    def clip(self, gradients: list[Tensor], norms: list[float]) -> None:
        """Scale all gradients together so that their common norm is at most ``clip_grad``."""
        norm, bound = math.hypot(*norms), self.job.supervised.clip_grad
        if bound and norm > bound:
            torch._foreach_mul_(gradients, bound / norm)

    def after_update(self, means: Mapping[str, Tensor], rates: Rates) -> None:
        """Nothing follows."""
