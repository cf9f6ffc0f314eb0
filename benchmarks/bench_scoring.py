"""Classes at full label size against ``interpolate`` + ``argmax(1)``, in one process. Aim: at least 4 times as fast.

    python -m benchmarks.bench_scoring [--heads 5] [--grid 14] [--repeats 3]

Logits are of heads fitted to made-up tokens (regions of random classes, noise) at several learning rates, and pure
noise, where far more classes may win at a pixel than any fitted head leaves. The label sizes are those of VOC2012 and
ADE20K photographs. Ours is ``eval.upsampling.upsampled_classes``; the baseline is written out below.
Pixels whose classes differ are counted: rounding decides them, for the two sum in another order.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.measuring import compare
from eval.upsampling import upsampled_classes

CASES = ((21, (375, 500)), (150, (512, 683)), (171, (375, 500)))  # classes and label sizes
RATES = (1e-4, 1e-2)  # the least and the largest learning rate
IMAGES, BATCH, DIM, EPOCHS = 64, 16, 192, 10


def baseline(logits: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return the classes (L, H, W) of logits (L, K, h, w)."""
    return F.interpolate(logits, size=size, mode="bilinear", align_corners=False).argmax(1)


def regions(classes: int, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return a label map uint8 (H, W) of ten regions around random points, as many classes or fewer."""
    points = rng.uniform(0, 1, (10, 2)) * size
    y, x = np.mgrid[: size[0], : size[1]]
    nearest = ((y[..., None] - points[:, 0]) ** 2 + (x[..., None] - points[:, 1]) ** 2).argmin(-1)
    label_map: np.ndarray = rng.integers(0, classes, 10).astype(np.uint8)[nearest]
    return label_map


def fitted_logits(classes: int, size: tuple[int, int], grid: int, rates: tuple[float, ...]) -> torch.Tensor:
    """Return (L, K, grid, grid): logits of one image by heads fitted to it and others at several learning rates.

    A token is the mean of its pixels' classes, each a random direction, and noise of the same size.
    """
    rng = np.random.default_rng(classes)
    directions = rng.standard_normal((classes, DIM)).astype(np.float32)
    labels = [regions(classes, size, rng) for _ in range(IMAGES)]
    near = (np.arange(4 * grid) + 0.5) / (4 * grid)
    rows, columns = ((near * n).astype(int) for n in size)
    seen = np.stack([directions[label[rows][:, columns]] for label in labels])
    tokens = seen.reshape(IMAGES, grid, 4, grid, 4, DIM).mean((2, 4)).reshape(IMAGES, grid * grid, DIM)
    tokens += rng.standard_normal(tokens.shape, dtype=np.float32)
    truth = np.stack([label[rows[2::4]][:, columns[2::4]] for label in labels]).reshape(IMAGES, -1)
    x, y = torch.from_numpy(tokens), torch.from_numpy(truth).long()
    maps = []
    for rate in rates:
        head = torch.nn.Linear(DIM, classes)
        optimizer = torch.optim.AdamW(head.parameters(), lr=rate)
        for step in range(EPOCHS * IMAGES // BATCH):
            part = slice(step * BATCH % IMAGES, step * BATCH % IMAGES + BATCH)
            optimizer.zero_grad()
            loss = F.cross_entropy(head(x[part]).flatten(0, 1), y[part].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        maps.append(head(x[0]).detach().T.view(classes, grid, grid))
    return torch.stack(maps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=5)
    parser.add_argument("--grid", type=int, default=14)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rates = tuple(np.geomspace(*RATES, options.heads).tolist())
    for classes, size in CASES:
        fitted = fitted_logits(classes, size, options.grid, rates)
        noise = torch.randn(fitted.shape, generator=torch.Generator().manual_seed(0))
        for name, logits in (("fitted heads", fitted), ("noise", noise)):
            different = int((upsampled_classes(logits, size) != baseline(logits, size)).sum())
            fast, slow = (partial(function, logits, size) for function in (upsampled_classes, baseline))
            ratio, ours, theirs = compare(fast, slow, options.repeats, times=3)
            pixels = len(logits) * size[0] * size[1]
            print(
                f"{classes:4d} classes, {size[1]}x{size[0]}, {len(logits)} heads, {name:12s}: {ratio:5.1f} x "
                f"({ours * 1e3:.1f} ms against {theirs * 1e3:.0f}); {different} of {pixels:,} pixels differ"
            )


if __name__ == "__main__":
    main()
