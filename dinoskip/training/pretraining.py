"""Pretraining without labels: the job, the table of its objectives, and the function that runs one."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from dinoskip.data.loader import BatchSplit
from dinoskip.data.shards import Source, TarShards
from dinoskip.data.train_loader import TrainLoader, ViewRecipe
from dinoskip.data.workers import wait_advice
from dinoskip.io.files import read_manifest
from dinoskip.models.load import load_backbone
from dinoskip.runtime.distributed import World
from dinoskip.training.calibration import first_weights
from dinoskip.training.loop import Observer, Training, train
from dinoskip.training.objectives import PretrainJob


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
    images_format: str = "",
) -> Path:
    """Train, or go on training, in ``run_dir``; return the final checkpoint's directory.

    ``start``: a weights file with which the backbone begins; by default it begins as ``job.model.init`` says, which may
    be measured on ``images``. ``images_format``: the kind of the data set, for the header of weights; by default
    ``shards`` or ``images``. See :func:`dinoskip.training.loop.train` for the other arguments and the errors raised.
    """

    def prepare(here: World) -> Training:
        config, readers = job.pretrain, here.readers(workers)
        patch = job.model.patch_size
        targets = config.targets(job.seed, patch)
        recipe = ViewRecipe(*config.views(), config.data_path, config.compile is not False, targets)
        split = BatchSplit(config.batch_size, here.rank, here.size, config.accumulate)
        loader = TrainLoader(images, recipe, split, seed=job.seed, workers=readers, device=here.device, min_side=patch)
        objective = config.build(job, loader.steps_per_epoch, here.device)
        objective.look_at(images)
        verdict = partial(wait_advice, mode=config.data_path, workers=readers)
        return Training(objective, loader, images.ids, verdict, first_weights(job.model, job.seed, images, start))

    def data() -> dict[str, Any]:
        read = {spec: load_backbone(spec).weights_hash for spec in job.pretrain.backbones()}
        read |= {str(store): read_manifest(store).hash for store in job.pretrain.stores()}
        about = {"fingerprint": images.fingerprint(), "images": len(images), **images.record}
        return about | ({"backbones": read} if read else {})

    given = images_format or ("shards" if isinstance(images, TarShards) else "images")
    return train(job, prepare, data, run_dir, device=device, observer=observer, allow=allow, images_format=given)
