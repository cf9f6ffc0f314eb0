"""Feature export (JPEG to published store) against the bare forward passes of the same batches, in one process.

    python benchmarks/bench_features.py [--model vit_small_patch16] [--images 64] [--batch 16]

Prints seconds of both and their ratio; 1.0 would mean that decoding, converting, writing and hashing cost nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from dinoskip.features import Transform, export
from dinoskip.models import Backbone, create_model


@dataclass
class Photos:
    """JPEG files that look like photographs to a decoder."""

    root: Path
    ids: tuple[str, ...]

    def path(self, i: int) -> Path:
        """Return the file of photograph ``i``."""
        return self.root / f"{self.ids[i]}.jpg"


def make_photos(root: Path, count: int) -> Photos:
    photos = Photos(root, tuple(f"{i:03d}" for i in range(count)))
    rng = np.random.default_rng(0)
    for i in range(count):
        small = Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8))
        small.resize((500, 375), Image.Resampling.BICUBIC).save(photos.path(i), quality=90)
    return photos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_small_patch16")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backbone = Backbone.from_model(create_model(args.model)).to(device)
    blocks = range(1, backbone.depth + 1)
    batch = torch.randn(args.batch, 3, 224, 224, device=device)

    def forwards(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            features = backbone.layers(batch, blocks, norm="final")
        features[1].tokens.sum().item()
        return time.perf_counter() - began

    with tempfile.TemporaryDirectory() as folder:
        photos = make_photos(Path(folder), args.images)
        forwards(1)
        bare = forwards(-(-args.images // args.batch))
        began = time.perf_counter()
        export(backbone, photos, Path(folder) / "store", "all", transform=Transform(size=224), batch_size=args.batch)
        whole = time.perf_counter() - began
    print(f"{args.images} images of 500×375, {backbone.depth} blocks, {device}, {torch.get_num_threads()} threads")
    print(f"bare forward {bare:.2f} s; export {whole:.2f} s")
    print(f"ratio {whole / bare:.2f}")


if __name__ == "__main__":
    main()
