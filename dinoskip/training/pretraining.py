"""Pretraining without labels: the job, the table of its objectives, and the function that runs one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from dinoskip.data.shards import Source
from dinoskip.data.train_loader import TrainLoader
from dinoskip.data.workers import wait_advice
from dinoskip.distributed import World
from dinoskip.models.load import load_backbone
from dinoskip.training.calibration import first_weights
from dinoskip.training.dino import DinoConfig
from dinoskip.training.distill import DistillConfig
from dinoskip.training.ibot import IbotConfig
from dinoskip.training.loop import Training, train
from dinoskip.training.mae import MaeConfig
from dinoskip.training.observer import Observer
from dinoskip.training.patch_contrast import PatchContrastConfig
from dinoskip.training.recipe import Job

AnyObjective = (
    DinoConfig
    | IbotConfig
    | MaeConfig
    | PatchContrastConfig
    | DistillConfig
)  # fmt: skip
"""The table of objectives."""


def dino_by_default(given: Any) -> Any:
    """Settings that name no objective are DINO's."""
    return {"objective": "dino", **given} if isinstance(given, Mapping) else given


ObjectiveConfig = Annotated[AnyObjective, Field(discriminator="objective"), BeforeValidator(dino_by_default)]


class PretrainJob(Job):
    """Everything that a pretraining run's result depends on, but the images."""

    pretrain: SerializeAsAny[ObjectiveConfig] = DinoConfig()

    @model_validator(mode="after")
    def _whole_patches(self) -> PretrainJob:
        patch = self.model.patch_size
        for key, size in self.pretrain.sizes().items():
            if size % patch:
                raise ValueError(f"pretrain.{key}: {size} is not a multiple of the patch size {patch}")
        for key, text in self.pretrain.objections(self.model).items():
            raise ValueError(f"pretrain.{key}: {text}")
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
    start: Path | None = None,
) -> Path:
    """Train, or go on training, in ``run_dir``; return the final checkpoint's directory.

    ``start``: a weights file with which the backbone begins; by default it begins as ``job.model.init`` says, which may
    be measured on ``images``. See :func:`dinoskip.training.loop.train` for the other arguments and the errors raised.
    """

    def prepare(here: World) -> Training:
        config, own = job.pretrain, here.readers(workers)
        loader = TrainLoader(
            images, *config.views(), config.data_path, seed=job.seed, batch_size=config.batch_size,
            rank=here.rank, world_size=here.size, accumulate=config.accumulate, workers=own, device=here.device,
            min_side=job.model.patch_size, compiled=config.compile is not False,
            targets=config.targets(job.seed, job.model.patch_size),
        )  # fmt: skip
        objective = config.build(job, loader.steps_per_epoch, here.device)
        objective.look_at(images)
        verdict = partial(wait_advice, mode=config.data_path, workers=own)
        return Training(objective, loader, images.ids, verdict, first_weights(job.model, job.seed, images, start))

    def data() -> dict[str, Any]:
        read = {spec: load_backbone(spec).weights_hash for spec in job.pretrain.backbones()}
        about = {"fingerprint": images.fingerprint(), "images": len(images), **images.record}
        return about | ({"backbones": read} if read else {})

    return train(job, prepare, data, run_dir, device=device, observer=observer, allow=allow)
