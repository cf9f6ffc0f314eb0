"""The passes of an export: decode ahead, compute, bring rows to the host, check and write them.

On a GPU all of this overlaps: images are decoded in threads two batches ahead and travel as bytes from pinned memory;
features are converted and checked on the device and leave it on a stream of their own, while the next batch is
computed; another thread waits for them and gives them to the writer. On a CPU, which has nothing to wait for, one
thing is done after another, but for the writer's threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dinoskip.errors import DataError
from dinoskip.features.export_plan import ExportPlan
from dinoskip.features.store import cls_name, tokens_name
from dinoskip.features.transform import Normalise, load_pixels
from dinoskip.runtime.cores import available_cores

if TYPE_CHECKING:
    from dinoskip.models import Backbone

GPU_AHEAD = 2  # batches decoded before, and not yet written after, the one that a GPU computes
# How each stored dtype is computed, viewed as bits, and the bits of its exponent: all of them set in inf and NaN alone.
_TORCH = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_BITS = {"float16": (torch.int16, 0x7C00), "bfloat16": (torch.int16, 0x7F80), "float32": (torch.int32, 0x7F800000)}


@dataclass(frozen=True)
class _Ready:
    """One batch's rows on their way to the host: complete after the CUDA event ``arrived``, None on a CPU."""

    number: int
    rows: dict[str, Tensor]  # array -> (B, ...) in the stored dtype, contiguous
    exponents: Tensor  # of each array, what its values have at most in the bits of the exponent
    arrived: Any


class _NotFinite(Exception):
    """An array's row of a batch that does not fit the stored dtype."""

    def __init__(self, number: int, name: str, row: int) -> None:
        super().__init__(number, name, row)
        self.number, self.name, self.row = number, name, row


def decoding_threads(workers: int) -> int:
    """Decoding threads: as asked, else this process's share of the cores that it may use, at most 16."""
    cores = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return workers or max(1, min(16, cores))


class RowWriter(Protocol):
    """Receiver of the rows: :class:`dinoskip.features.writer.StoreWriter`, or arrays in memory."""

    def write(self, name: str, row: int, values: NDArray[Any]) -> None:
        """Take ``values``, contiguous, as stored and not changed later, for rows ``row`` and following of an array."""
        ...

    def finish(self, batch: int) -> None:
        """Hear that all rows of ``batch`` have been given."""
        ...

    def complete(self) -> None:
        """Make all that was written safe."""
        ...


class ForwardPasses:
    """Computes and writes batches of ``plan`` with ``backbone``; ``threads`` decode."""

    def __init__(self, backbone: Backbone, plan: ExportPlan, writer: RowWriter, threads: int) -> None:
        self.backbone, self.plan, self.writer, self.threads = backbone, plan, writer, threads
        self._to_input = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)
        gpu = backbone.device.type == "cuda"
        self._leaving: Any = torch.cuda.Stream(backbone.device) if gpu else None  # type: ignore[no-untyped-call]
        self._ahead = GPU_AHEAD if gpu else 0

    def run(self, todo: Sequence[int], advance: Callable[[int], None]) -> None:
        """Do the batches ``todo``; ``advance`` is told of images done. All of it is safe in the end.

        Raises :class:`DataError` naming an image that cannot be read or whose features are not finite as stored.
        """
        written: deque[tuple[int, Future[None]]] = deque()
        saving = ThreadPoolExecutor(1, thread_name_prefix="write")
        try:
            with torch.inference_mode():
                for number, images in self._decoded(todo):
                    written.append((number, saving.submit(self._save, self._computed(number, images))))
                    while len(written) > self._ahead:
                        self._settle(*written.popleft(), advance)
                while written:
                    self._settle(*written.popleft(), advance)
        except _NotFinite as failure:
            raise self._explained(failure) from None
        finally:
            saving.shutdown(cancel_futures=True)
        self.writer.complete()

    def _settle(self, number: int, saved: Future[None], advance: Callable[[int], None]) -> None:
        saved.result()
        advance(len(self.plan.batches[number]))

    def _decoded(self, todo: Sequence[int]) -> Iterator[tuple[int, list[Tensor]]]:
        """Yield (batch number, its uint8 images)."""
        ahead: deque[tuple[int, list[Future[Tensor]]]] = deque()
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="decode")
        try:
            for number in [*todo, *[None] * self._ahead]:
                if number is not None:
                    ahead.append((number, [pool.submit(self._load, i) for i in self.plan.batches[number]]))
                if ahead and (len(ahead) > self._ahead or number is None):
                    first, waiting = ahead.popleft()
                    yield first, [future.result() for future in waiting]
        finally:
            pool.shutdown(cancel_futures=True)

    def _load(self, image: int) -> Tensor:
        return load_pixels(self.plan.transform, self.plan.paths[image], self.plan.size_multiple)

    def _features(self, number: int, images: Sequence[Tensor]) -> dict[str, Tensor]:
        """Name of each array -> this batch's part of it, (B, ...) as the backbone gives it."""
        size = self.plan.sizes[self.plan.batches[number][0]]
        batch = self._to_input(images, *size)
        arrays = self._passed(batch)
        if self.plan.transform.flip:
            mirrored_arrays = self._passed(batch.flip(-1))
            for name, part in mirrored_arrays.items():
                stride = self.plan.strides.get(name)
                mirrored = part if stride is None else _mirrored(part, (size[0] // stride, size[1] // stride))
                arrays[name] = (arrays[name] + mirrored) / 2
        return arrays

    def _passed(self, batch: Tensor) -> dict[str, Tensor]:
        """Name of each array -> its part for input images (B, 3, H, W)."""
        manifest = self.plan.manifest
        facet: Any = manifest["facet"]
        read: Any = self.backbone.layers(batch, manifest["blocks"], facet, manifest["norm"])
        arrays: dict[str, Tensor] = {}
        by_facet = {"": read} if isinstance(facet, str) else read
        for prefix, block in product(by_facet, manifest["blocks"]):
            features = by_facet[prefix][block]
            if manifest["tokens"]:
                arrays[tokens_name(block, prefix)] = features.tokens
            if manifest["cls"]:
                assert features.cls is not None  # the plan asked for it because the backbone has a class token
                arrays[cls_name(block, prefix)] = features.cls
        return arrays

    def _computed(self, number: int, images: Sequence[Tensor]) -> _Ready:
        """Compute a batch, as far as this thread has to wait for it."""
        dtype = _TORCH[self.plan.manifest["dtype"]]
        rows = _converted(self._features(number, images), dtype)
        exponents = _exponents(rows, *_BITS[self.plan.manifest["dtype"]])
        if self._leaving is None:
            return _Ready(number, rows, exponents, None)
        host: dict[str, Tensor] = {}
        arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._leaving.wait_stream(torch.cuda.current_stream(self.backbone.device))
        with torch.cuda.stream(self._leaving):
            for name, part in rows.items():
                host[name] = torch.empty(part.shape, dtype=dtype, pin_memory=True).copy_(part, non_blocking=True)
                part.record_stream(self._leaving)  # its memory is not given to others before the copy is made
            largest = torch.empty(exponents.shape, dtype=exponents.dtype, pin_memory=True)
            largest.copy_(exponents, non_blocking=True)
            exponents.record_stream(self._leaving)
            arrived.record(self._leaving)
        return _Ready(number, host, largest, arrived)

    def _save(self, ready: _Ready) -> None:
        """Have a batch written; raises :class:`_NotFinite`."""
        if ready.arrived is not None:
            ready.arrived.synchronize()
        batch = self.plan.batches[ready.number]
        bits, exponent = _BITS[self.plan.manifest["dtype"]]
        for (name, part), largest in zip(ready.rows.items(), ready.exponents.tolist(), strict=True):
            values = part.view(bits).numpy()
            if largest == exponent:
                raise _NotFinite(ready.number, name, _first_row_with(values, exponent))
            for at, end in _runs(batch):  # images that follow one another lie beside one another
                self.writer.write(name, self.plan.first_row(name, batch[at]), values[at:end])
        self.writer.finish(ready.number)

    def _explained(self, failure: _NotFinite) -> DataError:
        """Return the error for a row that is not finite, after computing its features again to see them unconverted."""
        batch, dtype = self.plan.batches[failure.number], self.plan.manifest["dtype"]
        with torch.inference_mode():
            features = self._features(failure.number, [self._load(i) for i in batch])[failure.name][failure.row]
        block = failure.name.rpartition("block")[2]
        where = f"{self.plan.paths[batch[failure.row]]}: features of block {block}"
        if not bool(features.isfinite().all()):
            return DataError(f"{where} are not finite", "the weights have diverged")
        peak = float(features.abs().max())
        larger = "dtype=bfloat16 or float32" if dtype == "float16" else "dtype=float32"
        return DataError(f"{where} reach {peak:.3g}, too large for {dtype}", f"export with {larger}, or another norm")


def _mirrored(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Tokens (B, h·w, C) of a map whose columns are in reverse order."""
    return tokens.view(len(tokens), *grid, -1).flip(2).flatten(1, 2)


def _converted(features: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: part.to(dtype).contiguous() for name, part in features.items()}


def _exponents(rows: Mapping[str, Tensor], bits: torch.dtype, exponent: int) -> Tensor:
    """Of each array the largest that a value has in the bits of ``exponent``: all of them where it is not finite."""
    return torch.stack([part.view(bits).bitwise_and(exponent).amax() for part in rows.values()])


def _first_row_with(values: NDArray[np.integer], exponent: int) -> int:
    """First row in which all bits of ``exponent`` are set in some value."""
    masked = (values & values.dtype.type(exponent)).reshape(len(values), -1)
    return int((masked.max(1) == exponent).argmax())


def _runs(batch: Sequence[int]) -> list[tuple[int, int]]:
    """Stretches begin:end of ``batch`` in which each number is one more than that before it."""
    cuts = [at for at in range(1, len(batch)) if batch[at] != batch[at - 1] + 1]
    return list(zip([0, *cuts], [*cuts, len(batch)], strict=True))
