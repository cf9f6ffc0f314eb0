# Frozen: rows docs/results/evidence/rule.csv, commit 928ad55c, 2026-11-26.
"""False positives of the third study's rule, where no difference exists: python -m studies.evidence_rule."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import write_csv
from dinoskip.results.statistics import holm
from studies.evidence_answer import PRIMARY
from studies.evidence_page import LEVEL
from studies.evidence_rows import NETWORKS, SEEDS, Paired

SPREAD = {"skip": (0.6, 7.4), "mixing": (0.4, 1.5), "annealed": (1.0, 5.0), "paper": (1.0, 5.0)}
STUDIES = 4000
SHAPES = ("normal", "heavy tails", "skewed", "one in five fails")


def deviations(shape: str, rng: np.random.Generator) -> NDArray[np.float64]:
    """Deviations of the seeds of a network from its mean, float64 (5,): variance 1, but of the last shape 5."""
    if shape == "normal":
        return rng.standard_normal(len(SEEDS))
    if shape == "heavy tails":  # Student's t of 3 degrees
        return rng.standard_t(3, len(SEEDS)) / 3**0.5
    if shape == "skewed":  # exponential
        return rng.exponential(size=len(SEEDS)) - 1
    return rng.standard_normal(len(SEEDS)) + np.where(rng.random(len(SEEDS)) < 0.2, 4.0, -1.0)


def wrong_verdicts(shape: str, studies: int, seed: int = 0) -> float:
    """Share of studies with at least one verdict although no network differs from another."""
    rng, wrong = np.random.default_rng(seed), 0
    for _ in range(studies):
        p = []
        for at in range(len(PRIMARY)):
            by_seed = {name: SPREAD[name][at] * deviations(shape, rng) for name in NETWORKS}
            for name in list(NETWORKS)[1:]:
                difference = by_seed[name] - by_seed["skip"]
                p.append(Paired(dict(enumerate(difference.tolist()))).p)
        wrong += min(holm(p)) < LEVEL
    return wrong / studies


def main() -> int:
    """Print the share for each shape of the seeds' deviations, and write them beside the study's rows."""
    rows = []
    for shape in SHAPES:
        share = 100 * wrong_verdicts(shape, STUDIES)
        print(f"{shape}: {share:.1f} % of {STUDIES:,} studies without a difference", flush=True)
        rows.append({"deviations": shape, "studies": STUDIES, "wrong": f"{share:.2f}"})
    write_csv(Path("docs/results/evidence/rule.csv"), ("deviations", "studies", "wrong"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
