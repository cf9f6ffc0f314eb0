"""Speed of writing and verifying a feature store, without a network: rows of ViT-S/16 at 224 pixels, 12 blocks.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_store [--images 512] [--threads 1,2] [--folder /dev/shm]

Batches of 64 images of random rows are given to the store's writer as an export gives them: 1.8 MB an image, float16.
Printed are images a second and processor time of all threads an image, of laying out, writing (with check sums and
sha256) and publishing; then the same of verifying what was written. The folder lies in memory, so a disk is not
measured. With enough cores images a second are threads over processor time, up to one thread a block.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dinoskip.features.npy_files import contents, locate_array
from dinoskip.features.store import cls_name, tokens_name
from dinoskip.features.writer import StoreWriter, prepare
from dinoskip.io.files import verify_manifest
from dinoskip.runtime.cores import available_cores

TOKENS, WIDTH, BLOCKS, BATCH = 196, 384, 12, 64  # ViT-S/16 at 224 pixels; images of a batch


def plan_of(images: int) -> Any:
    """Return the parts of an export's plan that a writer reads."""
    half = np.dtype("<f2")
    arrays = {tokens_name(block): (half, (images, TOKENS, WIDTH)) for block in range(1, BLOCKS + 1)}
    arrays |= {cls_name(block): (half, (images, WIDTH)) for block in range(1, BLOCKS + 1)}
    batches = [list(range(begin, min(begin + BATCH, images))) for begin in range(0, images, BATCH)]
    nbytes = sum(int(np.prod(shape)) * 2 for _, shape in arrays.values())
    state = {"key": "bench"}
    return SimpleNamespace(
        arrays=arrays, batches=batches, nbytes=nbytes, state=state, manifest=state, starts=None, strides={}
    )


def timed(action: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor in all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


def written(folder: Path, images: int, threads: int) -> dict[str, tuple[float, float]]:
    """Times of each part of writing a store of ``images`` to ``folder``."""
    plan, work, out = plan_of(images), folder / "work", folder / "store"
    work.mkdir()
    rng = np.random.default_rng(0)
    rows = {
        name: rng.standard_normal((BATCH, *shape[1:]), dtype=np.float32).astype(kind).view(np.int16)
        for name, (kind, shape) in plan.arrays.items()
    }
    times = {"lay out": timed(lambda: prepare(work, plan))}
    with closing(StoreWriter(work, plan, 0, threads)) as writer:

        def write() -> None:
            for number, batch in enumerate(plan.batches):
                for name, values in rows.items():
                    writer.write(name, batch[0], values[: len(batch)])
                writer.finish(number)
            writer.complete()

        times["write"] = timed(write)
        times["publish"] = timed(lambda: writer.publish(out, plan.manifest, writer.hashes()))
    places = [locate_array(out, name) for name in plan.arrays]
    times["verify the files"] = timed(lambda: verify_manifest(out))
    times["verify for a reader"] = timed(lambda: contents(places))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--threads", default="1,2", help="writing threads, several separated by commas")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    args = parser.parse_args()
    gigabytes = plan_of(args.images).nbytes / 1e9
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{args.images} images, {gigabytes:.2f} GB, {available_cores()} cores, load {load}")
    for threads in map(int, args.threads.split(",")):
        folder = Path(tempfile.mkdtemp(dir=args.folder))
        try:
            times = written(folder, args.images, threads)
        finally:
            shutil.rmtree(folder)
        export = [times[name] for name in ("lay out", "write", "publish")]
        times["all of writing"] = (sum(wall for wall, _ in export), sum(cpu for _, cpu in export))
        for name, (wall, cpu) in times.items():
            print(
                f"{threads} threads, {name:20s} {args.images / wall:8.0f} images/s {gigabytes / wall:6.2f} GB/s"
                f" {1e3 * cpu / args.images:6.2f} ms of a processor an image"
            )


if __name__ == "__main__":
    main()
