"""Multi-crop micro-batches cut on the device: from images that workers decoded, or from a set that lies there."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dinoskip.data.config import AugmentConfig, CropConfig
from dinoskip.data.crops import crop_boxes, crop_draws
from dinoskip.data.device_crops import cut
from dinoskip.data.loader import ReadImage
from dinoskip.data.multicrop import GROUPS, MultiCropTransform
from dinoskip.data.resident import Resident


class CutOnDevice(MultiCropTransform):
    """Base of the two transforms that draw boxes with the batch and cut them on the device that holds the pixels."""

    def boxes(self, sizes: np.ndarray, epoch: int, indices: np.ndarray) -> dict[str, Tensor]:
        """Draw the boxes of images of ``sizes`` (B, 2): ``global_boxes`` and ``local_boxes``, int64 (V·B, 4)."""
        return self.by_group(crop_boxes(self.crops, sizes, crop_draws(self.crops, self.seed, epoch, indices)), "boxes")

    def cut_and_augment(
        self, data: dict[str, Tensor], pixels: Tensor, first: np.ndarray, widths: np.ndarray
    ) -> list[Tensor]:
        """Cut the boxes of ``data`` from B images in ``pixels`` (P, 3), of given first pixel and width, and augment."""
        views = []
        for group, size in zip(GROUPS, (self.crops.global_size, self.crops.local_size), strict=True):
            boxes = data[f"{group}_boxes"].numpy()
            if len(boxes):
                times = len(boxes) // len(first)
                crops = cut(pixels, np.tile(first, times), np.tile(widths, times), boxes, size)
                views.append(self.augmented(crops, data[f"{group}_vectors"]))
        return views


class DeviceCrops(CutOnDevice):
    """Workers only decode: ``pixels`` uint8 (P, 3), image after image; ``sizes`` int64 (B, 2); and the boxes."""

    def collate(self, epoch: int, indices: np.ndarray, read: ReadImage) -> dict[str, Tensor]:
        """Read the images, and draw where they will be cut and how augmented."""
        images = [read(index)[1] for index in indices.tolist()]
        sizes = np.array([image.shape[:2] for image in images])
        pixels = torch.empty(int(sizes.prod(axis=1).sum()), 3, dtype=torch.uint8)
        np.concatenate([image.reshape(-1, 3) for image in images], out=pixels.numpy())
        drawn = self.boxes(sizes, epoch, indices) | self.vectors(epoch, indices)
        return {"pixels": pixels, "sizes": torch.from_numpy(sizes), **drawn}

    def views(self, data: dict[str, Tensor], device: torch.device) -> list[Tensor]:
        """Move the images to ``device``, cut and augment there."""
        sizes = data["sizes"].numpy()
        areas = sizes.prod(axis=1)
        pixels = data["pixels"].to(device, non_blocking=True)
        return self.cut_and_augment(data, pixels, areas.cumsum() - areas, sizes[:, 1])


class ResidentCrops(CutOnDevice):
    """The whole set, decoded, is on the device; a micro-batch is ``numbers`` int64 (B,) and the boxes.

    Args:
        crops: sizes and scales of the crops.
        augment: the augmentation.
        seed: what crops and augmentation derive from.
        held: the set.
        compiled: whether the augmentation is.
    """

    def __init__(
        self,
        crops: CropConfig,
        augment: AugmentConfig,
        seed: int,
        held: Resident,
        *,
        compiled: bool = True,
    ) -> None:
        super().__init__(crops, augment, seed, compiled=compiled)
        self.held = held

    def collate(self, epoch: int, indices: np.ndarray, read: ReadImage) -> dict[str, Tensor]:
        """Draw where images will be cut and how augmented; none is read."""
        drawn = self.boxes(self.held.sizes[indices], epoch, indices) | self.vectors(epoch, indices)
        return {"numbers": torch.from_numpy(indices.astype(np.int64)), **drawn}

    def views(self, data: dict[str, Tensor], device: torch.device) -> list[Tensor]:
        """Cut and augment where the set lies."""
        numbers = data["numbers"].numpy()
        return self.cut_and_augment(data, self.held.pixels, self.held.first[numbers], self.held.sizes[numbers, 1])
