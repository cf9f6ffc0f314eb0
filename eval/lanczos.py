"""The cut vector by Lanczos: a few products with the 0/1 matrix instead of a dense eigendecomposition.

With s = degree^(-1/2) the vector is y = s * u, u the second eigenvector of the operator v -> s * (A (s * v)), whose
first one, sqrt(degree), is known and deflated. Everything is float64 with full reorthogonalisation: float32 products
alone change boxes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dinoskip.randomness import numpy_rng
from eval.graph import F64, CutVector, Graph

FIRST_CHECK, CHECK_EVERY, MAX_PASSES = 8, 4, 160
RESIDUAL = 1e-11  # of the unit vector u; one check more than 1e-8 takes, and y agrees with a dense solver to ~1e-10/gap
ROUNDING = 2e-16  # a token; error of the operator and the basis
BREAKDOWN = 1e-12  # length below which a new direction is rounding noise


def lanczos(graph: Graph, twins: NDArray[np.intp]) -> Iterator[CutVector]:
    """Yield ever more accurate cut vectors of ``graph``, nothing where the method cannot be trusted.

    The start is a fixed random vector averaged over ``twins`` (class numbers (n,)): the eigenvectors that differ
    between twins have eigenvalue 1 and are not wanted, and a start that depends on the degrees alone would miss
    vectors that are antisymmetric under a symmetry of the graph.
    """
    n = len(graph.degree)
    s = graph.degree**-0.5
    limit = min(MAX_PASSES, n - 1)
    basis = np.empty((limit + 2, n))
    basis[0] = np.sqrt(graph.degree / graph.degree.sum())
    small = np.zeros((limit, limit))  # the operator in the basis, lower triangle of a tridiagonal matrix
    length = _append(basis, 0, _start(twins))
    if length < BREAKDOWN:
        return
    for j in range(1, limit + 1):
        scaled = s * basis[j]
        product = s * (graph.weight * (graph.edges @ scaled) + graph.floor * scaled.sum())
        small[j - 1, j - 1] = basis[j] @ product
        length = _append(basis, j, product)
        closed = length < BREAKDOWN
        if j < limit:
            small[j, j - 1] = length
        if not (closed or j == limit or (j >= FIRST_CHECK and (j - FIRST_CHECK) % CHECK_EVERY == 0)):
            continue
        if closed and j < twins.max():  # fewer directions than classes of twins: some eigenvalue is multiple
            return
        candidate = _candidate(small[:j, :j], length, basis[1 : j + 1], s)
        if candidate is not None:
            yield candidate
        if closed:
            return


def _start(twins: NDArray[np.intp]) -> F64:
    values = numpy_rng(0, "tokencut", "start", len(twins)).standard_normal(len(twins))
    return (np.bincount(twins, values) / np.bincount(twins))[twins]


def _append(basis: F64, last: int, vector: F64) -> float:
    """Make ``vector`` orthogonal to rows 0..last of ``basis`` (twice is enough), store it next, return its length."""
    known = basis[: last + 1]
    for _ in range(2):
        vector = vector - (known @ vector) @ known
    length = float(np.linalg.norm(vector))
    basis[last + 1] = vector / length if length >= BREAKDOWN else 0.0
    return length


def _candidate(small: F64, length: float, basis: F64, s: F64) -> CutVector | None:
    """Return the topmost Ritz vector if it has converged, else None."""
    values, vectors = np.linalg.eigh(small)
    gap = float(values[-1] - values[-2]) if len(values) > 1 else float(values[-1])
    residual = length * abs(float(vectors[-1, -1]))
    if not (residual <= RESIDUAL and residual <= gap / 4):
        return None
    y = s * (vectors[:, -1] @ basis)
    angle = (residual + ROUNDING * len(s)) / gap
    return CutVector(y, angle * (s + s.mean()), float(1.0 - values[-1]), gap, len(values))
