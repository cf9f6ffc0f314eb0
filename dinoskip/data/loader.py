"""The training loader: what a batch holds is a pure function of seed, epoch and step.

The permutation of an epoch depends on (seed, epoch), the crops and augmentation of an image on (seed, epoch, its
number). Hence the number of workers and of ranks, a resumed run or the cache change nothing in any image. Ranks take
consecutive slices of one global batch.
"""

from __future__ import annotations

import atexit
import signal
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dinoskip.console import log
from dinoskip.data.augment import PARAMETERS, AugmentConfig, augment, view_parameters
from dinoskip.data.folders import ImageFolder
from dinoskip.data.multicrop import CropConfig, crop_boxes, write_crops
from dinoskip.errors import ConfigError, DataError
from dinoskip.images import read_image
from dinoskip.randomness import derive, numpy_rng

BAD_SHARE = 0.01
CACHE_BYTES = 1 << 30
SUBSTITUTES = 20
WORKER_TIMEOUT_S = 600
GRACE_S = 30


@dataclass(frozen=True)
class Batch:
    """One rank's part of a global batch, before augmentation.

    ``ids`` int64 (B,): numbers of the images in the folder's order. ``views``: [global (2·B, 3, S, S), local
    (L·B, 3, s, s)], uint8, view-major: all first global crops, then all second.
    ``parameters``: the augmentation vectors in the same order, float32 (2·B, P) and (L·B, P), on the CPU. ``bad``: the
    images found unreadable in it, as (name, reason).
    """

    ids: Tensor
    views: list[Tensor]
    parameters: list[Tensor]
    bad: tuple[tuple[str, str], ...] = ()

    def pin_memory(self) -> Batch:
        """Return it with its crops in page-locked memory; called by torch's DataLoader."""
        return Batch(self.ids, [view.pin_memory() for view in self.views], self.parameters, self.bad)


def make_views(batch: Batch, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Move the uint8 crops to ``device`` and augment them there.

    Returns float32 (2·B, 3, S, S) and (L·B, 3, s, s), view-major, ImageNet-normalised.
    """
    first, second = (
        augment(crops.to(device, non_blocking=True), parameters)
        for crops, parameters in zip(batch.views, batch.parameters, strict=True)
    )
    return first, second


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    return numpy_rng(seed, "order", epoch).permutation(count)


class _Batches(Dataset):
    """Map-style dataset whose items are whole batches, asked for by (epoch, step)."""

    def __init__(
        self,
        images: ImageFolder,
        crops: CropConfig,
        config: AugmentConfig,
        *,
        seed: int,
        batch_size: int,
        rank: int,
        world: int,
        min_side: int,
        cache_bytes: int,
    ) -> None:
        self.images, self.crops, self.config = images, crops, config
        self.seed, self.batch_size, self.rank, self.world = seed, batch_size, rank, world
        self.min_side = min_side
        self._cache: dict[int, np.ndarray] = {}
        self._cache_left = cache_bytes

    def indices(self, epoch: int, step: int) -> np.ndarray:
        """Numbers of the images in this rank's part of a step, int64 (B,)."""
        local = self.batch_size // self.world
        start = step * self.batch_size + self.rank * local
        return _permutation(self.seed, epoch, len(self.images))[start : start + local]

    def __getitem__(self, position: tuple[int, int]) -> Batch | DataError:
        try:
            return self._batch(*position)
        except DataError as error:  # an exception would arrive from a worker as a traceback in a message
            return error

    def _batch(self, epoch: int, step: int) -> Batch:
        indices = self.indices(epoch, step)
        shape, count = self.crops, len(indices)
        views = [
            torch.empty(number, count, 3, size, size, dtype=torch.uint8)
            for number, size in ((shape.num_global, shape.global_size), (shape.num_local, shape.local_size))
        ]
        vectors = np.empty((shape.num_views, count, PARAMETERS), dtype=np.float32)
        bad: dict[str, str] = {}
        for column, index in enumerate(indices.tolist()):
            image = self._image(index, bad)
            height, width = image.shape[:2]
            boxes = crop_boxes(shape, height, width, self.seed, epoch, index)
            write_crops(image, boxes, views[0][:, column], views[1][:, column])
            vectors[:, column] = view_parameters(self.config, shape.num_local, self.seed, epoch, index)
        parts = np.split(vectors, [shape.num_global])
        return Batch(
            ids=torch.from_numpy(indices.astype(np.int64)),
            views=[view.flatten(0, 1) for view in views],
            parameters=[torch.from_numpy(part.reshape(-1, PARAMETERS)) for part in parts],
            bad=tuple(bad.items()),
        )

    def _image(self, index: int, bad: dict[str, str]) -> np.ndarray:
        """Return image ``index``, or if it cannot be read, always the same other one."""
        candidate = index
        for attempt in range(SUBSTITUTES):
            try:
                image = self._read(candidate)
            except DataError as error:
                bad[self.images.names[candidate]] = str(error)
                candidate = derive(self.seed, "substitute", index, attempt) % len(self.images)
                continue
            if min(image.shape[:2]) < self.min_side:
                raise DataError(
                    f"{self.images.path(candidate)}: image of {image.shape[1]}×{image.shape[0]} pixels is smaller than "
                    f"a patch ({self.min_side})",
                    "take it out of the folder",
                )
            return image
        raise DataError(
            f"{self.images.path(index)}: unreadable, as are the {SUBSTITUTES - 1} images drawn in its place"
        )

    def _read(self, index: int) -> np.ndarray:
        cached = self._cache.get(index)
        if cached is not None:
            return cached
        image = read_image(self.images.path(index))
        if image.nbytes <= self._cache_left:
            self._cache_left -= image.nbytes
            self._cache[index] = image
        return image


class _Steps:
    """The sampler: (epoch, step) pairs, set anew for every epoch while the workers live on."""

    def __init__(self) -> None:
        self.positions: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.positions)

    def __len__(self) -> int:
        return len(self.positions)


def _identity(item: Any) -> Any:
    return item


def _start_worker(_: int) -> None:
    """Leave Ctrl-C and preemption to the parent, which saves its state first; an orphan ends after a grace time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE_S))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


class TrainLoader:
    """Batches of uint8 multi-crops for one rank.

    Args:
        images: the images to train on.
        crops: sizes and scales of the crops.
        augment: the augmentation, drawn here and applied by :func:`make_views`.
        seed: what all order, crops and augmentation derive from.
        batch_size: images in a global batch; must be a multiple of ``world_size``.
        rank: which slice of it is ours.
        world_size: how many slices there are.
        workers: processes that decode and crop; 0 does it in this process.
        device: where the batches will go; for a GPU they are page-locked.
        min_side: an image with a shorter side (in pixels) is refused: the patch size.
        cache: keep decoded images in memory: ``True`` all, ``False`` none, ``"auto"`` up to 1 GiB without workers.

    ``bad`` lists the images that could not be read so far, name → reason; each was replaced, always by the same other
    image. Raises :class:`DataError` once they are more than 1 % of the set, for an image smaller than ``min_side``,
    a set smaller than a batch, and a worker that died or hangs; :class:`ConfigError` for an indivisible batch.
    """

    def __init__(
        self,
        images: ImageFolder,
        crops: CropConfig,
        augment: AugmentConfig,
        *,
        seed: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
        device: torch.device | str = "cpu",
        min_side: int = 16,
        cache: bool | Literal["auto"] = "auto",
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            near = max(1, round(batch_size / world_size)) * world_size
            raise ConfigError(
                f"batch_size {batch_size} cannot be shared equally by {world_size} processes", f"{near} can"
            )
        if len(images) < batch_size:
            raise DataError(f"{images.root}: {len(images)} images are fewer than one batch of {batch_size}")
        limit = {True: 1 << 62, False: 0, "auto": 0 if workers else CACHE_BYTES}[cache]
        self.images = images
        self.bad: dict[str, str] = {}
        self.steps_per_epoch = len(images) // batch_size
        self._workers = workers
        self._batches = _Batches(
            images, crops, augment, seed=seed, batch_size=batch_size, rank=rank, world=world_size,
            min_side=min_side, cache_bytes=limit,
        )  # fmt: skip
        self._steps = _Steps()
        self._loader: DataLoader = DataLoader(
            self._batches,
            batch_size=None,
            sampler=self._steps,
            num_workers=workers,
            collate_fn=_identity,
            pin_memory=torch.device(device).type == "cuda",
            timeout=WORKER_TIMEOUT_S if workers else 0,
            worker_init_fn=_start_worker,
            persistent_workers=workers > 0,
            generator=torch.Generator(),  # else it would draw from the global one
        )
        if workers:  # runs before multiprocessing's own exit handler, which would wait for workers that ignore SIGTERM
            atexit.register(_close, weakref.ref(self))

    def indices(self, epoch: int, step: int) -> np.ndarray:
        """Numbers of the images in this rank's part of a step, int64 (B,), without loading them."""
        return self._batches.indices(epoch, step)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from ``start_step`` on; the last, incomplete one is dropped."""
        self._steps.positions = [(epoch, step) for step in range(start_step, self.steps_per_epoch)]
        try:
            for item in self._loader:
                if isinstance(item, DataError):
                    raise item
                self._note(item)
                yield item
        except (RuntimeError, ConnectionError, EOFError) as error:
            if not self._workers or not _is_worker_death(error):
                raise
            raise DataError(
                f"a data worker died or hangs: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
                "often memory ran out: use fewer workers",
            ) from error

    def _note(self, batch: Batch) -> None:
        for name, reason in batch.bad:
            if name not in self.bad:
                log.warning("replaced by another image: %s", reason)
                self.bad[name] = reason
        if batch.bad and len(self.bad) > BAD_SHARE * len(self.images):
            names = ", ".join(sorted(self.bad)[:10])
            raise DataError(
                f"{self.images.root}: {len(self.bad)} of {len(self.images)} images cannot be read, more than "
                f"{BAD_SHARE:.0%}: {names}"
            )

    def close(self) -> None:
        """End the worker processes."""
        iterator, self._loader._iterator = self._loader._iterator, None
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


def _close(loader: weakref.ref[TrainLoader]) -> None:
    alive = loader()
    if alive is not None:
        alive.close()


def _is_worker_death(error: BaseException) -> bool:
    return not isinstance(error, RuntimeError) or "DataLoader" in str(error)
