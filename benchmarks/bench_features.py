"""Feature export (JPEG to published store) against the bare forward passes of the same batches, in one process.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_features [--model vit_small_patch16] [--images 32] [--rounds 5]

The bare pass is `Backbone.layers` of every block with the final norm, on a batch that lies in memory. It takes turns
with whole exports of JPEGs of 500×375, and of images of 224×224 that need neither decoding nor resizing; printed are
the medians of their ratios, in seconds and in CPU-seconds of the process: 1.0 would mean that all but the forward
pass costs nothing. Then what each part of an export costs, in CPU-seconds of its thread, which is all of it only with
one OpenMP thread.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dinoskip.features import Transform, export
from dinoskip.models import Backbone, create_model

SIZE = 224
PARTS = {  # part of an export -> where its function is
    "decode and resize": ("dinoskip.features.forward:ForwardPasses", "_load"),
    "normalise": ("dinoskip.features.forward:Normalise", "__call__"),
    "final norm (in the bare pass, too)": ("dinoskip.models.from_timm:TimmVitAdapter", "final_norm"),
    "convert": ("dinoskip.features.forward", "_converted"),
    "check for inf and NaN": ("dinoskip.features.forward", "_exponents"),
    "write, with sha256": ("dinoskip.features.writer:_RowFile", "write"),
    "fsync": ("dinoskip.features.writer:StoreWriter", "flush"),
    "sha256 of what was not hashed on the way": ("dinoskip.features.writer:_RowFile", "sha256"),
    "plan, hash of the images": ("dinoskip.features.extract", "plan_export"),
    "lay out files": ("dinoskip.features.extract", "prepare"),
}


@dataclass
class Photos:
    """A data set of image files, as the export reads one."""

    root: Path
    ids: tuple[str, ...]
    suffix: str

    def path(self, i: int) -> Path:
        """Return the file of photograph ``i``."""
        return self.root / f"{self.ids[i]}{self.suffix}"


def make_photos(root: Path, count: int, suffix: str, size: tuple[int, int]) -> Photos:
    """Files that look like photographs to a decoder."""
    root.mkdir()
    photos = Photos(root, tuple(f"{i:03d}" for i in range(count)), suffix)
    rng = np.random.default_rng(0)
    for i in range(count):
        small = Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8))
        small.resize(size, Image.Resampling.BICUBIC).save(photos.path(i), quality=90)
    return photos


def time_parts() -> dict[str, float]:
    """Wrap each function of ``PARTS``, for good; the CPU-seconds that calling threads spend in it are added up."""
    spent: dict[str, float] = defaultdict(float)

    def timed(original: Callable[..., Any], part: str) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                spent[part] += time.thread_time() - began

        return wrapped

    for part, (place, name) in PARTS.items():
        module, _, kind = place.partition(":")
        owner = importlib.import_module(module)
        owner = getattr(owner, kind) if kind else owner
        setattr(owner, name, timed(getattr(owner, name), part))
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_small_patch16")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backbone = Backbone.from_model(create_model(args.model)).to(device)
    blocks = range(1, backbone.depth + 1)
    batch = torch.randn(args.batch, 3, SIZE, SIZE, device=device)

    def bare() -> None:
        with torch.inference_mode():
            for _ in range(-(-args.images // args.batch)):
                features = backbone.layers(batch, blocks, norm="final")
            features[1].tokens.sum().item()

    def measured(action: Callable[[], object]) -> np.ndarray:
        began = time.perf_counter(), time.process_time()
        action()
        return np.array([time.perf_counter() - began[0], time.process_time() - began[1]])

    spent = time_parts()
    print(f"{args.images} images, {backbone.depth} blocks, {device}, {torch.get_num_threads()} threads", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "store"
        kinds = {
            "JPEG 500×375": make_photos(Path(folder) / "jpeg", args.images, ".jpg", (500, 375)),
            "ready 224×224": make_photos(Path(folder) / "ready", args.images, ".ppm", (SIZE, SIZE)),
        }
        ratios: dict[str, list[np.ndarray]] = {kind: [] for kind in kinds}
        bares: list[np.ndarray] = []
        cost: dict[str, float] = defaultdict(float)
        for number in range(args.rounds + 1):  # the first is not counted
            alone = measured(bare)
            for kind, photos in kinds.items():
                spent.clear()
                transform = Transform(size=SIZE)
                whole = measured(
                    lambda photos=photos, transform=transform: export(  # type: ignore[misc]
                        backbone, photos, out, "all", transform=transform, batch_size=args.batch
                    )
                )
                shutil.rmtree(out)
                if number:
                    ratios[kind].append(whole / alone)
                    for part, seconds in spent.items() if kind.startswith("JPEG") else ():
                        cost[part] += seconds
            bares += [alone] if number else []
    wall, cpu = np.median(bares, 0)
    print(f"bare forward {wall:.2f} s, {cpu:.2f} CPU-s")
    for kind, of_kind in ratios.items():
        each = [
            f"{statistics.median(column):.3f} ({min(column):.3f} to {max(column):.3f})"
            for column in np.transpose(of_kind)
        ]
        print(f"export of {kind}: ratio {each[0]} in seconds, {each[1]} in CPU-seconds")
    for part in PARTS:
        each_run = cost[part] / args.rounds
        print(f"{part:36s}{1000 * each_run / args.images:8.2f} CPU-ms an image {100 * each_run / cpu:6.2f} % of bare")


if __name__ == "__main__":
    main()
