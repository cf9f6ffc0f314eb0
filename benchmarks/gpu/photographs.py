"""JPEGs that cost a decoder what photographs do, many of them in a second: a few distinct ones, written again."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bench_data import bundled
from benchmarks.bench_features import Photos


def jpegs(folder: Path, count: int) -> Photos:
    """Write ``count`` files of 500 × 375 pixels, stretches of photographs inside installed packages."""
    folder.mkdir(parents=True)
    bundled(folder)
    first = sorted(folder.glob("*.jpg"))
    encoded = [path.read_bytes() for path in first]
    for path in first:
        path.unlink()
    ids = tuple(f"{number:05d}" for number in range(count))
    for number, name in enumerate(ids):
        (folder / f"{name}.jpg").write_bytes(encoded[number % len(encoded)])
    return Photos(folder, ids, ".jpg")
