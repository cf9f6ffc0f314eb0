"""A teacher whose features were stored beforehand: each crop's are cut from the map of its whole image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import roi_align

from dinoskip.data.shards import Source
from dinoskip.errors import ConfigError, DataError
from dinoskip.features.store import FeatureStore
from dinoskip_objectives.distill_config import TeacherConfig
from dinoskip_objectives.teachers import TeacherFeatures, Teaching, block_numbers


def open_store(config: TeacherConfig) -> FeatureStore:
    """The store of a teacher; :class:`ConfigError` where it does not hold what the settings ask for."""
    where = f"teachers: {config.store}"
    store = FeatureStore.open(str(config.store))
    if store.transform.mode not in {"square", "rounded"}:
        raise ConfigError(
            f"{where}: images are {store.transform.mode}", "crops are cut from maps of whole images: square or rounded"
        )
    if store.norm != config.norm:
        raise ConfigError(f"{where}: features of norm {store.norm}, settings say {config.norm}")
    if config.cls is not None and not store.manifest["cls"]:
        raise ConfigError(f"{where} has no CLS token", "take cls: null")
    return store


@dataclass(frozen=True)
class StoredCrops:
    """The stored features of the crops of a micro-batch, teacher by teacher; copied into every worker.

    A cell of the crop's ``grid`` × ``grid`` is the mean of the map around it (``roi_align`` of torchvision, as many
    points as the cell has stored tokens), mirrored where the crop was. The CLS token is the whole image's.
    """

    configs: tuple[TeacherConfig, ...]
    grid: int

    @cached_property
    def stores(self) -> list[FeatureStore]:
        """The stores, opened in the process that reads them."""
        return [open_store(config) for config in self.configs]

    def __call__(self, epoch: int, indices: np.ndarray, boxes: np.ndarray, flips: np.ndarray) -> list[Tensor]:
        """Patches float32 (B, grid², D), then CLS tokens (B, D) where they are asked for, of each teacher."""
        features = []
        for config, store in zip(self.configs, self.stores, strict=True):
            blocks = block_numbers(config.blocks, store.depth, str(config.store))
            maps = [self._crop(store, blocks, *crop) for crop in zip(indices, boxes[:, 0], flips[:, 0], strict=True)]
            features.append(torch.stack(maps))
            if config.cls is not None:
                features.append(torch.stack([_cls(store, blocks, int(index)) for index in indices]))
        return features

    def _crop(
        self, store: FeatureStore, blocks: Sequence[int], index: np.int64, box: np.ndarray, flip: np.bool_
    ) -> Tensor:
        """Features (grid², D) of a box (top, left, height, width), in pixels of the image."""
        tokens = torch.cat([torch.from_numpy(store.tokens(block, int(index))) for block in blocks], dim=-1)
        (rows, columns), (height, width) = store.grid(int(index)), store.manifest["image_sizes"][int(index)]
        top, left, high, wide = (float(side) for side in box)
        corners = [left / width * columns, top / height * rows]
        corners += [(left + wide) / width * columns, (top + high) / height * rows]
        plane = tokens.T.reshape(1, -1, rows, columns)
        cut: Tensor = roi_align(plane, [torch.tensor([corners])], self.grid, aligned=True)[0]
        return (cut.flip(-1) if flip else cut).flatten(1).T.contiguous()


def _cls(store: FeatureStore, blocks: Sequence[int], index: int) -> Tensor:
    tokens = [store.cls(block, slice(index, index + 1)) for block in blocks]
    return torch.cat([torch.from_numpy(token[0]) for token in tokens if token is not None])


class StoredTeacher(Teaching):
    """Teacher whose targets are read from a feature store of the training images.

    :class:`dinoskip_objectives.teachers.Teacher` computes them by a network instead.
    """

    def __init__(self, config: TeacherConfig, grid: int) -> None:
        self.config, self.grid = config, grid
        self.store = open_store(config)
        self.blocks = block_numbers(config.blocks, self.store.depth, str(config.store))
        self.dim = self.store.dim * len(self.blocks)

    def features(self, images: Tensor, stored: Iterator[Tensor]) -> TeacherFeatures:
        """The next of a micro-batch's tensors, which :class:`StoredCrops` has made."""
        patches = next(stored)
        return TeacherFeatures(patches, next(stored) if self.config.cls is not None else None, (self.grid, self.grid))

    def check(self, images: Source, rows: Sequence[int]) -> None:
        """Raise :class:`DataError` unless the store is of just these images."""
        if tuple(images.names) != self.store.ids:
            raise DataError(
                f"teachers: {self.config.store}: features of {len(self.store.ids)} images, which are not the "
                f"{len(images)} training images in their order",
                "export them of the same data set and split",
            )
        for row in rows:
            if images.size(row) != tuple(self.store.manifest["image_sizes"][row]):
                raise DataError(f"teachers: {self.config.store}: {images.where(row)} had another size when exported")

    def sample(self, rows: Sequence[int], crops: Callable[[], Tensor]) -> list[TeacherFeatures]:
        """Stored features of whole images, each of its own size."""
        return [
            TeacherFeatures(
                torch.cat([torch.from_numpy(self.store.tokens(block, row)) for block in self.blocks], dim=-1)[None],
                _cls(self.store, self.blocks, row)[None] if self.config.cls is not None else None,
                self.store.grid(row),
            )
            for row in rows
        ]
