"""TokenCut against the reference formulation: CPU time, one thread, in one process.

Aim: at 784 / 1,200 / 1,850 tokens the eigen step (float64 edges from similarities, Lanczos) at least 14 / 23 / 29
times, the whole cut (normalise, Gram, edges, eigen step, box) at least 8 / 11 / 15 times faster than the dense float64
affinity with ``scipy.linalg.eigh(D - A, D, subset_by_index=[1, 2])``. docs/measured.md says what was reached.

Run: python -m benchmarks.bench_tokencut [--repeats 3] [--images 3]     (about a minute)

``--agree 500`` instead cuts so many varied inputs (48 to 1,850 tokens, sparse to dense graphs) both ways and counts
equal boxes; where they differ it says why: tied seeds, or a small gap to the third eigenvalue. ``--photographs DIR``
makes every fifth input of photographs there: keys of some block of a randomly initialised ViT-S. It exits with 1 if
fewer than 99.5 % are equal or one is not explained. (Two minutes.)

``--large`` cuts one input of 47,600 tokens, as of a photograph of 12 megapixels at patches of 16 pixels, and prints the
process's seconds and its peak of memory, the input included. (Half a minute.)

``--before DIR`` cuts four images of each size by this code and by that of a checkout of another commit in DIR, in turn,
each in a process of its own since both have the same module names, and compares boxes and CPU times. (Two minutes.)
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.linalg
import scipy.ndimage
import torch
from threadpoolctl import threadpool_limits

from benchmarks.measuring import compare, seconds
from dinoskip.io.images import read_image
from dinoskip.models import load_backbone
from dinoskip.runtime.randomness import numpy_rng
from eval.tokencut.cut import Grid, TokenCut, component_of, tokencut
from eval.tokencut.eigenvector import DENSE_TOKENS, cut_vectors
from eval.tokencut.graph import build_graphs, normalise, similarities, symmetric_product
from eval.tokencut.memory import graph_bytes

GRIDS = ((28, 28), (30, 40), (37, 50))
AGREE_GRIDS = ((6, 8), (7, 7), (10, 14), (14, 14), (15, 20), (24, 18), (24, 32), (28, 28), (32, 24), (30, 40), (37, 50))
LARGE = (200, 238)
TARGETS = {784: (14, 8), 1200: (23, 11), 1850: (29, 15)}


def features(grid: Grid, dim: int, seed: int, noise: float = 0.5, smooth: float = 2.5) -> np.ndarray:
    """Return patch descriptors (N, dim): smooth fields along random directions of falling strength, and noise.

    The strengths fall as natural spectra do; edge density (about 0.3) and eigengap (0.2 to 0.4) are then like those
    of descriptors of photographs.
    """
    rng = numpy_rng(seed, "bench", *grid)
    fields = np.stack([scipy.ndimage.gaussian_filter(rng.standard_normal(grid), smooth) for _ in range(16)], axis=-1)
    strengths = np.arange(1, 17) ** -0.5 / fields.std()
    tokens = (fields.reshape(-1, 16) * strengths) @ rng.standard_normal((16, dim))
    descriptors: np.ndarray = (tokens + noise * rng.standard_normal(tokens.shape)).astype(np.float32)
    return descriptors


def reference_eigen(similar: np.ndarray) -> np.ndarray:
    """Dense affinity from the boolean edges and the generalised eigenvectors 1 and 2."""
    affinity = np.where(similar, 1.0, 1e-5)
    degrees = np.diag(affinity.sum(axis=1))
    vectors: np.ndarray = scipy.linalg.eigh(degrees - affinity, degrees, subset_by_index=[1, 2])[1]
    return vectors[:, 0]


def reference_cut(tokens: np.ndarray, grid: Grid) -> np.ndarray:
    """Return the whole reference formulation's foreground component."""
    unit = torch.nn.functional.normalize(torch.from_numpy(tokens), dim=1)
    y = reference_eigen((unit @ unit.T).numpy() > 0.2)
    mask = y > y.mean()
    seed = int(np.abs(y).argmax())
    mask = mask if mask[seed] else ~mask
    labels: np.ndarray = scipy.ndimage.label(mask.reshape(grid))[0]
    return np.asarray(labels == labels.flat[seed])


def measure(grid: Grid, seed: int, repeats: int) -> tuple[float, float]:
    """Return the ratios of the eigen step and of the whole cut of one image, after checking that the cuts agree."""
    tokens = features(grid, 384, seed)
    similarity = similarities(normalise(torch.from_numpy(tokens[None])))
    assert isinstance(similarity, torch.Tensor)
    similar = (similarity[0] > 0.2).numpy()
    ours = tokencut(tokens, grid)
    assert isinstance(ours, TokenCut)
    if not np.array_equal(ours.component, reference_cut(tokens, grid)):
        raise SystemExit(f"another component than the reference formulation's at {grid}, seed {seed}")
    step, fast, slow = compare(
        lambda: cut_vectors(build_graphs(similarity, 0.2, 1e-5)), lambda: reference_eigen(similar), repeats
    )
    edges, vector = build_graphs(similarity, 0.2, 1e-5).edges, np.ones((1, len(tokens)))
    product = [
        min(seconds(f) for _ in range(9)) for f in (lambda: symmetric_product(edges, vector), lambda: edges @ vector[0])
    ]
    cut, mine_cut, theirs_cut = compare(lambda: tokencut(tokens, grid), lambda: reference_cut(tokens, grid), repeats)
    print(
        f"  {grid[0]}x{grid[1]} image {seed}: eigen {fast * 1e3:.1f} ms against {slow * 1e3:.0f}, "
        f"cut {mine_cut * 1e3:.1f} against {theirs_cut * 1e3:.0f}; density {similar.mean():.2f}, {ours.passes} passes "
        f"of {product[0] * 1e3:.2f} ms ({product[1] * 1e3:.2f} by a general product)"
    )
    return step, cut


def varied(count: int) -> Iterator[tuple[np.ndarray, Grid]]:
    """Yield generated descriptors (N, dim): grid, width, size of regions, noise and common direction all vary."""
    for number in range(count):
        rng = numpy_rng(number, "bench", "varied")
        grid = AGREE_GRIDS[number % len(AGREE_GRIDS)]
        dim, noise, common = int(rng.choice((64, 192, 384, 768))), rng.uniform(0.1, 1.5), rng.uniform(0, 1.3)
        tokens = features(grid, dim, number, noise, float(rng.uniform(0.04, 0.12)) * max(grid))
        yield (tokens + common * rng.standard_normal(dim)).astype(np.float32), grid


def photographed(folder: Path) -> Iterator[tuple[np.ndarray, Grid]]:
    """Yield the keys of every block of a random ViT-S for each photograph, in several sizes."""
    backbone = load_backbone("timm:vit_small_patch16_224", pretrained=False, seed=0)
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
        grid = AGREE_GRIDS[number % len(AGREE_GRIDS)]
        pixels = torch.from_numpy(read_image(path)).permute(2, 0, 1)[None] / 127.5 - 1
        shape = [16 * side for side in grid]
        images = torch.nn.functional.interpolate(pixels, shape, mode="bilinear", antialias=True)
        with torch.inference_mode():
            layers = backbone.layers(images, range(1, 13), facet="key")
        yield from ((layer.tokens[0].numpy(), grid) for layer in layers.values())


def compare_boxes(tokens: np.ndarray, grid: Grid) -> tuple[str, int]:
    """Return ``equal``, ``tied seeds``, ``small gap`` or ``unexplained``, and the passes of Lanczos."""
    unit = torch.nn.functional.normalize(torch.from_numpy(tokens), dim=1)
    affinity = np.where((unit @ unit.T).numpy() > 0.2, 1.0, 1e-5)
    degrees = np.diag(affinity.sum(axis=1))
    values, vectors = scipy.linalg.eigh(degrees - affinity, degrees, subset_by_index=[1, 2])
    y, ours = vectors[:, 0], tokencut(tokens, grid)
    assert isinstance(ours, TokenCut)
    seed = int(np.abs(y).argmax())
    if component_of(((y > y.mean()) == (y[seed] > y.mean())).reshape(grid), seed)[1] == ours.box:
        return "equal", ours.passes
    for tied in np.flatnonzero(np.abs(y) >= np.abs(y).max() * (1 - 1e-8)):
        if component_of(((y > y.mean()) == (y[tied] > y.mean())).reshape(grid), int(tied))[1] == ours.box:
            return "tied seeds", ours.passes
    return ("small gap" if values[1] - values[0] < 1e-7 else "unexplained"), ours.passes


def agree(count: int, photographs: Path | None) -> None:
    """Compare the boxes of ``count`` inputs; exit with 1 if too few are equal."""
    sources = [varied(count), photographed(photographs) if photographs else varied(count)]
    tally: Counter[str] = Counter()
    dense = 0
    for number in range(count):
        tokens, grid = next(sources[number % 5 == 4])
        verdict, passes = compare_boxes(tokens, grid)
        tally[verdict] += 1
        dense += passes == 0 and len(tokens) > DENSE_TOKENS
        if verdict != "equal":
            print(f"  input {number}, {grid[0]}x{grid[1]}: {verdict}")
    print(f"boxes of {count} inputs: {dict(tally)}; {dense} were undecided by Lanczos and solved densely")
    if tally["unexplained"] or tally["equal"] < 0.995 * count:
        raise SystemExit(1)


def cut_large() -> None:
    """Cut one input of the grid ``LARGE``."""
    tokens = features(LARGE, 384, 0)
    before = time.process_time()
    found = tokencut(tokens, LARGE)
    took = time.process_time() - before
    assert isinstance(found, TokenCut)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(
        f"{len(tokens):,} tokens: box {found.box}, {found.passes} passes, {took:.1f} s of one thread; peak of the "
        f"process {peak:.2f} GB, of the cut by the rule that plans state {graph_bytes(*tokens.shape) / 1e9:.2f} GB"
    )


# What one process of `--before` does: it prints the boxes, and the least CPU seconds of 16 cuts of the batch.
ONE_SIDE = """
import json, sys, time
import numpy as np, torch
from threadpoolctl import threadpool_limits
from eval.tokencut.cut import tokencut
torch.set_num_threads(1)
tokens, grid, taken = np.load(sys.argv[1]), tuple(map(int, sys.argv[2:4])), []
with threadpool_limits(limits=1):
    for _ in range(17):
        began = time.process_time()
        cuts = tokencut(tokens, grid)
        taken.append(time.process_time() - began)
print(json.dumps([[list(map(int, cut.box)) for cut in cuts], min(taken[1:])]))
"""


def compare_checkouts(other: Path, rounds: int) -> None:
    """Print the ratio of the least CPU times in ``rounds`` of the code in ``other`` and of this one, for each grid.

    Exits with 1 if a box is not the same.
    """
    here = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder:
        for grid in GRIDS:
            batch = Path(folder) / "tokens.npy"
            np.save(batch, np.stack([features(grid, 384, seed) for seed in range(4)]))
            sides: dict[Path, list[float]] = {other.resolve(): [], here: []}
            boxes = []
            for turn in range(rounds):
                for root, seconds_of in list(sides.items())[:: 1 if turn % 2 else -1]:
                    command = [sys.executable, "-c", ONE_SIDE, str(batch), *map(str, grid)]
                    printed = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout
                    found, took = json.loads(printed)
                    boxes.append(found)
                    seconds_of.append(took)
            before, now = (1e3 * min(taken) / 4 for taken in sides.values())
            print(
                f"{grid[0] * grid[1]:5d} tokens: {before:.2f} ms an image, then {now:.2f}; {before / now:.2f} x as fast"
            )
            if any(found != boxes[0] for found in boxes):
                raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--agree", type=int, default=0, metavar="N", help="compare the boxes of N inputs instead")
    parser.add_argument("--large", action="store_true", help="cut one input of 47,600 tokens instead")
    parser.add_argument("--before", type=Path, metavar="DIR", help="compare with the code of this checkout instead")
    parser.add_argument("--photographs", type=Path, metavar="DIR", help="JPEGs that every fifth input is made of")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(limits=1):
        if options.agree:
            agree(options.agree, options.photographs)
            return
        if options.large:
            cut_large()
            return
        if options.before:
            compare_checkouts(options.before, options.repeats)
            return
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
