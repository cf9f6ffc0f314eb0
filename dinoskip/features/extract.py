"""Export frozen features: one forward pass gives every block, processes share the work, a kill loses seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dinoskip.errors import DataError, ForeignOutput, OutputInUse
from dinoskip.features.export_plan import ExportPlan, ExportSettings, ImageSet, plan_export, provenance_of
from dinoskip.features.forward import ForwardPasses, decoding_threads
from dinoskip.features.store import FeatureStore
from dinoskip.features.transform import Transform
from dinoskip.features.writer import StoreWriter, discard, free_bytes, partial_path, prepare, refuse_foreign
from dinoskip.io.files import MANIFEST, read_json
from dinoskip.io.locks import DirectoryLock, directory_lock
from dinoskip.io.output import followed, remove_aside, remove_empty
from dinoskip.runtime.console import Progress, duration, human_bytes, log
from dinoskip.runtime.distributed import ProcessGroup, World, differing_rank, group_without_timeout

if TYPE_CHECKING:
    from dinoskip.models import Backbone

WAITING_SECONDS = 15.0  # between lines that say for whom an export waits


def export(
    backbone: Backbone,
    dataset: ImageSet,
    out: str | Path,
    blocks: Sequence[int] | Literal["all"],
    facet: str | Sequence[str] = "out",
    norm: str | Sequence[str] = "final",
    dtype: Literal["float16", "bfloat16", "float32"] = "float16",
    *,
    transform: Transform | None = None,
    tokens: bool = True,
    cls: bool = True,
    batch_size: int = 16,
    workers: int = 0,
    here: World | None = None,
    reserve: Callable[[int], None] | None = None,
    images: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> FeatureStore:
    """Write the features of every image of ``dataset`` to the directory ``out`` and open it.

    Killed or interrupted anywhere, the same call continues, with any number of processes, and the finished store is
    byte-identical. A finished store of the same content is returned as it is. Raises :class:`DataError` naming the
    image that cannot be read or whose features are not finite in ``dtype``, :class:`ConfigError` for impossible
    settings and for what is no feature store's in ``out``, :class:`OutputInUse` if other features are there (which
    ``replace`` removes) or another process exports something else to it, :class:`DiskFull`, at the start if the
    features cannot fit. While another process makes the same export, it waits for it and returns its result.

    Parameters
    ----------
    dataset
        Anything with unique ``ids`` and ``path(i)``; the store keeps this order.
    blocks
        Block numbers 1..depth, or ``"all"``. One forward pass gives them all.
    facet, norm
        As for ``Backbone.layers``; ``FeatureStore.open(out, facet=NAME)`` reads one of several.
    dtype
        What is stored. float16 holds up to 65504; larger values are an error, never inf.
    transform
        How images are sized, default 224 × 224 square. Native images are batched by size.
    tokens, cls
        Which of patch tokens and class tokens to store; class tokens are left out if the backbone has none.
    workers
        Decoding threads, 0: one a CPU core, up to 16.
    here
        This process's place among the ranks that share the work, weights and file system. None: this process alone.
    reserve
        Told on rank 0, before any is written, how many bytes the features have; may make room, or raise.
    images
        Facts of ``dataset`` for the store's ``provenance.json``, such as its ``kind``, ``root`` and ``split``.
    """
    out, group = followed(out), group_without_timeout(here)
    settings = ExportSettings(blocks, facet, norm, dtype, transform or Transform(), tokens, cls, batch_size)
    plan = group.on_main(lambda: plan_export(backbone, dataset, settings))
    other = differing_rank(group.gather(backbone.weights_hash))
    if other is not None:
        raise DataError(f"features: rank {other} has other weights than rank 0", "give all ranks the same file")
    if not group.on_main(lambda: _finished(out, plan, replace=replace)):
        _export(backbone, plan, out, workers, group, reserve, images or {}, replace)
    return FeatureStore.open(out)


def _export(
    backbone: Backbone,
    plan: ExportPlan,
    out: Path,
    workers: int,
    group: ProcessGroup,
    reserve: Callable[[int], None] | None,
    images: Mapping[str, Any],
    replace: bool,
) -> None:
    work = partial_path(out)
    lock: DirectoryLock | None = None  # rank 0 alone holds it
    with ExitStack() as held:

        def begin() -> bytearray | None:
            """Batches that are done, on rank 0, which holds the lock; None if another process has done it all."""
            nonlocal lock
            refuse_foreign(work)
            held.callback(remove_empty, work)  # after the lock is released: our work may be to be continued
            lock = _lock_or_wait(held, work, plan.manifest["key"])
            if _finished(out, plan, replace=replace):
                return None
            if reserve is not None:
                reserve(plan.nbytes)
            _log_start(plan, out)
            return prepare(work, plan)

        done = group.on_main(begin)
        if done is None:
            return
        todo = [number for number in range(len(plan.batches)) if not done[number]]
        if group.rank == 0 and any(done):
            log.info("features: continuing, %d of %d batches are done", len(done) - len(todo), len(done))
        began = time.monotonic()
        threads = decoding_threads(workers)
        with closing(StoreWriter(work, plan, group.rank, threads)) as writer:
            _share(backbone, plan, writer, todo, threads, group)
            group.gather(None)  # all rows of all ranks are on disk
            group.on_main(lambda: _check(lock))
            hashes = group.gather(writer.hashes(group.rank, group.size))
            group.on_main(lambda: _publish(writer, lock, out, plan, hashes, provenance_of(backbone, plan, images)))
        if group.rank == 0:
            _log_end(sum(len(plan.batches[number]) for number in todo), time.monotonic() - began, plan, group)


def _check(lock: DirectoryLock | None) -> None:
    if lock is not None:
        lock.check()  # rows went to open files, which a removed directory would have taken with it


def _publish(
    writer: StoreWriter,
    lock: DirectoryLock | None,
    out: Path,
    plan: ExportPlan,
    hashes: Sequence[Mapping[str, str]],
    provenance: Mapping[str, Any],
) -> None:
    _check(lock)
    writer.publish(out, plan.manifest, {name: found for part in hashes for name, found in part.items()}, provenance)


def _share(
    backbone: Backbone, plan: ExportPlan, writer: StoreWriter, todo: Sequence[int], threads: int, group: ProcessGroup
) -> None:
    """Do this rank's share of the batches ``todo``: every ``size``-th, which evens out sizes of images."""
    batches = list(todo[group.rank :: group.size])
    images = sum(len(plan.batches[number]) for number in batches)
    alone = group.size == 1
    before = len(plan.paths) - images if alone else 0
    label = "features" if alone else f"features, process 1 of {group.size}"
    with Progress(label, before + images, "images", start=before, show=group.rank == 0) as progress:
        ForwardPasses(backbone, plan, writer, threads).run(batches, progress.advance)


def _log_start(plan: ExportPlan, out: Path) -> None:
    manifest = plan.manifest
    facet, norm = (", ".join(manifest[name]) if isinstance(manifest[name], list) else manifest[name]
                   for name in ("facet", "norm"))  # fmt: skip
    log.info(
        "features: %d images × %d blocks, %s %s norm=%s, %s: %s (%s free)",
        len(plan.paths), len(manifest["blocks"]), manifest["dtype"], facet, norm,
        plan.transform.label, human_bytes(plan.nbytes), human_bytes(free_bytes(out)),
    )  # fmt: skip


def _log_end(images: int, seconds: float, plan: ExportPlan, group: ProcessGroup) -> None:
    log.info(
        "features: %d images in %s, %.1f images/s%s, %s",
        images, duration(seconds), images / max(seconds, 1e-9),
        f" with {group.size} processes" if group.size > 1 else "", human_bytes(plan.nbytes),
    )  # fmt: skip


def _lock_or_wait(held: ExitStack, work: Path, key: str) -> DirectoryLock:
    """Lock ``work``, after waiting for another process that exports the same there; a dead one's lock is void."""
    told = float("-inf")
    while True:
        try:
            return held.enter_context(directory_lock(work))
        except OutputInUse as busy:
            with suppress(DataError):  # nothing readable there yet: it has just begun
                if read_json(work / "state.json").get("key", key) != key:
                    raise busy from None
            if time.monotonic() - told > WAITING_SECONDS:
                log.info("features: waiting for the same export: %s", busy.message)
                told = time.monotonic()
        time.sleep(0.2)  # shorter: more looks at a disk that may be a network's; longer: begins later


def _finished(out: Path, plan: ExportPlan, *, replace: bool = False) -> bool:
    """Whether ``out`` holds what is asked for already, False if nothing is there; else refuse, or remove it."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not out.is_dir() or not (out / MANIFEST).is_file():
        held = next((path.name for path in sorted(out.iterdir())), "") if out.is_dir() else ""
        raise ForeignOutput(f"{out / held}: is no feature store's", "move it away, or choose another output")
    with suppress(DataError):
        if FeatureStore.open(out).key == plan.manifest["key"]:
            log.info("features: %s is already complete", out)
            _clean_up(partial_path(out))
            return True
    if replace:
        remove_aside(out, "old")
        return False
    raise OutputInUse(f"{out}: holds something other than these features", "remove it or choose another output")


def _clean_up(work: Path) -> None:
    """Remove what a kill between publishing and cleaning up has left."""
    if work.is_dir():
        refuse_foreign(work)
        with suppress(OutputInUse), directory_lock(work):
            discard(work)
        remove_empty(work)
