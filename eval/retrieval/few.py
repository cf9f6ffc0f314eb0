"""Few labelled images: class-balanced draws from the training images, as open-hummingbird's published lists are.

What is published are the lists (vpariza/open-hummingbird-eval, ``file_sets``), not the code that drew them. Their sizes
are those of an equal number of images for each class but the background, and of one seed the smaller list lies inside
the larger; the rule here has both properties (docs/retrieval.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.segmentation import BACKGROUND, SegmentationDataset
from dinoskip.errors import DataError
from dinoskip.runtime.randomness import derive
from eval.retrieval.config import RetrievalConfig

LARGEST = 8  # smaller parts than 1/8 are drawn from the classes' lists of 1/8


@dataclass(frozen=True, eq=False)
class Draw:
    """Training images that are remembered: positions int64, ascending. ``part`` is said by rows, as is ``note``."""

    part: str
    images: NDArray[np.int64]
    seed: int
    note: str


def images_per_class(images: int, classes: int, fraction: int) -> int:
    """Images of each class in 1 / ``fraction`` of ``images``, rounded half to even; at least one."""
    return max(1, round(images / (fraction * classes)))


def balanced_draw(
    has: NDArray[np.bool_], ids: Sequence[str], fractions: Sequence[int], seed: int
) -> dict[int, NDArray[np.int64]]:
    """Return for each of ``fractions`` n the positions of about 1 / n of the images, ascending.

    ``has`` (N, C) says which classes an image has, ``ids`` are their names. The images are shuffled by seed and id;
    from the rarest class to the most frequent, each takes the first images that have it and are not taken yet. Of 1/16
    and so on it is the first of those that a class has of 1/8, so draws of one seed lie inside one another; those of
    1/7 to 1/2 are draws of their own. The images of a fraction do not depend on which others are asked for.
    """
    order = np.array(sorted(range(len(ids)), key=lambda i: (derive(seed, "few labels", ids[i]), ids[i])))
    return {n: _of_fraction(has, order, n) for n in fractions}


def _of_fraction(has: NDArray[np.bool_], order: NDArray[np.int64], fraction: int) -> NDArray[np.int64]:
    """Positions of about 1 / ``fraction`` of the images, ascending; ``order`` (N,) are those of the shuffled images."""
    count, classes = has.shape
    most, own = (images_per_class(count, classes, n) for n in (min(LARGEST, fraction), fraction))
    free, taken = np.ones(count, dtype=np.bool_), []
    for number in np.argsort(has.sum(0), kind="stable"):
        with_class = order[(has[:, number] & free)[order]][:most]
        free[with_class] = False
        taken.append(with_class[:own])
    return np.sort(np.concatenate(taken))


def draws(
    config: RetrievalConfig,
    dataset: SegmentationDataset,
    ids: Sequence[str],
    pixels: NDArray[np.integer],
    lists: Mapping[str, Sequence[str]],
) -> list[Draw]:
    """Return the draws that settings ask for, those of one part one after the other, then lists of equal length.

    ``ids`` are the training images, ``pixels`` (N, K) their labelled pixels by class, ``lists`` ids by name. Raises
    :class:`DataError` for a list that names another image, and if no class has an image.
    """
    drawn_subsets: list[Draw] = []
    if config.few:
        counted = [number for number, name in enumerate(dataset.class_names) if name != BACKGROUND]
        has = pixels[:, counted] > 0
        if not has.any():
            raise DataError(f"{dataset.name} {dataset.split}: no image has a class but the {BACKGROUND}")
        drawn = {seed: balanced_draw(has, ids, config.few, seed) for seed in config.draws}
        for n in config.few:
            sizes = [len(drawn[seed][n]) for seed in config.draws]
            said = str(sizes[0]) if len(set(sizes)) == 1 else f"{min(sizes)} to {max(sizes)}"
            part = f"1/{n} of {dataset.list_name} by class ({said} images)"
            drawn_subsets += [Draw(part, drawn[seed][n], seed, f"seed {seed}") for seed in config.draws]
    where = {name: i for i, name in enumerate(ids)}
    for name, listed in sorted(lists.items(), key=lambda item: -len(item[1])):
        if foreign := [name for name in listed if name not in where]:
            raise DataError(f"list {name}: image {foreign[0]!r} is not in {dataset.name} {dataset.list_name}")
        part = f"lists of {len(listed)} images of {dataset.list_name}"
        number = sum(draw.part == part for draw in drawn_subsets) + 1
        images = np.array(sorted(where[name] for name in listed))
        drawn_subsets.append(Draw(part, images, number, f"{name}, seed {number}"))
    return drawn_subsets
