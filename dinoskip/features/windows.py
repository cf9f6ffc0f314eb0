"""Features that are never stored: computed a window of images at a time, read, and let go of.

A window is some of the batches that an export of all images would have, one after another, so that every forward pass
is that of the export and the features are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.features.export_plan import ExportPlan, ExportSettings, ImageSet, plan_export
from dinoskip.features.forward import ForwardPasses, decoding_threads
from dinoskip.features.store import FeaturePart, FeatureSet, FeatureStore
from dinoskip.runtime.console import Progress

if TYPE_CHECKING:
    from dinoskip.models import Backbone


class FeatureWindows(FeatureSet):
    """Features of a data set at several blocks, computed as they are read.

    ``limit`` is the most bytes of a window's features, all of them in memory; a window has one batch at least. Errors
    are those of :func:`dinoskip.features.export`.
    """

    def __init__(
        self,
        backbone: Backbone,
        dataset: ImageSet,
        settings: ExportSettings,
        *,
        limit: int,
        workers: int = 0,
    ) -> None:
        self.plan = plan_export(backbone, dataset, settings)
        super().__init__(Path(backbone.spec), self.plan.manifest)
        self.backbone, self.dataset, self.settings = backbone, dataset, settings
        self.limit, self.workers = limit, workers

    def of_equal_grids(self) -> tuple[FeatureSet, ...]:
        """Split as :meth:`FeatureSet.of_equal_grids` does; each part is a pass of the network."""
        parts = [part for part in self.backbone.parts if set(part.numbers) & set(self.blocks)]
        if len(parts) == 1:
            return (self,)
        blocks = [[block for block in self.blocks if block in part.numbers] for part in parts]
        return tuple(
            FeatureWindows(
                part, self.dataset, replace(self.settings, blocks=numbers), limit=self.limit, workers=self.workers
            )
            for part, numbers in zip(parts, blocks, strict=True)
        )

    def windows(self, done: NDArray[np.bool_] | None = None) -> list[list[int]]:
        """Numbers of the batches of each window; batches whose images are all ``done`` are in none."""
        windows: list[list[int]] = []
        room = 0
        for number, batch in enumerate(self.plan.batches):
            if done is not None and done[batch].all():
                continue
            size = sum(self.plan.image_bytes(image) for image in batch)
            if not windows or size > room:
                windows.append([])
                room = self.limit
            windows[-1].append(number)
            room -= size
        return windows

    def parts(self, done: NDArray[np.bool_] | None = None) -> Iterator[FeatureStore]:
        """See :meth:`FeatureSet.parts`: the windows, one after another."""
        for window in self.windows(done):
            store = self._computed(window)
            yield store
            store.drop()

    def shares(self, images: int) -> list[FeaturePart]:
        """Divide all images into parts of whole batches: until they are ``images``, or a window is full."""
        shares: list[list[int]] = []
        count, room = images, 0
        for number, batch in enumerate(self.plan.batches):
            size = sum(self.plan.image_bytes(image) for image in batch)
            if count >= images or size > room:
                shares.append([])
                count, room = 0, self.limit
            shares[-1].append(number)
            count, room = count + len(batch), room - size
        return [
            FeaturePart(
                [image for number in share for image in self.plan.batches[number]], partial(self._computed, share)
            )
            for share in shares
        ]

    def _computed(self, window: Sequence[int]) -> FeatureStore:
        part = _part(self.plan, window)
        arrays = _Arrays(part)
        with Progress.hidden():
            passes = ForwardPasses(self.backbone, part, arrays, decoding_threads(self.workers))
            passes.run(range(len(part.batches)), lambda count: None)
        return FeatureStore.of_arrays(self.path, part.manifest, arrays.arrays)


def _part(plan: ExportPlan, window: Sequence[int]) -> ExportPlan:
    """The plan of some of the batches alone: their images, one batch after another, numbered from 0."""
    images = [image for number in window for image in plan.batches[number]]
    numbers = iter(range(len(images)))
    manifest = {
        **plan.manifest,
        "ids": [plan.manifest["ids"][i] for i in images],
        "image_sizes": [plan.manifest["image_sizes"][i] for i in images],
    }
    starts = None
    if plan.starts is not None:
        manifest["grids"] = [plan.manifest["grids"][i] for i in images]
        starts = {
            stride: np.concatenate([[0], np.cumsum(np.diff(first_rows)[images])])
            for stride, first_rows in plan.starts.items()
        }
    arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for name, (dtype, shape) in plan.arrays.items():
        rows = len(images) if starts is None or name not in plan.strides else int(starts[plan.strides[name]][-1])
        arrays[name] = (dtype, (rows, *shape[1:]))
    return replace(
        plan,
        manifest=manifest,
        paths=[plan.paths[i] for i in images],
        batches=[[next(numbers) for _ in plan.batches[number]] for number in window],
        sizes=[plan.sizes[i] for i in images],
        starts=starts,
        arrays=arrays,
    )


class _Arrays:
    """Takes rows into memory (:class:`dinoskip.features.forward.RowWriter`)."""

    def __init__(self, plan: ExportPlan) -> None:
        self.arrays = {name: np.empty(shape, dtype) for name, (dtype, shape) in plan.arrays.items()}

    def write(self, name: str, row: int, values: NDArray[Any]) -> None:
        into = self.arrays[name]
        rows = values.reshape(-1, *into.shape[1:])
        into[row : row + len(rows)] = rows.view(into.dtype)

    def finish(self, batch: int) -> None:
        """Nothing to do: rows are where they are read."""

    def complete(self) -> None:
        """Windows need no completion: nothing is stored."""
