"""Intervals of the mIoU, and of differences between two, on samples of a made-up population of images.

Part of ``python -m benchmarks.decisions``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from benchmarks.pages import markdown_table
from dinoskip.results.estimates import difference, estimate
from dinoskip.results.statistics import interval, score

F64 = NDArray[np.float64]
CLASSES = (21, 60, 150)
IMAGES = (6, 12, 60, 216, 1449)


@dataclass(frozen=True, eq=False)
class Population:
    """Images of long-tailed classes as two equally good networks label them.

    areas (2, N, 2, K) of intersection and union, labelled (N, K), the true IoUs (K,) of the first network.
    """

    areas: F64
    labelled: F64
    iou: F64


def population(classes: int, images: int, seed: int = 0, *, poor: bool = False) -> Population:
    """Images of one to six classes, the k-th of a frequency k^-1.2 (of a poor network's k^-1).

    Half of what is wrong is taken for a class that is there, half for one of three others. A **poor** network has 30 %
    of every class right and takes the rest for any class, by frequency. What makes an image hard is half the same for
    both networks.
    """
    rng = np.random.default_rng([seed, classes])
    frequency = np.arange(1, classes + 1) ** (-1.0 if poor else -1.2)
    frequency /= frequency.sum()
    skill = logit(np.clip(expit(rng.normal(0.5, 1.2, classes) - np.linspace(0, 1, classes)), 0.02, 0.98))
    confused = rng.integers(0, classes, (classes, 3))
    areas, labelled = np.zeros((2, images, 2, classes)), np.zeros((images, classes))
    for image in range(images):
        there = np.unique(np.r_[0, rng.choice(classes, 1 + rng.poisson(3 if poor else 2), p=frequency)])
        part = rng.lognormal(0, 1, len(there))
        pixels = np.maximum(1, (1000 * part / part.sum()).astype(int))
        labelled[image, there] = pixels
        shared, *of_networks = rng.normal(0, 0.5, (3, 1)) + rng.normal(0, 1, (3, len(there)))
        for network, alone in zip(areas, of_networks, strict=True):
            hard = (shared + alone) / np.sqrt(2)
            right = rng.binomial(pixels, np.clip(0.3 + 0.15 * hard, 0.01, 0.99) if poor else expit(skill[there] + hard))
            network[image, 0, there], network[image, 1, there] = right, pixels
            if poor:
                np.add.at(network[image, 1], rng.choice(classes, len(there), p=frequency), pixels - right)
                continue
            for label, wrong in zip(there, pixels - right, strict=True):
                present = rng.choice(there)
                network[image, 1, present] += wrong // 2 if present != label else 0
                if rng.random() < 0.5:
                    network[image, 1, confused[label, rng.integers(3)]] += wrong - wrong // 2
    total = areas[0].sum(0)
    return Population(areas, labelled, np.divide(total[0], total[1], out=np.zeros(classes), where=total[1] > 0))


@dataclass(frozen=True)
class Coverage:
    """Coverage of the intervals of many samples; nan where no sample has an interval.

    ``given`` is the percent of samples with an interval, ``held`` the percent of these intervals that hold the truth,
    ``width`` their mean width in points, ``deviations`` four standard deviations of the score, in points.
    """

    given: float
    held: float
    width: float
    deviations: float


def coverage(whole: Population, images: int, samples: int, seed: int = 0) -> Coverage:
    """Return the coverage of the population's mIoU, over the sample's classes, by intervals of samples."""
    rng = np.random.default_rng([seed, images])
    held, widths, scores = [], [], []
    for _ in range(samples):
        drawn = rng.integers(0, len(whole.labelled), images)
        records = whole.areas[0, drawn].transpose(0, 2, 1)
        low, high = interval(records, whole.labelled[drawn].sum(0))
        scores.append(score(records))
        if not np.isnan(low):
            held.append(low <= whole.iou[records[..., 1].sum(0) > 0].mean() <= high)
            widths.append(high - low)
    of_given = (100 * float(np.mean(found)) if found else float("nan") for found in (held, widths))
    return Coverage(100 * len(held) / samples, *of_given, 400 * float(np.std(scores)))


def rejected(whole: Population, images: int, samples: int, seed: int = 0) -> tuple[float, float]:
    """Percent of samples in which two networks differ, p < 0.05, and the mean width of the difference's interval.

    They are equal: in each image it is left to chance which of the two is called the first.
    """
    rng = np.random.default_rng([seed, images, 2])
    wrong, widths = [], []
    for _ in range(samples):
        drawn, swapped = rng.integers(0, len(whole.labelled), images), rng.integers(0, 2, images)
        first, second = (whole.areas[which, drawn].transpose(0, 2, 1) for which in (swapped, 1 - swapped))
        apart = difference([estimate(first)], [estimate(second)])
        wrong.append(apart.p < 0.05)
        widths.append(apart.high - apart.low)
    return 100 * float(np.mean(wrong)), 100 * float(np.mean(widths))


def miou_lines(classes: int, poor: bool, samples: int) -> list[list[str]]:
    """Lines of :func:`miou_table`, of ``samples`` of images each: a population in samples of every size."""
    lines, whole = [], population(classes, 6000, poor=poor)
    for images in IMAGES:
        of_score, (wrong, apart) = coverage(whole, images, samples), rejected(whole, images, samples)
        shown = [f"{number:.0f}" for number in (of_score.given, of_score.held)]
        shown += [f"{number:.1f}" for number in (of_score.width, of_score.deviations, wrong, apart)]
        about = ["poor" if poor else "usual", str(classes), str(images)]
        lines.append([*about, *("–" if text == "nan" else text for text in shown)])
    return lines


def miou_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """The table of docs/report.md."""
    head = (
        "network", "classes", "images", "given", "held", "width, points", "4 deviations", "differ",
        "width of the difference",
    )  # fmt: skip
    return [
        "The mIoU's interval: percent of samples that have one, of these percent in which it holds the population's, "
        "of the sample's classes, its mean width and four standard deviations of the score. Two equal networks on the "
        "same images: percent of samples in which they differ, p < 0.05, before any correction. A *poor* network has "
        "30 % of every class right and takes the rest for any class.",
        "", *markdown_table(head, lines),
    ]  # fmt: skip
