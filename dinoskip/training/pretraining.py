"""DINO pretraining: the job, the networks at their start, and the recipe that the training loop runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import model_validator
from torch import Tensor, nn

from dinoskip.data.loader import Batch
from dinoskip.data.multicrop import TrainLoader
from dinoskip.data.shards import Source
from dinoskip.data.workers import wait_advice
from dinoskip.distributed import World
from dinoskip.models.heads import DINOHead
from dinoskip.models.vit import from_config
from dinoskip.training.dino import (
    Dino,
    DinoRates,
    DinoSchedules,
    MultiCrop,
    PretrainConfig,
    clip_each_,
    compute_gradients,
    drop_frozen,
    follow,
    make_teacher,
)
from dinoskip.training.guard import CollapseAlarm
from dinoskip.training.loop import Job, train
from dinoskip.training.recipe import Observer, Rates, Recipe


class PretrainJob(Job):
    """Everything that a pretraining run's result depends on, but the images."""

    pretrain: PretrainConfig = PretrainConfig()

    @model_validator(mode="after")
    def _whole_patches(self) -> PretrainJob:
        patch, crops = self.model.patch_size, self.pretrain.crops
        for key, size in (("global_size", crops.global_size), ("local_size", crops.local_size)):
            if size % patch:
                raise ValueError(f"pretrain.crops.{key}: {size} is not a multiple of the patch size {patch}")
        return self


def pretrain(
    job: PretrainJob,
    images: Source,
    run_dir: str | Path,
    *,
    device: str = "auto",
    workers: int = 0,
    observer: Observer | None = None,
    allow: Collection[str] = (),
) -> Path:
    """Train, or go on training, in ``run_dir``; return the final checkpoint's directory.

    See :func:`dinoskip.training.loop.train` for the other arguments and the errors raised.
    """

    def recipe(here: World) -> DinoRecipe:
        return DinoRecipe(job, images, here, workers)

    def data() -> dict[str, Any]:
        return {"fingerprint": images.fingerprint(), "images": len(images), **images.record}

    return train(job, recipe, data, run_dir, device=device, observer=observer, allow=allow)


def _head(job: PretrainJob, dim: int, norm_last_layer: bool) -> DINOHead:
    config = job.pretrain
    sizes = {"hidden_dim": config.hidden_dim, "bottleneck_dim": config.bottleneck_dim}
    return DINOHead(dim, config.out_dim, norm_last_layer=norm_last_layer, seed=job.seed, **sizes)


def build(job: PretrainJob, device: torch.device) -> Dino:
    """Student and teacher at their start; weights depend on ``job.seed`` alone."""
    backbone = job.backbone(device)
    student = MultiCrop(backbone, _head(job, backbone.embed_dim, job.pretrain.norm_last_layer).to(device)).train()
    teacher = make_teacher(student, _head(job, backbone.embed_dim, True).to(device))
    return Dino(student, teacher, torch.zeros(job.pretrain.out_dim, device=device))


class DinoRecipe(Recipe):
    """DINO (see :mod:`dinoskip.training.dino`) as the training loop runs it."""

    observed = "teacher"

    def __init__(self, job: PretrainJob, images: Source, here: World, workers: int) -> None:
        self.job, self.config, self.names = job, job.pretrain, images.ids
        config, workers = job.pretrain, here.readers(workers)
        self.loader = TrainLoader(
            images, config.crops, config.augment, config.data_path, seed=job.seed, batch_size=config.batch_size,
            rank=here.rank, world_size=here.size, accumulate=config.accumulate, workers=workers, device=here.device,
            min_side=job.model.patch_size,
        )  # fmt: skip
        self.schedules = DinoSchedules(config, job.optimizer, self.loader.steps_per_epoch)
        self.dino = build(job, here.device)
        self.networks = {"student": self.dino.student, "teacher": self.dino.teacher}
        self.buffers = {"center": self.dino.center}
        self.alarm = CollapseAlarm(config.out_dim)
        self.verdict = partial(wait_advice, mode=config.data_path, workers=workers)

    def fresh(self, role: str) -> nn.Module:
        """A backbone and head of the student's or teacher's architecture."""
        backbone = from_config(self.job.model, weight_init="skip")
        fixed = role == "teacher" or self.job.pretrain.norm_last_layer
        return MultiCrop(backbone, _head(self.job, backbone.embed_dim, fixed))

    def rates(self, step: int) -> DinoRates:
        """See :class:`dinoskip.training.dino.DinoSchedules`."""
        return self.schedules.at(step)

    def backward(
        self, forward: nn.Module, batch: Batch, rates: Rates, autocast: AbstractContextManager[object]
    ) -> dict[str, Tensor]:
        """See :func:`dinoskip.training.dino.compute_gradients`."""
        assert isinstance(rates, DinoRates)
        views = self.loader.views(batch)
        result = compute_gradients(self.dino, forward, views, rates, self.job.pretrain, autocast)
        return {"loss": result.loss, "teacher_entropy": result.entropy, "batch_center": result.batch_center}

    def drop_gradients(self, rates: Rates) -> None:
        """The last layer's, in the epochs in which it is frozen."""
        assert isinstance(rates, DinoRates)
        drop_frozen(self.dino, rates)

    def clip(self, gradients: list[Tensor], norms: list[float]) -> None:
        """Each gradient by its own norm."""
        clip_each_(gradients, norms, self.job.pretrain.clip_grad)

    def after_update(self, means: Mapping[str, Tensor], rates: Rates) -> None:
        """Teacher and centre follow."""
        assert isinstance(rates, DinoRates)
        follow(self.dino, means["batch_center"], rates.momentum, self.job.pretrain.center_momentum)
