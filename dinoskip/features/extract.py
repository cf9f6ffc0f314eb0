"""Export frozen features: one forward pass gives every block, decoding overlaps computing, a kill loses seconds."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from dinoskip.console import Progress, log
from dinoskip.errors import ConfigError, DataError, OutputInUse
from dinoskip.features.plan import ImageSet, Plan, make_plan
from dinoskip.features.store import FeatureStore, cls_file, tokens_file
from dinoskip.features.transform import Normalise, Transform, load_pixels
from dinoskip.features.writer import StoreWriter, discard, partial_path
from dinoskip.files import MANIFEST, read_json
from dinoskip.locks import directory_lock

if TYPE_CHECKING:
    from dinoskip.models import Backbone, LayerFeatures

WAITING_SECONDS = 15.0  # between lines that say for whom an export waits
_TORCH = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def export(
    backbone: Backbone,
    dataset: ImageSet,
    out: str | Path,
    blocks: Sequence[int] | Literal["all"],
    facet: Literal["out", "key", "query", "value"] = "out",
    norm: Literal["none", "final", "layer"] = "final",
    dtype: Literal["float16", "bfloat16", "float32"] = "float16",
    *,
    transform: Transform | None = None,
    tokens: bool = True,
    cls: bool = True,
    batch_size: int = 16,
    workers: int = 0,
) -> FeatureStore:
    """Write the features of every image of ``dataset`` to the directory ``out`` and open it.

    Parameters
    ----------
    dataset
        Anything with unique ``ids`` and ``path(i)``; the store keeps this order.
    blocks
        Block numbers 1..depth, or ``"all"``. One forward pass gives them all.
    facet, norm
        As for ``Backbone.layers``.
    dtype
        What is stored. float16 holds up to 65504; larger values are an error, never inf.
    transform
        How images are sized, default 224 × 224 square. Native images are batched by size.
    tokens, cls
        Which of patch tokens and class tokens to store; class tokens are left out if the backbone has none.
    workers
        Decoding threads; 0 takes one a CPU core, up to 8.

    Killed or interrupted anywhere, the same call continues and the finished store is byte-identical. A finished
    store of the same content is returned as it is. Raises :class:`DataError` naming the image that cannot be read
    or whose features are not finite in ``dtype``, :class:`ConfigError` for impossible settings,
    :class:`OutputInUse` if ``out`` holds something else or another process exports something else to it,
    :class:`DiskFull`. While another process makes the same export, it waits for it and returns its result.
    """
    out = Path(out)
    plan = make_plan(backbone, dataset, blocks, facet, norm, dtype, transform or Transform(), tokens, cls, batch_size)
    finished = _finished(out, plan.manifest["key"])
    return _export(backbone, plan, out, batch_size, workers) if finished is None else finished


def _export(backbone: Backbone, plan: Plan, out: Path, batch_size: int, workers: int) -> FeatureStore:
    work, manifest = partial_path(out), plan.manifest
    log.info(
        "features: %d images × %d blocks, %s %s norm=%s, %s: %s in %s",
        len(plan.paths), len(manifest["blocks"]), manifest["dtype"], manifest["facet"], manifest["norm"],
        plan.transform.label, _bytes(plan.nbytes), out,
    )  # fmt: skip
    with ExitStack() as held:
        held.callback(_remove_empty, work)  # after the lock is released
        _take_turn(held, work, manifest["key"])
        finished = _finished(out, manifest["key"])  # by the process that we waited for
        if finished is not None:
            return finished
        arrays = {name: (plan.stored, shape) for name, shape in plan.shapes.items()}
        state = {"key": manifest["key"], "batch_size": batch_size}
        with closing(StoreWriter(work, state, arrays, len(plan.batches))) as writer:
            if writer.resumed and any(writer.done):
                log.info("features: continuing, %d of %d batches are done", sum(writer.done), len(plan.batches))
            _run(backbone, plan, writer, workers or min(8, len(os.sched_getaffinity(0))))
            writer.publish(out, manifest)
    return FeatureStore.open(out)


def _remove_empty(work: Path) -> None:
    with suppress(OSError):  # another process may have taken it already, or our work is to be continued
        work.rmdir()


def _take_turn(held: ExitStack, work: Path, key: str) -> None:
    """Lock ``work``, after waiting for another process that exports the same there; a dead one's lock is void."""
    told = float("-inf")
    while True:
        try:
            held.enter_context(directory_lock(work))
            return
        except OutputInUse as busy:
            with suppress(DataError):  # nothing readable there yet: it has just begun
                if read_json(work / "state.json").get("key", key) != key:
                    raise busy from None
            if time.monotonic() - told > WAITING_SECONDS:
                log.info("features: waiting for the same export: %s", busy.message)
                told = time.monotonic()
        time.sleep(0.2)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _finished(out: Path, key: str) -> FeatureStore | None:
    """Return the store at ``out`` if it is the one asked for, None if nothing is there; else refuse."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if (out / MANIFEST).is_file():
        with suppress(DataError):
            store = FeatureStore.open(out)
            if store.key == key:
                log.info("features: %s is already complete", out)
                _clean_up(partial_path(out))
                return store
    raise OutputInUse(f"{out}: holds something other than these features", "remove it or choose another output")


def _clean_up(work: Path) -> None:
    """Remove what a kill between publishing and cleaning up has left."""
    if work.is_dir():
        with suppress(OutputInUse), directory_lock(work):
            discard(work)
        _remove_empty(work)


def _decoded(plan: Plan, todo: Sequence[int], workers: int) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Yield (batch number, its uint8 images), decoded in threads up to two batches ahead."""
    patch = plan.manifest["patch_size"]
    ahead: deque[tuple[int, list[Future[torch.Tensor]]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="decode")
    try:
        for number in [*todo, None, None]:
            if number is not None:
                futures = [pool.submit(load_pixels, plan.transform, plan.paths[i], patch) for i in plan.batches[number]]
                ahead.append((number, futures))
            if ahead and (len(ahead) > 2 or number is None):
                first, waiting = ahead.popleft()
                yield first, [future.result() for future in waiting]
    finally:
        pool.shutdown(cancel_futures=True)


def _run(backbone: Backbone, plan: Plan, writer: StoreWriter, workers: int) -> None:
    manifest = plan.manifest
    todo = [number for number in range(len(plan.batches)) if not writer.done[number]]
    to_input = Normalise(backbone.mean, backbone.std, backbone.device, backbone.dtype)
    finished = len(plan.paths) - sum(len(plan.batches[number]) for number in todo)
    with torch.inference_mode(), Progress("features", len(plan.paths), "images", start=finished) as progress:
        for number, images in _decoded(plan, todo, workers):
            batch = plan.batches[number]
            pixels = to_input(images, *plan.sizes[batch[0]])
            try:
                layers = backbone.layers(pixels, manifest["blocks"], manifest["facet"], manifest["norm"])
            except ValueError as error:  # an option or size that this backbone does not have
                raise ConfigError(f"features: {error}") from error
            for block, features in layers.items():
                _store(plan, writer, block, features, batch)
            writer.finish(number)
            progress.advance(len(batch))
    writer.flush()


def _store(plan: Plan, writer: StoreWriter, block: int, features: LayerFeatures, batch: list[int]) -> None:
    """Convert one block's features of one batch and write their rows."""
    if plan.manifest["tokens"]:
        rows = _converted(plan, block, features.tokens, batch)
        if plan.starts is None:  # images of one size are batched in order: one write
            writer.write(tokens_file(block), batch[0], rows)
        else:
            for i, image in zip(batch, rows, strict=True):
                writer.write(tokens_file(block), int(plan.starts[i]), image)
    if plan.manifest["cls"]:
        assert features.cls is not None  # the plan asked for it because the backbone has prefix tokens
        rows = _converted(plan, block, features.cls, batch)
        for i, row in zip(batch, rows, strict=True):
            writer.write(cls_file(block), i, row)


def _converted(plan: Plan, block: int, features: torch.Tensor, batch: list[int]) -> np.ndarray:
    """Return features (B, ...) in the stored dtype; :class:`DataError` naming the image if they do not fit it."""
    dtype = plan.manifest["dtype"]
    converted = features.to(_TORCH[dtype])
    if not bool(converted.isfinite().all()):
        row = int((~converted.isfinite()).flatten(1).any(1).nonzero()[0])
        where = f"{plan.paths[batch[row]]}: features of block {block}"
        if not bool(features[row].isfinite().all()):
            raise DataError(f"{where} are not finite", "the weights have diverged")
        peak = float(features[row].abs().max())
        larger = "dtype=bfloat16 or float32" if dtype == "float16" else "dtype=float32"
        raise DataError(f"{where} reach {peak:.3g}, too large for {dtype}", f"export with {larger}, or another norm")
    host = converted.cpu()
    if dtype == "bfloat16":
        return host.view(torch.int16).numpy().view(np.uint16)
    return np.asarray(host.numpy())
