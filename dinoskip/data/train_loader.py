"""The loader of multi-crop batches, by the way in which the crops are cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dinoskip.data import resident
from dinoskip.data.config import AugmentConfig, CropConfig, DataPath
from dinoskip.data.device_multicrop import DeviceCrops, ResidentCrops
from dinoskip.data.loader import BatchLoader, BatchSplit, BatchTransform
from dinoskip.data.multicrop import MultiCropTransform, WorkerCrops
from dinoskip.data.shards import Source
from dinoskip.data.view_targets import ViewTargets, WithTargets


@dataclass(frozen=True)
class ViewRecipe:
    """Settings of the views of an image.

    Args:
        crops: sizes and scales of the crops.
        augment: the augmentation.
        path: where the work is done. Of a resident set every rank holds the whole, and the loader's ``workers`` are the
            threads that load it.
        compiled: whether the augmentation is compiled, on another device than the CPU.
        targets: what an objective must know of the views beside their pixels: tensors that follow them.
    """

    crops: CropConfig
    augment: AugmentConfig
    path: DataPath = "crops"
    compiled: bool = True
    targets: ViewTargets | None = None


class TrainLoader(BatchLoader):
    """Multi-crop batches; ``views`` gives float32 [(2·B, 3, S, S), (L·B, 3, s, s)], view-major, without empty groups.

    Args:
        images: the images to train on.
        recipe: how their views are made.
        split: how a global batch is cut.
        seed: what all order, crops and augmentation derive from.
        workers: processes that read images; 0 does it in this process.
        device: where views are made.
        min_side: an image with a shorter side (in pixels) counts as one that cannot be read: the patch size.
        options: further ones of :class:`dinoskip.data.loader.BatchLoader`.
    """

    batch_setting = "pretrain.batch_size"

    def __init__(
        self,
        images: Source,
        recipe: ViewRecipe,
        split: BatchSplit,
        *,
        seed: int,
        workers: int = 0,
        device: torch.device | str = "cpu",
        min_side: int = 16,
        **options: Any,
    ) -> None:
        bad: dict[str, str] = {}
        transform: MultiCropTransform
        if recipe.path == "resident":
            held = resident.load(images, torch.device(device), seed=seed, min_side=min_side, threads=workers)
            transform = ResidentCrops(recipe.crops, recipe.augment, seed, held, compiled=recipe.compiled)
            workers, bad = 0, held.bad
        else:
            cut = WorkerCrops if recipe.path == "crops" else DeviceCrops
            transform = cut(recipe.crops, recipe.augment, seed, compiled=recipe.compiled)
        targeted: BatchTransform = transform if recipe.targets is None else WithTargets(transform, recipe.targets)
        super().__init__(
            images, targeted, split, seed=seed, workers=workers, device=device, min_side=min_side, **options
        )
        self.note(tuple(bad.items()))
