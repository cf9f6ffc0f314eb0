"""PCA of the tokens of 1,000 images against scikit-learn: time, peak memory, and the same components.

    python -m benchmarks.bench_pca [--images 1000] [--blocks 3] [--repeats 3]

Tokens of ViT-S at 224 pixels, (N, 196, 384) float16, a memory map a block in a temporary folder. Ours is
``visualize.pca.PatchPCA``, which reads them twice in chunks of float64 (once for the covariance, once for the signs);
the baseline is ``sklearn.decomposition.PCA`` on the whole array, which it turns to float64. Processor time, one thread,
both in turn; memory is what the process takes of its own beyond what it had before.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from benchmarks.bench_memory import peak
from visualize.pca import PatchPCA

TOKENS, DIM = 196, 384


def stored_tokens(path: Path, images: int, seed: int) -> np.ndarray:
    """Write tokens with a falling spectrum, skewed sources and an offset a channel; return them as a memory map."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((32, DIM)) / np.arange(1, 33)[:, None] ** 0.5
    offset = rng.standard_normal(DIM)
    stored = np.lib.format.open_memmap(path, "w+", np.float16, (images, TOKENS, DIM))
    for at in range(0, images, 50):
        shape = stored[at : at + 50].shape[:2]
        stored[at : at + 50] = rng.exponential(size=(*shape, 32)) @ mixing + offset + 0.3 * rng.standard_normal(DIM)
    del stored
    return np.load(path, mmap_mode="r")


def measured(function: Callable[[], object]) -> tuple[float, int]:
    """Return (processor seconds, bytes beyond those before) of a call."""
    began = time.process_time()
    most = peak(function)
    return time.process_time() - began, most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("images", 1000), ("blocks", 3), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(limits=1):
        maps = [stored_tokens(Path(folder) / f"{b}.npy", args.images, b) for b in range(args.blocks)]
        for blocks in sorted({1, args.blocks}):
            given = maps[:blocks]
            rows = []
            for _ in range(args.repeats):
                mine = measured(lambda g=given: [PatchPCA(3).fit(x) for x in g])
                theirs = measured(lambda g=given: [PCA(3).fit(x.reshape(-1, DIM)) for x in g])
                rows.append((theirs[0] / mine[0], mine[0], mine[1], theirs[1]))
            ratio, seconds, ours, others = (statistics.median(column) for column in zip(*rows, strict=True))
            print(
                f"{args.images} images, {blocks} block(s): {seconds:.2f} s, {ratio:.2f} × scikit-learn's speed; "
                f"{ours / 2**20:.0f} MiB against {others / 2**20:.0f}"
            )
        furthest = 0.0
        for x in maps:
            mine, theirs = PatchPCA(3).fit(x), PCA(3, svd_solver="covariance_eigh").fit(x.reshape(-1, DIM))
            signs = np.sign((mine.components_ * theirs.components_).sum(axis=1))
            furthest = max(furthest, float(np.abs(mine.components_ - theirs.components_ * signs[:, None]).max()))
        print(f"components differ by at most {furthest:.1e}")


if __name__ == "__main__":
    main()
