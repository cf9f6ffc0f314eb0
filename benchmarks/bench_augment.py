"""Claim: on one CPU thread, augmenting an image with 2×224 + 8×96 crops takes half of what it took, with equal bits.

Crops of the bundled photographs are augmented by vectors that are drawn as in training, by the augmentation and by its
plain form (``plain_augment.py``). A part is what it adds where it alone is done to the crops for which it was drawn.
Times are of the processor, rounds of all of them alternate, and of each the least is taken.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_augment [--images 16] [--rounds 10]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring import seconds
from benchmarks.plain_augment import plain_augment
from dinoskip.data.augment import FLIP, GREY, JITTER, SIGMA, SOLARISE, augment, view_parameters
from dinoskip.data.config import AugmentConfig
from dinoskip.data.sprites import photo

GROUPS = ((slice(0, 2), 224), (slice(2, 10), 96))
PARTS = {"flip": FLIP, "jitter": JITTER, "grey": GREY, "blur": SIGMA, "solarise": SOLARISE}

Augmentation = Callable[[Tensor, Tensor], Tensor]
Views = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class PartTime:
    """Milliseconds of processor time an image before and after."""

    name: str
    before: float
    after: float


def drawn_views(images: int) -> Views:
    """Return crops uint8 (N, 3, S, S), laid out as workers give them, and vectors, of global and of local views."""
    picture = torch.from_numpy(photo("coffee").copy())
    height, width = picture.shape[:2]
    vectors = view_parameters(AugmentConfig(), 10, 0, 0, np.arange(images)).swapaxes(0, 1)
    views = []
    for part, size in GROUPS:
        host = np.ascontiguousarray(vectors[part]).reshape(-1, vectors.shape[2])
        corners = [(37 * number % (height - size), 53 * number % (width - size)) for number in range(len(host))]
        crops = torch.stack([picture[top : top + size, left : left + size] for top, left in corners])
        views.append((crops.permute(0, 3, 1, 2), torch.from_numpy(host)))
    return views


def with_only(views: Views, column: int | None) -> Views:
    """Return the views with all operations switched off but that of ``column``."""
    off = [other for other in PARTS.values() if other != column]
    changed = [(crops, vectors.clone()) for crops, vectors in views]
    for _, vectors in changed:
        vectors[:, off] = 0
    return changed


def part_times(images: int, rounds: int) -> list[PartTime]:
    """Time bytes to normalised floats with no operation, what each operation adds, and all of it."""
    views = drawn_views(images)
    none = "to floats, normalise"
    cases = {none: with_only(views, None)}
    cases |= {name: with_only(views, column) for name, column in PARTS.items()} | {"all": views}
    ways: tuple[Augmentation, Augmentation] = (plain_augment, augment)
    least = {name: [float("inf"), float("inf")] for name in cases}
    for _ in range(rounds + 1):  # the least leaves out the first, which warms up
        for name, case in cases.items():
            for column, way in enumerate(ways):
                taken = seconds(lambda way=way, case=case: [way(*view) for view in case])  # type: ignore[misc]
                least[name][column] = min(least[name][column], 1e3 * taken / images)
    base = dict.fromkeys(PARTS, least[none])
    return [
        PartTime(name, *(value - other for value, other in zip(values, base.get(name, (0.0, 0.0)), strict=True)))
        for name, values in least.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=16, help="images of a batch (default: 16)")
    parser.add_argument("--rounds", type=int, default=10, help="times that each is measured (default: 10)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    equal = all(torch.equal(augment(*view), plain_augment(*view)) for view in drawn_views(arguments.images))
    print(f"{'ms an image':24}{'before':>8}{'after':>8}{'ratio':>8}")
    for part in part_times(arguments.images, arguments.rounds):
        ratio = f"{part.before / part.after:8.2f}" if part.after > 0.1 else ""  # less is lost in the differences
        print(f"{part.name:24}{part.before:8.2f}{part.after:8.2f}{ratio}")
    print(f"equal bit for bit: {equal}")


if __name__ == "__main__":
    main()
