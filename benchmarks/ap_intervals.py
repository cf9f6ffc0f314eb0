"""Intervals of AP on samples of a made-up population of images, by the bootstrap and as they are now.

    python -m benchmarks.ap_intervals                            # about 8 minutes on one core
    python -m benchmarks.ap_intervals --samples 60               # quicker and coarser

Two equally good detectors find objects of long-tailed classes. An interval is held against the population's AP, of the
classes that the sample has. *Equal scores* is MaskCut: up to three boxes an image, all with the score 1, of one class.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.pages import markdown_table
from dinoskip.results.average_precision import (
    MatchedDetections,
    average_precision,
    matched_detections,
    mean_average_precision,
    mixed,
    weighted_average_precision,
)
from dinoskip.results.estimates import difference, estimate
from dinoskip.results.statistics import ENDS, interval
from dinoskip.runtime.environment import machine
from dinoskip.runtime.randomness import numpy_rng

F64 = NDArray[np.float64]
OVERLAPS = np.linspace(0.5, 0.95, 10)[:, None]
IMAGES = (6, 12, 60, 216, 1449)
CLASSES = (1, 5, 20, 80)
_WHOLE = 20_000  # images of a population
_RESAMPLES = 300
_DRAWS = 2**22  # numbers drawn at once: 32 MiB
PARTS = {"AP50": (0, 1), "AP": (0, 10)}


def resample_counts(images: int, resamples: int, seed: int) -> Iterator[F64]:
    """Yield how often each image is drawn, (m, images) of whole numbers, rows in all ``resamples``; bounded memory.

    Images are drawn with replacement, as many as there are. A function of the number of images and the seed alone, so
    that scores of the same images share their resamples.
    """
    rng = numpy_rng(seed, "bootstrap", images)
    step = max(1, _DRAWS // images)
    for at in range(0, resamples, step):
        rows = min(step, resamples - at)
        chosen = rng.integers(0, images, (rows, images)) + images * np.arange(rows)[:, None]
        yield np.bincount(chosen.ravel(), minlength=rows * images).reshape(rows, images).astype(np.float64)


def percentile_interval(scores: F64) -> tuple[float, float]:
    """Return the ends of the interval that resampled scores (m,) span, those that are nan left out; nan for none."""
    finite = scores[np.isfinite(scores)]
    if not finite.size:
        return math.nan, math.nan
    low, high = np.quantile(finite, ENDS)
    return float(low), float(high)


def population(classes: int, images: int = _WHOLE, *, equal_scores: bool = False) -> list[MatchedDetections]:
    """Return what two equally good detectors find in the same images.

    An image has one class and 1.5 more on average, the k-th of frequency k^-1.2, one to several objects of each. Skill
    differs by class, images are hard or easy. Detectors find 70 % of the objects, at an overlap and with a score that
    go with the same merit, and three false ones an image of lower scores, half of them of classes that are there.
    """
    rng = np.random.default_rng([classes, equal_scores])
    frequency = np.arange(1, classes + 1) ** -1.2
    frequency /= frequency.sum()
    skill, hard = rng.normal(0.3, 0.8, classes), rng.normal(0, 0.7, images)
    kinds = 1 + rng.poisson(1.5, images)
    where = np.repeat(np.arange(images), kinds)
    kind = rng.choice(classes, len(where), p=frequency)
    first = np.cumsum(kinds) - kinds
    own = kind, first, kinds
    count = rng.geometric(0.5, len(where))
    of_objects = np.repeat(where, count), np.repeat(kind, count)
    objects = np.zeros((images, classes), dtype=np.int64)
    np.add.at(objects, of_objects, 1)
    if equal_scores:
        return [_boxes(hard, objects, rng) for _ in range(2)]
    return [_detections(skill, hard, of_objects, objects, frequency, own, rng) for _ in range(2)]


def _detections(
    skill: F64, hard: F64, of_objects: tuple[NDArray[np.int64], NDArray[np.int64]], objects: NDArray[np.int64],
    frequency: F64, own: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], rng: np.random.Generator,
) -> MatchedDetections:  # fmt: skip
    where, kind = of_objects
    merit = skill[kind] + hard[where] + rng.normal(0, 0.7, len(where))
    found = rng.random(len(where)) < expit(merit + 0.8)
    overlap = expit(0.6 + 0.6 * merit + rng.normal(0, 0.8, len(where)))[found]
    score = expit(1.2 * merit + rng.normal(0, 1, len(where)))[found]
    false = np.repeat(np.arange(len(hard)), rng.poisson(3, len(hard)))
    kinds, first, count = own
    of_image = kinds[first[false] + (rng.random(len(false)) * count[false]).astype(np.int64)]
    any_kind = rng.choice(len(frequency), len(false), p=frequency)
    false_kind = np.where(rng.random(len(false)) < 0.5, of_image, any_kind)
    false_score = expit(-1.2 + 0.7 * hard[false] + rng.normal(0, 1.2, len(false)))
    hits = np.concatenate([overlap, np.zeros(len(false))]) >= OVERLAPS
    return matched_detections(
        np.concatenate([where[found], false]), np.concatenate([score, false_score]),
        np.concatenate([kind[found], false_kind]), hits, np.zeros_like(hits), objects,
    )  # fmt: skip


def _boxes(hard: F64, objects: NDArray[np.int64], rng: np.random.Generator) -> MatchedDetections:
    count = rng.integers(1, 4, len(hard))
    where = np.repeat(np.arange(len(hard)), count)
    number = np.arange(len(where)) - np.repeat(np.cumsum(count) - count, count)
    overlap = expit(-0.2 + hard[where] + rng.normal(0, 1, len(where))) * (number < objects[where, 0])
    hits = overlap >= OVERLAPS
    return matched_detections(where, np.ones(len(where)), np.zeros(len(where)), hits, np.zeros_like(hits), objects)


def bootstrap_interval(records: MatchedDetections) -> tuple[float, float]:
    """The percentile bootstrap over images."""
    draws = resample_counts(len(records), _RESAMPLES, 0)
    return percentile_interval(np.concatenate([weighted_average_precision(records, times) for times in draws]))


@dataclass(frozen=True)
class Coverage:
    """Percent of samples whose interval holds the population's AP, by the bootstrap (``before``) and ``now``, of those
    with one (``given``, percent); mean widths in points; percent in which two equal networks differ, p < 0.05."""

    before: float
    before_width: float
    now: float
    width: float
    given: float
    differ: float


def coverage(whole: Sequence[MatchedDetections], images: int, samples: int, bootstrapped: int) -> Coverage:
    """Draw ``samples`` of images; of the first ones alone intervals by the bootstrap, too."""
    rng = np.random.default_rng([images, whole[0].shape[1], whole[0].overlaps[1]])
    by_class = average_precision(whole[0], tied=True).mean(0)
    before, now, differ = [], [], []
    for sample in range(samples):
        drawn = rng.integers(0, len(whole[0]), images)
        pair = [replace(one[drawn], order=np.arange(images)) for one in whole]
        swapped = rng.random(images) < 0.5  # so that the two networks are equal
        first, second = mixed(pair[0], pair[1], swapped), mixed(pair[1], pair[0], swapped)
        truth = float(by_class[pair[0].objects.sum(0) > 0].mean())
        for ends, of in ((interval(pair[0]), now), (bootstrap_interval(pair[0]), before))[
            : 1 + (sample < bootstrapped)
        ]:
            of.append((ends[0] <= truth <= ends[1], ends[1] - ends[0]))
        differ.append(difference([estimate(first)], [estimate(second)]).p < 0.05)
    held, widths = np.array(now).T
    given = np.isfinite(widths)
    wide, width = np.array(before).T
    shares = (wide.mean(), width.mean(), held[given].mean() if given.any() else np.nan,
              widths[given].mean() if given.any() else np.nan, given.mean(), np.mean(differ))  # fmt: skip
    return Coverage(*(100 * float(share) for share in shares))


def table_of_coverage(samples: int, images: Sequence[int] = IMAGES, classes: Sequence[int] = CLASSES) -> list[str]:
    """The table, as Markdown; a quarter of the samples for more than 1,000 images."""
    lines = []
    for kinds, equal in ((1, True), *((kinds, False) for kinds in classes)):
        whole = population(kinds, equal_scores=equal)
        name = "1, equal scores" if equal else str(kinds)
        for metric, part in PARTS.items():
            scored = [one.at(*part) for one in whole]
            value = f"{100 * mean_average_precision(scored[0]):.0f}"
            for count in images:
                several = samples if count < 1000 else max(10, samples // 4)
                found = coverage(scored, count, several, max(10, several // 4))
                now = ("", "") if np.isnan(found.now) else (f"{found.now:.0f}", f"{found.width:.0f}")
                before = f"{found.before:.0f}", f"{found.before_width:.0f}"
                numbers = (*before, *now, f"{found.given:.0f}", f"{found.differ:.0f}")
                lines.append([name, metric, value, str(count), *numbers])
                print(", ".join(lines[-1]), file=sys.stderr, flush=True)
    head = ("classes", "score", "of all", "images", "bootstrap", "width", "now", "width", "given", "equal differ")
    return markdown_table(head, lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200, help="of up to 1,000 images (default: 200)")
    arguments = parser.parse_args()
    print(machine())
    print("\n".join(table_of_coverage(arguments.samples)))


if __name__ == "__main__":
    main()
