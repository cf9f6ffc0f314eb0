"""Annotations of a data set: classes, and objects as COCO's entries, with outlines where the set has any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.sets.coco_json import CocoDetection
from dinoskip.errors import DataError
from dinoskip.io.images import image_size, read_image, stored_geometry
from eval.object_scores import outline

Truth = dict[str, Tensor]
Entry = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Objects:
    """A split with boxes; those of a COCO JSON have outlines, and classes by their numbers there."""

    dataset: DetectionDataset

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def coco(self) -> CocoDetection | None:
        """The set as one of COCO's, None where it is of another kind."""
        return self.dataset if isinstance(self.dataset, CocoDetection) else None

    @cached_property
    def categories(self) -> Mapping[Any, str]:
        """Names of classes by number, in the order in which a detector counts them."""
        return self.coco.categories if self.coco is not None else dict(enumerate(self.dataset.class_names, 1))

    def size(self, index: int) -> tuple[int, int]:
        """(H, W) of an image. :class:`DataError` for one of COCO's that EXIF turns: its objects may be of either."""
        return image_size(self._upright(index))

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """The image uint8 (H, W, 3); errors as :meth:`size`."""
        return read_image(self._upright(index))

    def _upright(self, index: int) -> Path:
        path = self.dataset.path(index)
        if self.coco is not None and stored_geometry(path)[1] != 1:
            raise DataError(f"{path}: EXIF turns it, so its annotations are ambiguous", "save it upright")
        return path

    def entries(self, index: int) -> list[Entry]:
        """The objects, crowds too: ``category_id``, ``bbox`` (x, y, w, h), ``area``, ``iscrowd``."""
        if self.coco is not None:
            return self.coco.entries(index)
        numbers = {name: number for number, name in self.categories.items()}
        return [
            {"category_id": numbers[box.label], "bbox": [box.x1, box.y1, box.x2 - box.x1, box.y2 - box.y1],
             "area": (box.x2 - box.x1) * (box.y2 - box.y1), "iscrowd": 0}
            for box in self.dataset.objects(index)
        ]  # fmt: skip

    def outlined(self, index: int) -> list[Entry]:
        """Return :meth:`entries` with ``segmentation``, the checked outline run by run, where the set has outlines."""
        entries, coco = self.entries(index), self.coco
        if coco is None or not entries:
            return entries
        size = self.size(index)
        return [{**entry, "segmentation": outline(coco.outline(entry, size))} for entry in entries]

    def truth(self, index: int, size: tuple[int, int]) -> Truth:
        """The objects of an image of ``size`` (H, W) as a detector learns them: without crowds and empty boxes.

        ``boxes`` (n, 4) x1 y1 x2 y2, ``labels`` (n,) from 1, and of a set with outlines ``masks`` (n, H, W).
        """
        number = {category: at for at, category in enumerate(self.categories, 1)}
        entries = [entry for entry in self.entries(index) if not entry["iscrowd"] and min(entry["bbox"][2:]) > 0]
        corners = np.array([entry["bbox"] for entry in entries], dtype=np.float32).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        labels = torch.tensor([number[entry["category_id"]] for entry in entries], dtype=torch.int64)
        truth = {"boxes": torch.from_numpy(corners), "labels": labels}
        if self.coco is not None:
            masks = [self.coco.outline(entry, size) for entry in entries]
            truth["masks"] = torch.from_numpy(np.array(masks, dtype=np.uint8).reshape(-1, *size))
        return truth


def mirrored(image: Tensor, truth: Truth) -> tuple[Tensor, Truth]:
    """An image (3, H, W) and its objects, left and right swapped."""
    width = image.shape[2]
    boxes = truth["boxes"][:, [2, 1, 0, 3]] * torch.tensor([-1, 1, -1, 1]) + torch.tensor([width, 0, width, 0])
    masks = {"masks": truth["masks"].flip(2)} if "masks" in truth else {}
    return image.flip(2), {**truth, "boxes": boxes, **masks}
