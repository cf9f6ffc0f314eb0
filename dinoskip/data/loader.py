"""Base of every training loader: order, micro-batches, damaged images. A :class:`BatchTransform` defines a sample.

The permutation of an epoch depends on (seed, epoch), the draws of a :class:`BatchTransform` for an image on (seed,
epoch, its number). Hence the number of workers, of ranks or of micro-batches, a resumed run or the cache change nothing
in any image. Ranks take consecutive slices of one global batch, micro-batches consecutive slices of a rank's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dinoskip.data.shards import Source
from dinoskip.data.workers import WORKER_TIMEOUT_S, WorkerLoader, is_worker_death
from dinoskip.errors import ConfigError, DataError, named
from dinoskip.runtime.console import log
from dinoskip.runtime.randomness import derive, numpy_rng

BAD_SHARE = 0.01
"""Of a set's images that may be bad: more, and the set is another one. One image may be in any set."""
CACHE_BYTES = 1 << 30  # of decoded images that one process keeps; workers would each keep their own
# An image and 19 drawn in its place: where BAD_SHARE of the set is bad, all of those are with a chance of 1e-38.
SUBSTITUTES = 20

ReadImage = Callable[[int], tuple[int, np.ndarray]]


class BatchTransform(Protocol):
    """Transform of images into a micro-batch (in a worker), and of that into views (in the process that trains).

    A transform is copied into every worker, so it holds plain values. All it draws must derive from its seed, the epoch
    and the image's number, never from the place in the batch or from global generators.
    """

    def collate(self, epoch: int, indices: np.ndarray, read: ReadImage) -> dict[str, Tensor]:
        """Return the tensors of a micro-batch.

        Args:
            epoch: number of the epoch, from 0.
            indices: numbers of its images, int64 (B,): what random draws derive from.
            read: ``read(index)`` gives (number, uint8 (H, W, 3)): the image, or if it is damaged its substitute;
                ``number`` is the one that was read, so it is the one to look a label up by.
        """
        ...

    def views(self, data: dict[str, Tensor], device: torch.device) -> list[Tensor]:
        """Move what :meth:`collate` returned to ``device`` and finish it there: float images, ImageNet-normalised."""
        ...


@dataclass(frozen=True)
class Batch:
    """A micro-batch, before what is left to the device.

    ``ids`` int64 (B,): numbers of the images in the set's order. ``data``: the tensors its transform made, on the CPU.
    ``bad``: the images found unreadable in it, as (name, reason).
    """

    ids: Tensor
    data: dict[str, Tensor]
    bad: tuple[tuple[str, str], ...] = ()

    def pin_memory(self) -> Batch:
        """Return it in page-locked memory; called by torch's DataLoader."""
        return replace(self, data={name: tensor.pin_memory() for name, tensor in self.data.items()})


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    return numpy_rng(seed, "order", epoch).permutation(count)


def candidates(seed: int, index: int, count: int) -> Iterator[int]:
    """Yield what stands for image ``index`` of ``count``: itself, and if it is bad, always the same others in turn."""
    yield index
    for attempt in range(SUBSTITUTES - 1):
        yield derive(seed, "substitute", index, attempt) % count


@dataclass(frozen=True)
class BatchSplit:
    """Division of a global batch of ``batch_size`` images into slices for ``world_size`` ranks.

    The slice of ``rank`` is divided into ``accumulate`` micro-batches.
    """

    batch_size: int
    rank: int = 0
    world_size: int = 1
    accumulate: int = 1

    def __post_init__(self) -> None:
        """:class:`ConfigError` for a batch that cannot be shared equally."""
        parts = self.world_size * self.accumulate
        if self.batch_size < 1 or self.batch_size % parts:
            below = max(1, self.batch_size // parts) * parts
            by = f"{self.world_size} processes" + (
                f" in {self.accumulate} micro-batches each" if self.accumulate > 1 else ""
            )
            raise ConfigError(
                f"batch_size {self.batch_size} cannot be shared equally by {by}", f"{below} or {below + parts} can"
            )

    @property
    def micro(self) -> int:
        """Images in a micro-batch of one rank."""
        return self.batch_size // (self.world_size * self.accumulate)

    def start(self, step: int, part: int) -> int:
        """Return the position in the epoch's order at which micro-batch ``part`` of this rank's ``step`` begins."""
        return step * self.batch_size + (self.rank * self.accumulate + part) * self.micro


class _Batches(Dataset):
    """Map-style dataset whose items are whole micro-batches, asked for by (epoch, step, part)."""

    def __init__(
        self, images: Source, transform: BatchTransform, split: BatchSplit, *, seed: int, min_side: int, cache: int
    ) -> None:
        self.images, self.transform, self.split = images, transform, split
        self.seed, self.min_side = seed, min_side
        self._cache: dict[int, np.ndarray] = {}
        self._cache_left = cache  # bytes

    def indices(self, epoch: int, step: int, part: int = 0, parts: int = 1) -> np.ndarray:
        """Numbers of the images of ``parts`` micro-batches of a step from ``part`` on, int64 (B,)."""
        start = self.split.start(step, part)
        return _permutation(self.seed, epoch, len(self.images))[start : start + parts * self.split.micro]

    def __getitem__(self, position: tuple[int, int, int]) -> Batch | DataError:
        try:
            return self._batch(*position)
        except DataError as error:  # an exception would arrive from a worker as a traceback in a message
            return error

    def _batch(self, epoch: int, step: int, part: int) -> Batch:
        indices = self.indices(epoch, step, part)
        bad: dict[str, str] = {}
        read = [int(indices[0])]  # numbers of the images, as they are read
        with named(lambda: self.images.where(read[-1]), "its augmentation failed"):
            data = self.transform.collate(epoch, indices, lambda index: self._image(index, bad, read))
        return Batch(torch.from_numpy(indices.astype(np.int64)), data, tuple(bad.items()))

    def _image(self, index: int, bad: dict[str, str], read: list[int]) -> tuple[int, np.ndarray]:
        """Return image ``index`` and its number, or if it cannot be read, always the same other one's."""
        for candidate in candidates(self.seed, index, len(self.images)):
            try:
                image = self._read(candidate)
            except DataError as error:
                bad[self.images.names[candidate]] = str(error)
                continue
            if min(image.shape[:2]) < self.min_side:
                bad[self.images.names[candidate]] = too_small(self.images.where(candidate), image.shape, self.min_side)
                continue
            read.append(candidate)
            return candidate, image
        raise DataError(
            f"{self.images.where(index)}: unreadable, as are {SUBSTITUTES - 1} images drawn in its place; the last: "
            f"{bad[self.images.names[candidate]]}"
        )

    def _read(self, index: int) -> np.ndarray:
        cached = self._cache.get(index)
        if cached is not None:
            return cached
        image = self.images.read(index)
        if image.nbytes <= self._cache_left:
            self._cache_left -= image.nbytes
            self._cache[index] = image
        return image


def too_small(where: str, shape: tuple[int, ...], min_side: int) -> str:
    """Say that an image of (height, width, ...) is smaller than a patch."""
    return f"{where}: image of {shape[1]}×{shape[0]} pixels is smaller than a patch ({min_side})"


class BatchLoader:
    """Micro-batches for one rank, made by a :class:`BatchTransform`.

    Args:
        images: the images to train on.
        transform: how they become batches and views.
        split: how a global batch is cut, and which part is this rank's.
        seed: what the order derives from.
        workers: processes that read images; 0 does it in this process.
        device: where views are made; for a GPU batches are page-locked.
        min_side: an image with a shorter side (in pixels) counts as one that cannot be read: the patch size.
        cache: keep decoded images in memory: ``True`` all, ``False`` none, ``"auto"`` up to 1 GiB without workers.

    ``bad`` lists the images that could not be read so far, name → reason; each was replaced, always by the same other
    image. Raises :class:`DataError` once they are more than one and more than 1 % of the set, for a set smaller than a
    batch, and a worker that died or hangs.
    """

    batch_setting = "batch_size"
    """Name of the batch size in errors."""

    def __init__(
        self,
        images: Source,
        transform: BatchTransform,
        split: BatchSplit,
        *,
        seed: int,
        workers: int = 0,
        device: torch.device | str = "cpu",
        min_side: int = 16,
        cache: bool | Literal["auto"] = "auto",
    ) -> None:
        if len(images) < split.batch_size:
            raise DataError(
                f"{images.root}: {len(images)} images are fewer than one batch of {split.batch_size}",
                f"more images, or {self.batch_setting}={len(images)} or less",
            )
        limit = {True: 1 << 62, False: 0, "auto": 0 if workers else CACHE_BYTES}[cache]
        self.images, self.device = images, torch.device(device)
        self.bad: dict[str, str] = {}
        self.steps_per_epoch = len(images) // split.batch_size
        self._workers = workers
        self.patience = float(WORKER_TIMEOUT_S if workers else 0)  # seconds after which a worker is believed to hang
        self._batches = _Batches(images, transform, split, seed=seed, min_side=min_side, cache=limit)
        self._positions: list[tuple[int, int, int]] = []  # of an epoch: (epoch, step, part)
        self._came = 0  # micro-batches of this epoch so far
        self._loader = WorkerLoader(self._batches, self._positions, workers, pin=self.device.type == "cuda")

    def indices(self, epoch: int, step: int) -> np.ndarray:
        """Numbers of the images in this rank's part of a step, int64 (B,), without loading them."""
        return self._batches.indices(epoch, step, 0, self._batches.split.accumulate)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Yield the micro-batches of an epoch from ``start_step`` on, ``accumulate`` a step, in order.

        The last, incomplete global batch is dropped.
        """
        parts = range(self._batches.split.accumulate)
        steps = range(start_step, self.steps_per_epoch)
        self._positions[:] = [(epoch, step, part) for step in steps for part in parts]
        self._came = 0
        with self.explained():
            for item in self._loader:
                if isinstance(item, DataError):
                    raise item
                self.note(item.bad)
                self._came += 1
                yield item

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what torch raises when a worker dies into a :class:`DataError`: it may do so anywhere, from a signal."""
        try:
            yield
        except (RuntimeError, ConnectionError, EOFError) as error:
            if not self._workers or not is_worker_death(error):
                raise
            raise self._loader.failure(error, self._came, self._due) from error

    def _due(self) -> list[str]:
        """The first images of the batch that is waited for."""
        epoch, step, part = self._positions[min(self._came, len(self._positions) - 1)]
        return [self.images.names[i] for i in self._batches.indices(epoch, step, part)[:8]]

    def views(self, batch: Batch) -> list[Tensor]:
        """Move a micro-batch to the loader's device and finish it there: float images, ImageNet-normalised."""
        return self._batches.transform.views(batch.data, self.device)

    def note(self, bad: tuple[tuple[str, str], ...]) -> None:
        """List images that could not be read, (name, reason); :class:`DataError` for more than one and than 1 %."""
        for name, reason in bad:
            if name not in self.bad:
                log.warning("replaced by another image: %s", reason)
                self.bad[name] = reason
        if bad and len(self.bad) > max(1, BAD_SHARE * len(self.images)):
            names = ", ".join(sorted(self.bad)[:10])
            raise DataError(
                f"{self.images.root}: {len(self.bad)} of {len(self.images)} images cannot be read or are smaller "
                f"than a patch, more than {BAD_SHARE:.0%}: {names}"
            )

    def close(self) -> None:
        """End the processes that read images; the loader is of no use afterwards."""
        self._loader.close()
