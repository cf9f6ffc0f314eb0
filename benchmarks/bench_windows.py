"""Memory and disk of object discovery in windows at the size of COCO: ``python -m benchmarks.bench_windows``.

    python -m benchmarks.bench_windows [--images 19817] [--size 640 480] [--window 2] [--networks 8]
    python -m benchmarks.bench_windows --images 118287 --size 320 240

Every image goes through the whole of it: its file is decoded, its features of 12 blocks (ViT-S: 384 channels, float16)
fill a window, TokenCut's results of 12 blocks and one combination are written, and rows, boxes and records are made as
``dinoskip eval tokencut`` does. Two things are simulated, as a CPU would take days for them: the network gives the
same random numbers for every batch, and the cut of every image is the same one. Neither holds memory beyond its batch.
Files repeat: eight of ``--size`` pixels under as many names as there are images, 40 × 30 tokens each.

Then, what the report does with it: the records of ``--networks`` networks are read, the block of each is chosen by
cross-fitting, and the first is compared with the others, paired over images.

Printed are the most memory beyond the program's own (RssAnon of Linux, every 10 ms), the most bytes below the output
folder while it runs (apparent size, every 0.2 s), those that stay, and what a store of the features would have. Exit
code 1 if memory passes the window, 0.1 GB, eight float32 copies of a batch's images and 4 kB for each image.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import eval.tokencut.evaluation
from benchmarks.measuring import largest, peak
from dinoskip.features import ExportSettings, FeatureStore, FeatureWindows, Transform
from dinoskip.models import Backbone, create_model
from dinoskip.models.backbone import LayerFeatures
from dinoskip.results.records import read_records
from dinoskip.settings.tasks import TaskInputs
from eval.tokencut import TokenCutConfig, tokencut
from eval.tokencut.store import ImageAtBlocks, ImageCuts
from visualize.comparison import Scores
from visualize.rows import principal

FILES, PATCH = 8, 16
IMAGE_BYTES = 4096  # of memory that an image may take beyond the window: boxes, records and rows of 13 × 1 cuts
FIXED_BYTES = 0.1e9  # and whatever the sizes are
COPIES = 8  # of the images of the batch that is being computed, as float32


@dataclass(frozen=True)
class Repeated:
    """An image set of many images that are few files."""

    folder: Path
    ids: tuple[str, ...]
    name: str = "simulated"
    split: str = "train"

    def path(self, i: int) -> Path:
        """Return the file of image ``i``."""
        return self.folder / f"{i % FILES}.ppm"

    def boxes(self, i: int) -> np.ndarray:
        """Return one box, of a size that depends on the image."""
        return np.array([[0, 0, 20 + i % 300, 20 + i % 220]], dtype=np.float32)


def repeated(folder: Path, count: int, size: tuple[int, int]) -> Repeated:
    """Write a few pictures of noise into ``folder``; return a set of ``count`` images that repeats them."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(FILES):
        Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(folder / f"{i}.ppm")
    return Repeated(folder, tuple(f"{i:012d}" for i in range(count)))


def simulated_network(grid: tuple[int, int]) -> Backbone:
    """A ViT-S/16 whose features are the same random numbers for every batch."""
    backbone = Backbone.from_model(create_model("vit_small_patch16"))
    tokens = torch.randn(16, grid[0] * grid[1], backbone.dim)

    def layers(images: torch.Tensor, blocks: Sequence[int], *_: Any) -> dict[int, LayerFeatures]:
        return {block: LayerFeatures(tokens[: len(images)], None, grid) for block in blocks}

    backbone.layers = layers  # type: ignore[assignment, method-assign]
    return backbone


def simulate_cuts(grid: tuple[int, int]) -> None:
    """Replace the cuts by one that is made here, for good; features are read as for a cut."""
    cut = tokencut(np.random.default_rng(0).standard_normal((grid[0] * grid[1], 384)), grid)
    cuts = ImageCuts([cut], None, 0.5)

    def cut_store(part: FeatureStore, groups: Sequence[tuple[int, ...]], *_: Any) -> Iterator[tuple[Any, ImageCuts]]:
        for blocks in groups:
            assert part.tokens(blocks[0]).shape[1] == 384
            for i in range(len(part)):
                yield ImageAtBlocks(blocks, i), cuts

    eval.tokencut.evaluation.cut_store = cut_store


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder, which may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def read_report(out: Path, networks: int) -> None:
    """Use the records of several networks as the report does: choose a block of each, and pair the first with all."""
    read = read_records(out)
    rows = {f"network {i}": [replace(row, model=f"network {i}") for row in read] for i in range(networks)}
    records = {replace(row, model=name): values for name in rows for row, values in read.items()}
    scores = Scores(principal(rows), records)
    for benchmark in scores.benchmarks:
        chosen = [scores.chosen(scores.rows(name, benchmark, scores.last_epoch(name, benchmark))) for name in rows]
        for other in chosen[1:]:
            assert chosen[0] is not None
            assert other is not None
            chosen[0].minus(other)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=19_817)
    parser.add_argument("--size", type=int, nargs=2, default=(640, 480))
    parser.add_argument("--window", type=float, default=2.0, help="GB")
    parser.add_argument("--networks", type=int, default=8)
    args = parser.parse_args()
    count, grid = args.images, (args.size[1] // PATCH, args.size[0] // PATCH)
    simulate_cuts(grid)
    backbone = simulated_network(grid)
    with tempfile.TemporaryDirectory() as scratch:
        dataset, out = repeated(Path(scratch) / "images", count, args.size), Path(scratch) / "out"
        disk: list[int] = []
        opened: list[FeatureWindows] = []

        def evaluate() -> None:
            settings = ExportSettings("all", "key", "none", cls=False, transform=Transform(mode="native"))
            windows = FeatureWindows(backbone, dataset, settings, limit=round(args.window * 1e9))
            opened.append(windows)
            given = TaskInputs(
                TokenCutConfig(), {"store": dataset}, {"store": windows}, None, out, {}, multiscale=[3, 6, 9, 12]
            )
            eval.tokencut.evaluation.evaluate(given)

        began = time.perf_counter()
        memory = peak(lambda: disk.append(largest(lambda: size_of(out), 0.2, evaluate)))
        minutes = (time.perf_counter() - began) / 60
        report, stays = peak(lambda: read_report(out, args.networks)), size_of(out)
    batch = 16 * COPIES * 3 * args.size[0] * args.size[1] * 4
    bound = args.window * 1e9 + FIXED_BYTES + batch + IMAGE_BYTES * count
    print(
        f"{count:,d} images of {grid[1]} × {grid[0]} tokens, 12 blocks: "
        f"a store would have {opened[0].plan.nbytes / 1e9:,.1f} GB"
    )
    print(f"{len(opened[0].windows())} windows of {args.window:g} GB in {minutes:.1f} minutes")
    print(
        f"memory: most {memory / 1e9:.2f} GB, bound {bound / 1e9:.2f}; "
        f"report of {args.networks} networks {report / 1e9:.2f}"
    )
    print(f"disk: most {disk[0] / 1e9:.2f} GB, of which {stays / 1e9:.2f} stay")
    return 0 if memory <= bound else 1


if __name__ == "__main__":
    sys.exit(main())
