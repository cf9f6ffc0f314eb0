"""The pretraining loader: multi-crop micro-batches for one rank, augmented on the device that trains."""

from __future__ import annotations

from typing import Any, Literal

import torch

from dinoskip.data import resident
from dinoskip.data.augment import AugmentConfig
from dinoskip.data.batches import Batch, BatchLoader, Images
from dinoskip.data.makers import CropMaker, DecodeMaker, MultiCropMaker, ResidentMaker
from dinoskip.data.multicrop import CropConfig

__all__ = ["Batch", "DataPath", "TrainLoader"]


DataPath = Literal["crops", "decode", "resident"]
"""Where the work of reading is done. Views differ by rounding alone: ``--allow-change pretrain.data_path`` is safe.

``crops``: workers decode and cut, the device augments. ``decode``: workers decode, the device cuts and augments: for
few processors beside a fast device. ``resident``: the set is decoded once into the device's memory.
"""


class TrainLoader(BatchLoader):
    """Multi-crop batches; ``views`` gives float32 [(2·B, 3, S, S), (L·B, 3, s, s)], view-major, without empty groups.

    Args:
        images: the images to train on.
        crops: sizes and scales of the crops.
        augment: the augmentation.
        path: where the work is done. Of a resident set every rank holds the whole, and ``workers`` are the threads that
            load it.
        seed: what all order, crops and augmentation derive from.
        workers: processes that read images; 0 does it in this process.
        device: where views are made.
        min_side: an image with a shorter side (in pixels) is refused: the patch size.
        options: further ones of :class:`dinoskip.data.batches.BatchLoader`.
    """

    def __init__(
        self,
        images: Images,
        crops: CropConfig,
        augment: AugmentConfig,
        path: DataPath = "crops",
        *,
        seed: int,
        workers: int = 0,
        device: torch.device | str = "cpu",
        min_side: int = 16,
        **options: Any,
    ) -> None:
        bad: dict[str, str] = {}
        maker: MultiCropMaker
        if path == "resident":
            held = resident.load(images, torch.device(device), seed=seed, min_side=min_side, threads=workers)
            maker = ResidentMaker(crops, augment, seed, held.pixels, held.first, held.sizes)
            workers, bad = 0, held.bad
        else:
            maker = (CropMaker if path == "crops" else DecodeMaker)(crops, augment, seed)
        super().__init__(images, maker, seed=seed, workers=workers, device=device, min_side=min_side, **options)
        self.note(tuple(bad.items()))
