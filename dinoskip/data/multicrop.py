"""Multi-crop micro-batches for pretraining, with crops cut by the workers.

``device_multicrop.py`` has the other two ways. All draw the same boxes and augmentation vectors, so that they differ by
the rounding of the resize alone. Views are ordered view-major: all first global crops, then all second, ...
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dinoskip.data.augment import augment, view_parameters
from dinoskip.data.config import AugmentConfig, CropConfig
from dinoskip.data.crops import crop_boxes, crop_draws, num_views, write_crops
from dinoskip.data.fused_augment import FusedAugment
from dinoskip.data.loader import ReadImage

GROUPS = ("global", "local")


class MultiCropTransform:
    """Base of three transforms. Micro-batches have ``global_vectors``, ``local_vectors``, float32 (V·B, PARAMETERS).

    Where views are made on another device than the CPU, the augmentation is compiled, if ``compiled``.
    """

    def __init__(self, crops: CropConfig, augment: AugmentConfig, seed: int, *, compiled: bool = True) -> None:
        self.crops, self.augment, self.seed = crops, augment, seed
        self.fused = FusedAugment() if compiled else None

    def augmented(self, crops: Tensor, vectors: Tensor) -> Tensor:
        """Augment uint8 crops (N, 3, S, S) where they lie; ``vectors`` float32 (N, PARAMETERS) are on the CPU."""
        if crops.device.type == "cpu" or self.fused is None:
            return augment(crops, vectors)
        return self.fused(crops, vectors)

    def vectors(self, epoch: int, indices: np.ndarray) -> dict[str, Tensor]:
        """Draw the augmentation of a micro-batch."""
        drawn = view_parameters(self.augment, num_views(self.crops), self.seed, epoch, indices)
        return self.by_group(drawn, "vectors")

    def by_group(self, values: np.ndarray, name: str) -> dict[str, Tensor]:
        """Split (B, V, C) into global and local views, each view-major (V·B, C)."""
        parts = np.split(values.swapaxes(0, 1), [self.crops.num_global])
        return {
            f"{group}_{name}": torch.from_numpy(np.ascontiguousarray(part).reshape(-1, values.shape[2]))
            for group, part in zip(GROUPS, parts, strict=True)
        }


class WorkerCrops(MultiCropTransform):
    """Workers decode and cut: ``global_crops`` uint8 (2·B, S, S, 3), ``local_crops`` uint8 (L·B, s, s, 3)."""

    def collate(self, epoch: int, indices: np.ndarray, read: ReadImage) -> dict[str, Tensor]:
        """Read the images of a micro-batch, cut their crops and draw how each is augmented."""
        shape, count = self.crops, len(indices)
        globals_ = torch.empty(shape.num_global, count, shape.global_size, shape.global_size, 3, dtype=torch.uint8)
        locals_ = torch.empty(shape.num_local, count, shape.local_size, shape.local_size, 3, dtype=torch.uint8)
        draws = crop_draws(shape, self.seed, epoch, indices)
        for column, index in enumerate(indices.tolist()):
            _, image = read(index)
            boxes = crop_boxes(shape, np.array([image.shape[:2]]), draws[column : column + 1])[0]
            write_crops(torch.from_numpy(image), boxes.tolist(), globals_[:, column], locals_[:, column])
        crops = {"global_crops": globals_.flatten(0, 1), "local_crops": locals_.flatten(0, 1)}
        return crops | self.vectors(epoch, indices)

    def views(self, data: dict[str, Tensor], device: torch.device) -> list[Tensor]:
        """Move the 8-bit crops to ``device`` and augment them there."""
        return [
            self.augmented(
                data[f"{group}_crops"].to(device, non_blocking=True).permute(0, 3, 1, 2), data[f"{group}_vectors"]
            )
            for group in GROUPS
            if len(data[f"{group}_crops"])
        ]
