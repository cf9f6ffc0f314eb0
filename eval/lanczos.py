"""The cut vector by Lanczos: a few products with the 0/1 matrix instead of a dense eigendecomposition.

With s = degree^(-1/2) the vector is y = s * u, u the second eigenvector of the operator v -> s * (A (s * v)), whose
first one, sqrt(degree), is known and deflated. Everything is float64 with full reorthogonalisation: float32 products
change boxes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eval.graph import F64, CutVector, Graph

FIRST_CHECK, MAX_PASSES = 8, 160
CHEAP_TOKENS = 1000  # up to here a product costs no more than a check, so only every second one is checked
RESIDUAL = 5e-11  # of the unit vector u, so that y agrees with a dense solver to 1e-10/gap; 1e-8 saves three passes
ROUNDING = 2e-16  # a token; error of the operator and the basis
BREAKDOWN = 1e-12  # length below which a new direction is rounding noise


def lanczos(graph: Graph, image: F64, twins: NDArray[np.intp]) -> CutVector | None:
    """Return the cut vector of ``graph`` with error bounds, None where the method cannot be trusted.

    ``image`` and ``twins`` are those of :meth:`Graph.probe`. The start is the operator's image of a fixed random
    vector, averaged over twins, so that the search stays among vectors that are equal on twins: the others have
    eigenvalue 1 (tokens with the same row), or one above that of the cut between the isolated tokens and the rest. A
    start that depends on the degrees alone would miss vectors that are antisymmetric under a symmetry of the graph.
    """
    n = len(graph.degree)
    s = graph.degree**-0.5
    limit = min(MAX_PASSES, n - 1)
    basis = np.empty((limit + 2, n))
    basis[0] = np.sqrt(graph.degree / graph.degree.sum())
    small = np.zeros((limit + 1, limit + 1))  # the operator in the basis: the lower triangle of a tridiagonal matrix
    start = (np.bincount(twins, s * image) / np.bincount(twins))[twins]
    length = float(np.linalg.norm(start))
    if length == 0 or _append(basis, 0, start / length) < BREAKDOWN:
        return None
    check_every = 1 if n > CHEAP_TOKENS else 2
    for j in range(1, limit + 1):
        product = s * graph.apply(s * basis[j])
        small[j - 1, j - 1] = basis[j] @ product
        length = small[j, j - 1] = _append(basis, j, product)
        closed = length < BREAKDOWN
        if not closed and (j < FIRST_CHECK or (j - FIRST_CHECK) % check_every):
            continue
        if closed and j < twins.max():  # fewer directions than classes of twins: some eigenvalue is multiple
            return None
        values, vectors = np.linalg.eigh(small[:j, :j])
        gap = float(values[-1] - values[-2]) if j > 1 else float(values[-1])
        residual = length * abs(float(vectors[-1, -1]))
        if closed or residual <= min(RESIDUAL, gap / 4):
            y = s * (vectors[:, -1] @ basis[1 : j + 1])
            angle = (residual + ROUNDING * n) / gap
            gap = min(gap, _twin_gap(graph, twins, float(values[-1])))
            return CutVector(y, angle * (s + s.mean()), float(1.0 - values[-1]), gap, j)
    return None


def _append(basis: F64, last: int, vector: F64) -> float:
    """Make ``vector`` orthogonal to rows 0..last of ``basis``, store it next, return its length."""
    known = basis[: last + 1]
    before = float(np.linalg.norm(vector))
    for _ in range(2):  # twice is enough, and once if little was taken away
        vector = vector - (known @ vector) @ known
        length = float(np.linalg.norm(vector))
        if length > 0.1 * before:
            break
    basis[last + 1] = vector / length if length >= BREAKDOWN else 0.0
    return length


def _twin_gap(graph: Graph, twins: NDArray[np.intp], top: float) -> float:
    """Return how far ``top`` is above the operator's eigenvalues for vectors that differ between twins, inf without."""
    shared = (np.bincount(twins) > 1)[twins]
    alone = shared & graph.isolated
    gap = top if (shared & ~alone).any() else np.inf
    return min(gap, top - graph.weight / float(graph.degree[alone][0])) if alone.any() else gap
