"""The cut vector: the second generalised eigenvector of (D - A, D), by Lanczos, in doubt by the dense solver.

With s = degree^(-1/2) the vector is y = s * u, u the second eigenvector of the operator v -> s * (A (s * v)), whose
first one, sqrt(degree), is known and deflated. Lanczos needs 12 to 25 products with A where a dense solver needs about
n. Everything is float64 with full reorthogonalisation: float32 products change boxes. A batch of graphs is worked on at
once; graphs leave it as they converge. Arrays are of either kind of :data:`eval.tokencut.graph.Array`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from eval.tokencut.graph import F64, ISOLATED, Array, Graphs, array_like, build_graphs, on_host

DENSE_TOKENS = 48  # up to here the dense solver is as fast
TIE = 1e-8  # tokens this close (relative) are tied: the reference's choice among them depends on the BLAS
RESOLVED = 1e-10  # relative error below which "tied" can be told from "nearly tied"
FIRST_CHECK, MAX_PASSES = 8, 160
RESIDUAL = 5e-11  # of the unit vector u, so that y agrees with a dense solver to 1e-10/gap; 1e-8 saves three passes
ROUNDING = 2e-16  # a token; error of the operator and the basis
BREAKDOWN = 1e-12  # length below which a new direction is rounding noise


@dataclass(frozen=True, eq=False)
class CutVector:
    """Second generalised eigenvector y (n,) of (D - A, D), y'Dy = 1, sign open.

    ``error`` (n,) bounds the error of each entry (0 from the dense solver, the last resort); ``eigenvalue`` is the
    second smallest, ``gap`` its distance to the third; ``passes`` counts products with A, 0 for the dense solver.
    ``complete``: of a binary graph that joins every token to every other, where every vector that sums to zero is one.
    """

    y: F64
    error: F64
    eigenvalue: float
    gap: float
    passes: int
    complete: bool = False


def cut_vectors(graphs: Graphs) -> list[CutVector]:
    """Return the cut vectors, by Lanczos where that decides split and seed, else by the dense solver."""
    count, n = graphs.degree.shape
    vectors: list[CutVector | None] = [None] * count
    facts = graphs.facts
    if n > DENSE_TOKENS and not all(facts.complete):
        candidates = lanczos(graphs)
        vectors = [vec if vec and _decides(vec, c) else None for vec, c in zip(candidates, facts.codes, strict=True)]
    for i, whole in enumerate(facts.complete):
        vectors[i] = complete_vector(n, graphs.floor) if whole else vectors[i]
    return [dense_vector(graphs, i) if vector is None else vector for i, vector in enumerate(vectors)]


def _decides(vector: CutVector, codes: F64) -> bool:
    """Whether no value within the error bounds of ``vector`` would move a token across the mean or change the seed."""
    if (np.abs(vector.y - vector.y.mean()) <= 2 * vector.error).any():
        return False
    size = np.abs(vector.y)
    top = int(size.argmax())
    slack = vector.error + vector.error[top]
    rivals = (size >= size[top] * (1 - TIE) - slack) & (codes != codes[top])
    return bool((slack[rivals] <= RESOLVED * size[top]).all())


def dense_vector(graphs: Graphs, i: int) -> CutVector:
    """Solve (D - A) y = lambda D y of graph ``i`` as the reference does: all n^3 of it, on the host.

    For few tokens and for undecided cuts. Where eigenvalues are multiple, the last bits of the matrices and the number
    of BLAS threads decide which eigenvector it is: the degrees are row sums of A, as the reference's are, and one
    thread is used, so that it is the same on every number of cores.
    """
    affinity = graphs.dense(i)
    degrees = np.diag(affinity.sum(axis=1))
    try:
        with _blas().limit(limits=1, user_api="blas"):
            values, vectors = scipy.linalg.eigh(
                degrees - affinity,
                degrees,
                subset_by_index=[1, 2],
                overwrite_a=True,
                overwrite_b=True,
                check_finite=False,
            )
    except np.linalg.LinAlgError as error:
        raise ValueError(f"the graph's eigenvectors could not be computed: {error}") from error
    y = vectors[:, 0]
    return CutVector(y, np.zeros_like(y), float(values[0]), float(values[1] - values[0]), 0)


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    """Return what sets the number of BLAS threads; looking for the libraries takes as long as a small graph."""
    return ThreadpoolController()


@lru_cache(maxsize=256)
def complete_vector(n: int, eps: float) -> CutVector:
    """Return :func:`dense_vector` of the complete binary graph of ``n`` tokens, solved once: a collapsed network has
    it at every image. Every vector that sums to zero is an eigenvector, so the solver's is as good as another.
    """
    return replace(dense_vector(build_graphs(torch.ones(1, n, n), 0.0, eps), 0), complete=True)


def lanczos(graphs: Graphs) -> list[CutVector | None]:
    """Return the cut vector of each graph with error bounds, None where the method cannot be trusted.

    The start is the operator's image of a fixed random vector (:meth:`Graphs.probe`), averaged over twins, so that the
    search stays among vectors that are equal on twins: the others have eigenvalue 1 (tokens with the same row), or one
    above that of the cut between the isolated tokens and the rest. A start that depends on the degrees alone would miss
    vectors that are antisymmetric under a symmetry of the graph. A GPU is waited for once a check of convergence, and
    once for all vectors.
    """
    count, n = graphs.degree.shape
    degree, alone, start, classes, _ = graphs.facts
    twins, limit = _Twins.of(classes, degree, alone, graphs.weight), min(MAX_PASSES, n - 1)
    bounds: dict[int, _Bounds] = {}  # of the graphs that are done, in the order of ``solved``
    solved: list[Array] = []  # their vectors, which are read together at the end
    space = _KrylovSpace.begin(graphs, degree, alone, start, limit)
    here, sought = np.arange(count), np.ones(count, dtype=bool)  # which graphs ``space`` is of; which are not done
    check = FIRST_CHECK
    for j in range(1, limit + 1):
        space.advance(j)
        if j < min(check, limit):
            continue
        tops, (top, gap, residual, directions) = space.check(j)
        # Closed with fewer directions than classes of twins: some eigenvalue is multiple.
        lost = sought & (directions <= j) & ((directions < twins.classes[here] - 1) | (top <= 0))
        done = sought & ~lost & (residual <= RESIDUAL) & (residual < gap / 4)
        rows = np.flatnonzero(done)
        if len(rows):
            solved.append(space.solutions(rows, tops))
        for row in rows.tolist():
            i = int(here[row])
            s = degree[i] ** -0.5
            error = (residual[row] + ROUNDING * n) / gap[row] * (s + s.mean())
            least = min(float(gap[row]), float(top[row] - twins.eigenvalue[i]))
            bounds[i] = _Bounds(error, float(1.0 - top[row]), least, min(j, int(directions[row])))
        sought &= ~(done | lost)
        if not sought.any():
            break
        # A residual falls by about a factor of four a pass, and seldom by more than ten.
        check = j + max(1, int(np.log10(max(residual[sought].min() / RESIDUAL, 1.0))))
        if 2 * sought.sum() <= len(here):  # copying the edges of those left costs about two products
            left = np.flatnonzero(sought)
            space, here, sought = space.take(left), here[left], sought[left]
    vectors: list[CutVector | None] = [None] * count
    for (i, bound), y in zip(bounds.items(), _read_rows(solved), strict=True):
        vectors[i] = CutVector(y, *bound)
    return vectors


class _Bounds(NamedTuple):
    """What is known of a cut vector beside its values; see :class:`CutVector`."""

    error: F64
    eigenvalue: float
    gap: float
    passes: int


def _read_rows(parts: list[Array]) -> F64:
    """Return arrays (m, n) one below the other, on the host, where one wait is enough for all."""
    if not parts:
        return np.empty((0, 0))
    joined: F64 = on_host(torch.cat(parts) if isinstance(parts[0], torch.Tensor) else np.concatenate(parts))
    return joined


@dataclass(frozen=True, eq=False)
class _Twins:
    """Twins in B graphs, on the host: number of their classes, largest eigenvalue of vectors that differ on twins.

    That is 0 for tokens with the same row, ``alone`` for isolated tokens, -inf without twins.
    """

    classes: NDArray[np.int64]
    eigenvalue: F64

    @classmethod
    def of(cls, codes: F64, degree: F64, isolated: NDArray[np.bool_], weight: float) -> _Twins:
        ordered = np.sort(codes, axis=1)
        same = ordered[:, 1:] == ordered[:, :-1]
        eigenvalue = np.where((same & (ordered[:, 1:] != ISOLATED)).any(1), 0.0, -np.inf)
        alone = np.where(isolated.sum(1) > 1, weight / np.where(isolated, degree, np.inf).min(1), -np.inf)
        return cls(codes.shape[1] - same.sum(1), np.maximum(eigenvalue, alone))


@dataclass(frozen=True, eq=False)
class _KrylovSpace:
    """The Krylov spaces of B graphs: ``basis`` (B, limit + 2, n), row 0 deflated; the operator there is tridiagonal.

    ``tridiagonal`` (B, 2, limit) holds its diagonal and what is below.
    """

    graphs: Graphs
    s: Array
    basis: Array
    tridiagonal: Array

    @classmethod
    def begin(cls, graphs: Graphs, degree: F64, alone: NDArray[np.bool_], image: F64, limit: int) -> _KrylovSpace:
        s, known = degree**-0.5, np.sqrt(degree / degree.sum(1, keepdims=True))
        start: F64 = s * image
        for vector, isolated in zip(start, alone, strict=True):
            if isolated.any():  # the only twins of which the start differs
                vector[isolated] = vector[isolated].mean()
        start /= np.maximum(np.linalg.norm(start, axis=1, keepdims=True), BREAKDOWN)
        for _ in range(2):
            start -= (start * known).sum(1, keepdims=True) * known
        length = np.linalg.norm(start, axis=1, keepdims=True)
        start = np.where(length < BREAKDOWN, 0.0, start / np.maximum(length, BREAKDOWN))
        basis = np.empty((len(s), limit + 2, s.shape[1]))
        basis[:, :2] = np.stack((known, start), 1)
        return cls(graphs, *(array_like(part, graphs.edges) for part in (s, basis, np.zeros((len(s), 2, limit)))))

    def advance(self, j: int) -> None:
        """Apply the operator to basis vector ``j``; store what is orthogonal to the known ones as the next."""
        known = self.basis[:, : j + 1]
        vector = self.s * self.graphs.apply(self.s * known[:, j])
        self.tridiagonal[:, 0, j - 1] = (known[:, j] * vector).sum(1)
        for _ in range(2):  # twice is enough
            parts = known @ vector[:, :, None]
            vector = vector - (parts.swapaxes(1, 2) @ known)[:, 0]
        length = (vector * vector).sum(1) ** 0.5
        self.tridiagonal[:, 1, j - 1] = length
        self.basis[:, j + 1] = vector / length.clip(BREAKDOWN)[:, None]

    def check(self, j: int) -> tuple[F64, F64]:
        """Top eigenvectors (B, j) in the basis, and (4, B): eigenvalue, gap, residual, directions; on the host.

        Where a space closed, what came after is rounding noise and counts as 0.
        """
        diagonal, below = on_host(self.tridiagonal[:, :, :j]).swapaxes(0, 1)
        alive = (below >= BREAKDOWN).cumprod(1)
        below = np.where(alive, below, 0.0)
        small = np.zeros((len(below), j, j))
        steps = np.arange(j)
        small[:, steps, steps] = diagonal
        small[:, steps[1:], steps[1:]] *= alive[:, :-1]
        small[:, steps[1:], steps[:-1]] = below[:, :-1]
        values, vectors = np.linalg.eigh(small)  # reads the lower triangle
        gap = values[:, -1] - values[:, -2] if j > 1 else values[:, -1]
        residual = below[:, -1] * np.abs(vectors[:, -1, -1])
        return vectors[:, :, -1], np.stack((values[:, -1], gap, residual, alive.sum(1) + 1))

    def solutions(self, rows: NDArray[np.intp], tops: F64) -> Array:
        """Return y (m, n) of the graphs in ``rows``; ``tops`` (B, j) are all eigenvectors in the basis."""
        j = tops.shape[1]
        where = array_like(rows, self.s)  # an array as index would be copied with the host waiting for it
        u = array_like(tops[rows][:, None], self.s) @ self.basis[where, 1 : j + 1]
        return self.s[where] * u[:, 0]

    def take(self, rows: NDArray[np.intp]) -> _KrylovSpace:
        """Return the spaces of the graphs in ``rows``."""
        parts = (self.s, self.basis, self.tridiagonal)
        where = array_like(rows, self.s)
        return _KrylovSpace(self.graphs.take(rows), *(part[where] for part in parts))
