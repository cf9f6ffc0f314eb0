"""TokenCut against the reference formulation: CPU time, one thread, in one process.

Aim: at 784 / 1,200 / 1,850 tokens the eigen step (float64 edges from similarities, Lanczos) at least 14 / 23 / 29
times, the whole cut (normalise, Gram, edges, eigen step, box) at least 8 / 11 / 15 times faster than the dense float64
affinity with ``scipy.linalg.eigh(D - A, D, subset_by_index=[1, 2])``. docs/measured.md says what was reached.

Run: python -m benchmarks.bench_tokencut [--repeats 3] [--images 3]     (about a minute)
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.ndimage
import torch
from threadpoolctl import threadpool_limits

from dinoskip.randomness import numpy_rng
from eval.graph import build_graphs, normalise, similarities
from eval.tokencut import TokenCut, cut_vectors, tokencut

GRIDS = ((28, 28), (30, 40), (37, 50))
TARGETS = {784: (14, 8), 1200: (23, 11), 1850: (29, 15)}


def features(grid: tuple[int, int], dim: int, seed: int) -> np.ndarray:
    """Return patch descriptors (N, dim): smooth fields along random directions of falling strength, and noise.

    The strengths fall as natural spectra do; edge density (about 0.3) and eigengap (0.2 to 0.4) are then like those
    of descriptors of photographs.
    """
    rng = numpy_rng(seed, "bench", *grid)
    fields = np.stack([scipy.ndimage.gaussian_filter(rng.standard_normal(grid), 2.5) for _ in range(16)], axis=-1)
    strengths = np.arange(1, 17) ** -0.5 / fields.std()
    tokens = (fields.reshape(-1, 16) * strengths) @ rng.standard_normal((16, dim))
    return (tokens + 0.5 * rng.standard_normal(tokens.shape)).astype(np.float32)


def reference_eigen(similar: np.ndarray) -> np.ndarray:
    """Dense affinity from the boolean edges and the generalised eigenvectors 1 and 2."""
    affinity = np.where(similar, 1.0, 1e-5)
    degrees = np.diag(affinity.sum(axis=1))
    return scipy.linalg.eigh(degrees - affinity, degrees, subset_by_index=[1, 2])[1][:, 0]


def reference_cut(tokens: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Return the whole reference formulation's foreground component."""
    unit = torch.nn.functional.normalize(torch.from_numpy(tokens), dim=1)
    y = reference_eigen((unit @ unit.T).numpy() > 0.2)
    mask = y > y.mean()
    seed = int(np.abs(y).argmax())
    mask = mask if mask[seed] else ~mask
    labels = scipy.ndimage.label(mask.reshape(grid))[0]
    return labels == labels.flat[seed]


def seconds(function: Callable[[], object]) -> float:
    """CPU time of one call (one thread), which other work on the machine disturbs less than wall time."""
    begin = time.process_time()
    function()
    return time.process_time() - begin


def compare(fast: Callable[[], object], slow: Callable[[], object], repeats: int) -> tuple[float, float, float]:
    """Return (median ratio, fast seconds, slow seconds): a slow call against the median of 5 fast ones beside it."""
    rows = []
    for _ in range(repeats):
        mine = statistics.median(seconds(fast) for _ in range(5))
        rows.append((seconds(slow) / mine, mine))
    ratio, mine = (statistics.median(column) for column in zip(*rows, strict=True))
    return ratio, mine, ratio * mine


def measure(grid: tuple[int, int], seed: int, repeats: int) -> tuple[float, float]:
    """Return the ratios of the eigen step and of the whole cut of one image, after checking that the cuts agree."""
    tokens = features(grid, 384, seed)
    similarity = similarities(normalise(torch.from_numpy(tokens[None])))
    similar = (similarity[0] > 0.2).numpy()
    ours = tokencut(tokens, grid)
    assert isinstance(ours, TokenCut)
    if not np.array_equal(ours.component, reference_cut(tokens, grid)):
        raise SystemExit(f"another component than the reference formulation's at {grid}, seed {seed}")
    step, mine, theirs = compare(
        lambda: cut_vectors(build_graphs(similarity, 0.2, 1e-5)), lambda: reference_eigen(similar), repeats
    )
    cut, mine_cut, theirs_cut = compare(lambda: tokencut(tokens, grid), lambda: reference_cut(tokens, grid), repeats)
    print(
        f"  {grid[0]}x{grid[1]} image {seed}: eigen {mine * 1e3:.1f} ms against {theirs * 1e3:.0f}, "
        f"cut {mine_cut * 1e3:.1f} against {theirs_cut * 1e3:.0f}; density {similar.mean():.2f}, {ours.passes} passes"
    )
    return step, cut


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(limits=1):
        for grid in GRIDS:
            measured = [measure(grid, seed, options.repeats) for seed in range(options.images)]
            eigen, cut = (statistics.median(row[i] for row in measured) for i in range(2))
            least = TARGETS[grid[0] * grid[1]]
            print(
                f"{grid[0] * grid[1]:5d} tokens: eigen step {eigen:.1f} x (aim {least[0]}), "
                f"whole cut {cut:.1f} x (aim {least[1]})"
            )


if __name__ == "__main__":
    main()
