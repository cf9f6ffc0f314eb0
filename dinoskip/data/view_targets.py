"""Targets of an objective that follow the views of a micro-batch, beside their pixels: masks, matching patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dinoskip.data.augment import FLIP
from dinoskip.data.config import CropConfig
from dinoskip.data.crops import crop_boxes, crop_draws, num_views
from dinoskip.data.loader import BatchTransform, ReadImage


class ViewTargets(Protocol):
    """Says, of the global views of a micro-batch, what its tensors have beside the pixels. Copied into every worker."""

    def __call__(self, epoch: int, indices: np.ndarray, boxes: np.ndarray, flips: np.ndarray) -> list[Tensor]:
        """Tensors on the CPU, as many for every micro-batch. What is drawn must derive from epoch and ``indices``.

        ``indices`` int64 (B,): numbers of the images; ``boxes`` int64 (B, V, 4): top, left, height, width of their
        views; ``flips`` bool (B, V): whether a view was flipped left to right.
        """
        ...


@dataclass(frozen=True)
class Joined:
    """The tensors of several, one after the other; those that do not say ``all_views`` see the global views alone."""

    parts: tuple[ViewTargets, ...]
    num_global: int = 2
    all_views = True

    def __call__(self, epoch: int, indices: np.ndarray, boxes: np.ndarray, flips: np.ndarray) -> list[Tensor]:
        """Boxes and flips of all views."""
        tensors: list[Tensor] = []
        for part in self.parts:
            views = slice(None if getattr(part, "all_views", False) else self.num_global)
            tensors += part(epoch, indices, boxes[:, views], flips[:, views])
        return tensors


class MultiCrops(BatchTransform, Protocol):
    """A transform of :mod:`dinoskip.data.multicrop`, whichever way its crops are cut."""

    crops: CropConfig
    seed: int


class WithTargets:
    """Multi-crop views that are followed by the tensors of ``targets``."""

    def __init__(self, crops: MultiCrops, targets: ViewTargets) -> None:
        self.crops, self.targets = crops, targets

    def collate(self, epoch: int, indices: np.ndarray, read: ReadImage) -> dict[str, Tensor]:
        """Read, cut and draw; ``target_0``, ``target_1``, ... are the targets, of global views or of ``all_views``."""
        sizes: list[tuple[int, ...]] = []

        def noting(index: int) -> tuple[int, np.ndarray]:
            number, image = read(index)
            sizes.append(image.shape[:2])
            return number, image

        data = self.crops.collate(epoch, indices, noting)
        shape = self.crops.crops
        everything = getattr(self.targets, "all_views", False)
        views = num_views(shape) if everything else shape.num_global
        if "global_boxes" in data:
            cut = [data["global_boxes"], *([data["local_boxes"]] if everything else [])]
            boxes = torch.cat(cut).numpy().reshape(views, -1, 4).swapaxes(0, 1)
        else:  # the workers have cut them
            draws = crop_draws(shape, self.crops.seed, epoch, indices)
            boxes = crop_boxes(shape, np.array(sizes), draws)[:, :views]
        vectors = torch.cat([data["global_vectors"], *([data["local_vectors"]] if everything else [])])
        flips = vectors.numpy()[:, FLIP].reshape(views, -1).T > 0
        targets = self.targets(epoch, indices, boxes, flips)
        return data | {f"target_{place}": tensor for place, tensor in enumerate(targets)}

    def views(self, data: dict[str, Tensor], device: torch.device) -> list[Tensor]:
        """The views, then the targets, on ``device``."""
        count = sum(name.startswith("target_") for name in data)
        targets = [data[f"target_{place}"].to(device, non_blocking=True) for place in range(count)]
        return [*self.crops.views(data, device), *targets]
