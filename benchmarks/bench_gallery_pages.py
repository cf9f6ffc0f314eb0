"""Memory of a gallery that does not grow with its images: the peak of `dinoskip gallery` at several numbers of them.

Every number is a process of its own; what is printed is its peak of anonymous memory, how far that lies above a gallery
of one image, which holds the same network, and the peak with mapped files (feature stores), whose pages the system
takes back when it needs them. Aim: 500 MiB of anonymous memory at 10,000 images. Photographs are noise, 1.5 times as
wide as high; the network has random weights.

Run: python -m benchmarks.bench_gallery_pages [--images 50 200] [--model vit_small_patch16_224] [--size 224]
     python -m benchmarks.bench_gallery_pages --images 50 10000 --model vit_tiny_patch16_224 --depth 2 --size 32
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

PEAK = """
import resource, sys
from benchmarks.measuring import anonymous, largest
from dinoskip.cli import main
codes = []
peak = largest(anonymous, 0.05, lambda: codes.append(main(sys.argv[1:])))
print("peaks", peak, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(codes[0])
"""


def write_photographs(folder: Path, count: int, size: int) -> None:
    """JPEGs of noise, ``size`` pixels high."""
    rng = np.random.default_rng(0)
    for number in range(count):
        pixels = rng.integers(0, 256, (size, 3 * size // 2, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:05d}.jpg", quality=90)


def peaks_of(photos: Path, out: Path, backbone: str, images: int, size: int) -> tuple[float, float, float]:
    """Peaks in MiB, anonymous and with mapped files, and seconds, of a gallery of the first ``images``."""
    words = ["gallery", backbone, "--data", str(photos), "--out", str(out), "--device", "cpu", "-q"]
    settings = [f"gallery.first={images}", f"gallery.size={size}", "gallery.similarity=1"]
    began = time.monotonic()
    command = [sys.executable, "-c", PEAK, *words, *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peaks = next(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("peaks "))
    alone, mapped = (int(peak) / 2**20 for peak in peaks)
    return alone, mapped, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    backbone = f"timm:{args.model},pretrained=false,img_size={args.size},depth={args.depth}"
    with tempfile.TemporaryDirectory() as scratch:
        photos = Path(scratch) / "photos"
        photos.mkdir()
        write_photographs(photos, max(args.images), args.size)
        first = 0.0
        for images in (1, *args.images):
            peak, mapped, seconds = peaks_of(photos, Path(scratch) / str(images), backbone, images, args.size)
            first = first or peak
            over = f"{peak - first:+5.0f} over one image, {mapped:6.0f} with mapped files"
            print(f"{images:6} images: {peak:6.0f} MiB, {over}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
