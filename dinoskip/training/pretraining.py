"""Pretraining without labels: the job, the table of its objectives, and the function that runs one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import SerializeAsAny, model_validator

from dinoskip.data.shards import Source
from dinoskip.data.train_loader import TrainLoader
from dinoskip.data.workers import wait_advice
from dinoskip.distributed import World
from dinoskip.training.dino import DINO, PretrainConfig
from dinoskip.training.loop import Training, train
from dinoskip.training.objective import Objective, Observer
from dinoskip.training.recipe import Job

# An objective is one file (settings and a class) and one line here: the settings' type and the class. A job of it is
# PretrainJob(pretrain=its settings); the section `pretrain` of a study is DINO's.
OBJECTIVES: dict[type[PretrainConfig], Callable[[Job, Any, int, torch.device], Objective]] = {PretrainConfig: DINO}


class PretrainJob(Job):
    """Everything that a pretraining run's result depends on, but the images."""

    pretrain: SerializeAsAny[PretrainConfig] = PretrainConfig()

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

    def prepare(here: World) -> Training:
        config, own = job.pretrain, here.readers(workers)
        loader = TrainLoader(
            images, config.crops, config.augment, config.data_path, seed=job.seed, batch_size=config.batch_size,
            rank=here.rank, world_size=here.size, accumulate=config.accumulate, workers=own, device=here.device,
            min_side=job.model.patch_size, compiled=config.compile is not False,
        )  # fmt: skip
        objective = OBJECTIVES[type(config)](job, config, loader.steps_per_epoch, here.device)
        return Training(objective, loader, images.ids, partial(wait_advice, mode=config.data_path, workers=own))

    def data() -> dict[str, Any]:
        return {"fingerprint": images.fingerprint(), "images": len(images), **images.record}

    return train(job, prepare, data, run_dir, device=device, observer=observer, allow=allow)
