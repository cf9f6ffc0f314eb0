"""The pretraining loader: multi-crop micro-batches for one rank, augmented on the device that trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dinoskip.data.augment import PARAMETERS, AugmentConfig, augment, view_parameters
from dinoskip.data.batches import Batch, BatchLoader, Images, Read
from dinoskip.data.multicrop import CropConfig, crop_boxes, write_crops

__all__ = ["Batch", "CropMaker", "TrainLoader", "make_views"]


def make_views(batch: Batch, device: torch.device | str) -> list[Tensor]:
    """Move the uint8 crops to ``device`` and augment them there; see :meth:`TrainLoader.views`."""
    return [
        augment(batch.data[crops].to(device, non_blocking=True), batch.data[vectors])
        for crops, vectors in (("globals", "global_vectors"), ("locals", "local_vectors"))
        if len(batch.data[crops])
    ]


class CropMaker:
    """Crops cut in the workers.

    Tensors of a micro-batch, view-major (all first global crops, then all second): ``globals`` uint8 (2·B, 3, S, S),
    ``locals`` uint8 (L·B, 3, s, s), and the augmentation vectors in the same order, ``global_vectors`` and
    ``local_vectors`` float32 (2·B, P) and (L·B, P).
    """

    def __init__(self, crops: CropConfig, augment: AugmentConfig, seed: int) -> None:
        self.crops, self.augment, self.seed = crops, augment, seed

    def make(self, epoch: int, indices: np.ndarray, read: Read) -> dict[str, Tensor]:
        """Read, cut and draw; see :class:`dinoskip.data.batches.Maker`."""
        shape, count = self.crops, len(indices)
        views = [
            torch.empty(number, count, 3, size, size, dtype=torch.uint8)
            for number, size in ((shape.num_global, shape.global_size), (shape.num_local, shape.local_size))
        ]
        vectors = np.empty((shape.num_views, count, PARAMETERS), dtype=np.float32)
        for column, index in enumerate(indices.tolist()):
            _, image = read(index)
            height, width = image.shape[:2]
            boxes = crop_boxes(shape, height, width, self.seed, epoch, index)
            write_crops(image, boxes, views[0][:, column], views[1][:, column])
            vectors[:, column] = view_parameters(self.augment, shape.num_local, self.seed, epoch, index)
        parts = [torch.from_numpy(part.reshape(-1, PARAMETERS)) for part in np.split(vectors, [shape.num_global])]
        return {
            "globals": views[0].flatten(0, 1), "locals": views[1].flatten(0, 1),
            "global_vectors": parts[0], "local_vectors": parts[1],
        }  # fmt: skip

    def views(self, data: dict[str, Tensor], device: torch.device) -> list[Tensor]:
        """Move the crops to ``device`` and augment them there."""
        return make_views(Batch(torch.empty(0), data), device)


class TrainLoader(BatchLoader):
    """Multi-crop batches; ``views`` gives float32 [(2·B, 3, S, S), (L·B, 3, s, s)], view-major, without empty groups.

    Args:
        images: the images to train on.
        crops: sizes and scales of the crops.
        augment: the augmentation.
        seed: what all order, crops and augmentation derive from.
        options: those of :class:`dinoskip.data.batches.BatchLoader`.
    """

    def __init__(self, images: Images, crops: CropConfig, augment: AugmentConfig, *, seed: int, **options: Any) -> None:
        super().__init__(images, CropMaker(crops, augment, seed), seed=seed, **options)
