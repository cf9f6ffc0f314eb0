"""Multi-crop micro-batches for pretraining: crops cut in workers, cut on the device, or from a set that lives there.

The three ways draw the same boxes and augmentation vectors, so that they differ by the rounding of the resize alone.
Views are ordered view-major: all first global crops, then all second, ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dinoskip.console import log
from dinoskip.data import resident
from dinoskip.data.augment import AugmentConfig, augment, fused_augment, fused_parameters, view_parameters
from dinoskip.data.crops import CropConfig, crop_boxes, crop_draws, cut, write_crops
from dinoskip.data.loader import BatchLoader, Images, ReadImage

DataPath = Literal["crops", "decode", "resident"]
"""Where the work of reading is done. Views differ by rounding alone: ``--allow-change pretrain.data_path`` is safe.

``crops``: workers decode and cut, the device augments. ``decode``: workers decode, the device cuts and augments: for
few processors beside a fast device. ``resident``: the set is decoded once into the device's memory.
"""

GROUPS = ("global", "local")


class MultiCropTransform:
    """What the three share. Every micro-batch has ``global_vectors``, ``local_vectors``, float32 (V·B, PARAMETERS).

    Where views are made on another device than the CPU, the augmentation is compiled, if ``compiled``; if that fails,
    it is done operation by operation, with a warning.
    """

    def __init__(self, crops: CropConfig, augment: AugmentConfig, seed: int, *, compiled: bool = True) -> None:
        self.crops, self.augment, self.seed, self.compiled = crops, augment, seed, compiled
        self._fused: Callable[[Tensor, Tensor], Tensor] | None = None  # made at the first view: workers get a copy

    def augmented(self, crops: Tensor, vectors: Tensor) -> Tensor:
        """Augment uint8 crops (N, 3, S, S) where they lie; ``vectors`` float32 (N, PARAMETERS) are on the CPU."""
        if crops.device.type == "cpu" or not self.compiled:
            return augment(crops, vectors)
        if self._fused is None:
            self._fused = torch.compile(fused_augment, dynamic=False, fullgraph=True)
        parameters = torch.from_numpy(fused_parameters(vectors.numpy())).to(crops.device, non_blocking=True)
        try:
            return self._fused(crops, parameters)
        except torch._dynamo.exc.TorchDynamoException as error:  # also of a compiler that is missing or fails
            log.warning("the augmentation is not compiled and slower: %s", str(error).partition("\n")[0])
            self.compiled = False
            return augment(crops, vectors)

    def vectors(self, epoch: int, indices: np.ndarray) -> dict[str, Tensor]:
        """Draw the augmentation of a micro-batch."""
        drawn = view_parameters(self.augment, self.crops.num_local, self.seed, epoch, indices)
        return self.by_group(drawn, "vectors")

    def boxes(self, sizes: np.ndarray, epoch: int, indices: np.ndarray) -> dict[str, Tensor]:
        """Draw the boxes of images of ``sizes`` (B, 2): ``global_boxes`` and ``local_boxes``, int64 (V·B, 4)."""
        return self.by_group(crop_boxes(self.crops, sizes, crop_draws(self.crops, self.seed, epoch, indices)), "boxes")

    def by_group(self, values: np.ndarray, name: str) -> dict[str, Tensor]:
        """Split (B, V, C) into global and local views, each view-major (V·B, C)."""
        parts = np.split(values.swapaxes(0, 1), [self.crops.num_global])
        return {
            f"{group}_{name}": torch.from_numpy(np.ascontiguousarray(part).reshape(-1, values.shape[2]))
            for group, part in zip(GROUPS, parts, strict=True)
        }

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


class WorkerCrops(MultiCropTransform):
    """Workers decode and cut: ``global_crops`` uint8 (2·B, S, S, 3), ``local_crops`` uint8 (L·B, s, s, 3)."""

    def collate(self, epoch: int, indices: np.ndarray, read: ReadImage) -> dict[str, Tensor]:
        """Read, cut and draw."""
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


class DeviceCrops(MultiCropTransform):
    """Workers only decode: ``pixels`` uint8 (P, 3), image after image; ``sizes`` int64 (B, 2); and the boxes."""

    def collate(self, epoch: int, indices: np.ndarray, read: ReadImage) -> dict[str, Tensor]:
        """Read and draw."""
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


class ResidentCrops(MultiCropTransform):
    """The whole set, decoded, is on the device; a micro-batch is ``numbers`` int64 (B,) and the boxes.

    Args:
        crops: sizes and scales of the crops.
        augment: the augmentation.
        seed: what crops and augmentation derive from.
        pixels: uint8 (P, 3) on the device, image after image.
        first: int64 (N,), the pixel where each image (or its substitute) begins.
        sizes: int64 (N, 2), its height and width.
        compiled: whether the augmentation is.
    """

    def __init__(
        self,
        crops: CropConfig,
        augment: AugmentConfig,
        seed: int,
        pixels: Tensor,
        first: np.ndarray,
        sizes: np.ndarray,
        *,
        compiled: bool = True,
    ) -> None:
        super().__init__(crops, augment, seed, compiled=compiled)
        self.pixels, self.first, self.sizes = pixels, first, sizes

    def collate(self, epoch: int, indices: np.ndarray, read: ReadImage) -> dict[str, Tensor]:
        """Draw; nothing is read."""
        drawn = self.boxes(self.sizes[indices], epoch, indices) | self.vectors(epoch, indices)
        return {"numbers": torch.from_numpy(indices.astype(np.int64)), **drawn}

    def views(self, data: dict[str, Tensor], device: torch.device) -> list[Tensor]:
        """Cut and augment where the set lies."""
        numbers = data["numbers"].numpy()
        return self.cut_and_augment(data, self.pixels, self.first[numbers], self.sizes[numbers, 1])


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
        compiled: whether the augmentation is compiled, on another device than the CPU.
        options: further ones of :class:`dinoskip.data.loader.BatchLoader`.
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
        compiled: bool = True,
        **options: Any,
    ) -> None:
        bad: dict[str, str] = {}
        transform: MultiCropTransform
        if path == "resident":
            held = resident.load(images, torch.device(device), seed=seed, min_side=min_side, threads=workers)
            transform = ResidentCrops(crops, augment, seed, held.pixels, held.first, held.sizes, compiled=compiled)
            workers, bad = 0, held.bad
        else:
            transform = (WorkerCrops if path == "crops" else DeviceCrops)(crops, augment, seed, compiled=compiled)
        super().__init__(images, transform, seed=seed, workers=workers, device=device, min_side=min_side, **options)
        self.note(tuple(bad.items()))
