"""The cut vector: the second generalised eigenvector of (D - A, D), by Lanczos, in doubt by the dense solver.

Not every graph has one: see :attr:`CutVector.is_cut`.

With s = degree^(-1/2) the vector is y = s * u, u the second eigenvector of the operator v -> s * (A (s * v)), whose
first one, sqrt(degree), is known and deflated. Lanczos needs 12 to 25 products with A where a dense solver needs about
n. Everything is float64 with full reorthogonalisation: float32 products change boxes. A batch of graphs is worked on at
once; graphs leave it as they converge. Arrays are of either kind of :data:`eval.tokencut.graph.Array`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from dinoskip.runtime.console import log
from dinoskip.runtime.randomness import numpy_rng
from eval.tokencut.graph import F64, ISOLATED, Array, Graphs, array_like, on_host
from eval.tokencut.memory import LARGEST_DENSE, MAX_PASSES, SECOND_PASSES
from eval.tokencut.restarted import second_vector

DENSE_TOKENS = 48  # up to here the dense solver is as fast
TIE = 1e-8  # tokens this close (relative) are tied: the reference's choice among them depends on the BLAS
MULTIPLE = 1e-6
"""Gap of the second and third eigenvalue, as a share of the third, up to which they are one. float64 knows eigenvalues
to about 1e-15; graphs with a symmetry that makes them equal have up to 3e-11, others seldom less than 1e-5. A share,
because graphs that nearly fall apart have eigenvalues of 1e-5 to 1e-3 that differ well."""
NEARLY_MULTIPLE = 1e-4  # a smaller share is left to the dense solver
RESOLVED = 1e-10  # relative error below which "tied" can be told from "nearly tied"
FIRST_CHECK = 8  # passes, fewer than the 12 to 25 that graphs need: hardly any goes on after it has converged
RESIDUAL = 5e-11  # of the unit vector u, so that y agrees with a dense solver to 1e-10/gap; 1e-8 saves three passes
ROUNDING = 2e-16  # a token; error of the operator and the basis
BREAKDOWN = 1e-12  # length below which a new direction is rounding noise
FALLS_APART = 1e-3  # second eigenvalue below which a graph is in parts; parts alike in size have nearly equal ones
MISSED = 1.6e-6  # squared part of a normal direction that one in a thousand falls below: chance that a search fails


@dataclass(frozen=True, eq=False)
class CutVector:
    """Second generalised eigenvector y (n,) of (D - A, D), y'Dy = 1, sign open.

    ``error`` (n,) bounds the error of each entry (0 from the dense solver, the last resort); ``eigenvalue`` is the
    second smallest, ``gap`` its distance to the third; ``passes`` counts products with A, 0 for the dense solver.
    ``complete``: of a binary graph that joins every token to every other, ``unjoined``: that joins none to another.
    There every vector that sums to zero is an eigenvector, and y is NaN.
    """

    y: F64
    error: F64
    eigenvalue: float
    gap: float
    passes: int
    complete: bool = False
    unjoined: bool = False

    @property
    def is_cut(self) -> bool:
        """Whether there is one second eigenvector: not all weights are equal, and the eigenvalue is simple.

        Else y is one of many, and the processor's choice (:data:`MULTIPLE`).
        """
        return not (self.complete or self.unjoined) and self.gap > MULTIPLE * (self.eigenvalue + self.gap)


def cut_vectors(graphs: Graphs) -> list[CutVector]:
    """Return the cut vectors, by Lanczos where that decides split and seed, else by the dense solver.

    Graphs of more than :data:`eval.tokencut.memory.LARGEST_DENSE` tokens have a restarted Lanczos in its stead.
    """
    facts, n = graphs.facts, graphs.degree.shape[1]
    vectors: list[CutVector | None] = [
        uniform_vector(degree, graphs.floor, complete) if complete or unjoined else None
        for degree, complete, unjoined in zip(facts.degree, facts.complete, facts.unjoined, strict=True)
    ]
    if n > DENSE_TOKENS and None in vectors:
        for i, (candidate, codes) in enumerate(zip(lanczos(graphs), facts.codes, strict=True)):
            # Of a large graph there is no dense matrix that could decide better what rounding leaves open.
            if vectors[i] is None and candidate is not None and (n > LARGEST_DENSE or _decides(candidate, codes)):
                vectors[i] = candidate
    last_resort = restarted_vector if n > LARGEST_DENSE else dense_vector
    return [last_resort(graphs, i) if vector is None else vector for i, vector in enumerate(vectors)]


def uniform_vector(degree: F64, eps: float, complete: bool) -> CutVector:
    """Return what is known of a binary graph whose weights off the diagonal are all 1 or all ``eps``.

    Its eigenvalue is that of vectors that sum to zero over tokens of equal ``degree`` (n,).
    """
    n = len(degree)
    unknown = np.full(n, np.nan)
    eigenvalue = 1.0 if complete else n * eps / float(np.partition(degree, -2)[-2])
    return CutVector(unknown, unknown, eigenvalue, 0.0, 0, complete, not complete)


def off_mean(y: F64) -> F64:
    """Return y less its mean, 0 where that is at most :data:`TIE` of the largest absolute y.

    These tokens lie on the mean and are background, whichever way y is turned; the reference lets rounding decide.
    """
    distance: F64 = y - y.mean()
    distance[np.abs(distance) <= TIE * np.abs(y).max()] = 0.0
    return distance


def _decides(vector: CutVector, codes: F64) -> bool:
    """Whether no value within the error bounds of ``vector`` would move a token across the mean or change the seed.

    Tokens on the mean are a third kind beside the two sides.
    """
    size = np.abs(vector.y)
    border = TIE * size.max()
    if (np.abs(np.abs(vector.y - vector.y.mean()) - border) <= 2 * vector.error).any():
        return False
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
        with blas().limit(limits=1, user_api="blas"):
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


def restarted_vector(graphs: Graphs, i: int) -> CutVector:
    """Return the cut vector of graph ``i`` without its matrix: no cut where the search does not converge.

    Two eigenvalues that so many products do not tell apart are taken as one (:data:`MULTIPLE`).
    """
    graph = graphs.take(np.array([i]))
    degree = graph.facts.degree[0]
    found = second_vector(lambda vector: on_host(graph.apply(array_like(vector[None], graph.degree)))[0], degree)
    if found is None:
        log.warning(
            "TokenCut: the second eigenvalue of a graph of %d tokens was not found: taken as no cut", len(degree)
        )
        unknown = np.full(len(degree), np.nan)
        return CutVector(unknown, unknown, np.nan, 0.0, 0)
    return CutVector(found.y, np.full_like(found.y, RESIDUAL), found.eigenvalue, found.gap, 0)


@lru_cache(maxsize=1)
def blas() -> ThreadpoolController:
    """Return what sets the number of BLAS threads; looking for the libraries takes as long as a small graph."""
    return ThreadpoolController()


def lanczos(graphs: Graphs) -> list[CutVector | None]:
    """Return the cut vector of each graph with error bounds, None where the method cannot be trusted.

    The start is the operator's image of a fixed random vector (:meth:`Graphs.probe`), averaged over twins, so that the
    search stays among vectors that are equal on twins: the others have eigenvalue 1 (tokens with the same row), or one
    above that of the cut between the isolated tokens and the rest. A start that depends on the degrees alone would miss
    vectors that are antisymmetric under a symmetry of the graph. A GPU is waited for once a check of convergence, and
    once for all vectors.

    Of several eigenvectors of one eigenvalue the search finds one mix. Where the graph may have a symmetry, or nearly
    falls apart, another search in what is orthogonal to the first looks for a second (:meth:`_KrylovSpace.missed`).
    Where one may be there, or the third eigenvalue is close to the second, the dense solver decides.
    """
    count, n = graphs.degree.shape
    facts = graphs.facts
    degree, alone, start = facts.degree, facts.isolated, facts.image
    twins, limit = _Twins.of(facts.codes, facts.colours, degree, alone, graphs.weight), min(MAX_PASSES, n - 1)
    bounds: dict[int, _Bounds] = {}  # of the graphs that are done, in the order of ``solved``
    solved: list[Array] = []  # their vectors, which are read together at the end
    space = _KrylovSpace.begin(graphs, degree, alone, start, limit + SECOND_PASSES)
    here, sought = np.arange(count), np.ones(count, dtype=bool)  # which graphs ``space`` is of; which are not done
    check = FIRST_CHECK
    for j in range(1, limit + 1):
        space.advance(j)
        if j < min(check, limit):
            continue
        found = space.check(j)
        top, gap, residual, directions = found.top, found.gap, found.residual, found.directions
        # Closed with fewer directions than classes of twins: some eigenvalue is multiple.
        lost = sought & (directions <= j) & ((directions < twins.classes[here] - 1) | (top <= 0))
        done = sought & ~lost & (residual <= RESIDUAL) & (residual < gap / 4)
        distance = np.minimum(gap, top - twins.eigenvalue[here])
        rows = np.flatnonzero(done & (distance > NEARLY_MULTIPLE * (1 - top + distance)))
        rows = rows[~_may_be_multiple(space, found, rows, here[rows], twins, facts.codes)]
        if len(rows):
            solved.append(space.solutions(rows, found.vectors))
        for row in rows.tolist():
            i = int(here[row])
            s = degree[i] ** -0.5
            error = (residual[row] + ROUNDING * n) / gap[row] * (s + s.mean())
            passes = min(j, int(directions[row]))
            bounds[i] = _Bounds(error, float(1.0 - top[row]), float(distance[row]), passes)
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


def _may_be_multiple(
    space: _KrylovSpace, found: _Ritz, rows: NDArray[np.intp], graphs: NDArray[np.int64], twins: _Twins, codes: F64
) -> NDArray[np.bool_]:
    """Return a mask over ``rows`` of ``space``, true where a graph may have more than one second eigenvector.

    ``graphs`` are the rows' numbers in the batch. Only those are searched that may have a symmetry or nearly fall
    apart, and whose space did not close. What is in ``space`` beyond its first passes is lost if all of its graphs are
    searched.
    """
    may = np.zeros(len(rows), dtype=bool)
    open_ = found.directions[rows] > found.vectors.shape[1]
    doubtful = np.flatnonzero(open_ & (twins.symmetric[graphs] | (found.top[rows] > 1 - FALLS_APART)))
    if len(doubtful):
        which = rows[doubtful]
        part = space if len(which) == len(found.top) else space.take(which)
        starts = np.stack([_random_on_twins(codes[i]) for i in graphs[doubtful]])
        may[doubtful] = part.missed(found.vectors.shape[1], starts, found.take(which))
    return may


def _random_on_twins(codes: F64) -> F64:
    """Return a fixed random vector (n,) that is equal on twins, by the ``codes`` (n,) of tokens."""
    _, classes = np.unique(codes, return_inverse=True)
    normal: F64 = numpy_rng(0, "tokencut", "second search", len(codes)).standard_normal(len(codes))[classes]
    return normal


class _Ritz(NamedTuple):
    """Ritz values and vectors of B operators in a space of j dimensions.

    ``vectors`` (B, j) are those of the largest value, in the basis of the space. ``top`` is the largest value, ``gap``
    its distance to the next, ``low`` the smallest, ``residual`` the length of the operator's product with the vector
    less ``top`` times the vector, ``directions`` the number of directions that are not rounding noise; (B,) each.
    """

    vectors: F64
    top: F64
    gap: F64
    low: F64
    residual: F64
    directions: F64

    def take(self, rows: NDArray[np.intp]) -> _Ritz:
        return _Ritz(*(part[rows] for part in self))


class _Bounds(NamedTuple):
    """Error bound, eigenvalue, gap and passes of a cut vector; see :class:`CutVector`."""

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

    That is 0 for tokens with the same row, ``alone`` for isolated tokens, -inf without twins. ``symmetric``: which
    graphs have fewer colours than classes: another symmetry may exchange tokens that are no twins.
    """

    classes: NDArray[np.int64]
    eigenvalue: F64
    symmetric: NDArray[np.bool_]

    @classmethod
    def of(cls, codes: F64, colours: F64, degree: F64, isolated: NDArray[np.bool_], weight: float) -> _Twins:
        ordered = np.sort(codes, axis=1)
        same = ordered[:, 1:] == ordered[:, :-1]
        eigenvalue = np.where((same & (ordered[:, 1:] != ISOLATED)).any(1), 0.0, -np.inf)
        alone = np.where(isolated.sum(1) > 1, weight / np.where(isolated, degree, np.inf).min(1), -np.inf)
        shades = np.sort(colours, axis=1)
        symmetric = (shades[:, 1:] == shades[:, :-1]).sum(1) > same.sum(1)
        return cls(codes.shape[1] - same.sum(1), np.maximum(eigenvalue, alone), symmetric)


@dataclass(frozen=True, eq=False)
class _KrylovSpace:
    """The Krylov spaces of B graphs: ``basis`` (B, room + 2, n), row 0 deflated; the operator there is tridiagonal.

    ``tridiagonal`` (B, 2, room) holds its diagonal and what is below.
    """

    graphs: Graphs
    s: Array
    basis: Array
    tridiagonal: Array

    @classmethod
    def begin(cls, graphs: Graphs, degree: F64, alone: NDArray[np.bool_], image: F64, room: int) -> _KrylovSpace:
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
        basis = np.empty((len(s), room + 2, s.shape[1]))
        basis[:, :2] = np.stack((known, start), 1)
        return cls(graphs, *(array_like(part, graphs.degree) for part in (s, basis, np.zeros((len(s), 2, room)))))

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

    def check(self, j: int, first: int = 0) -> _Ritz:
        """Return what the ``j`` basis vectors behind row ``first`` know, on the host.

        Where a space closed, what came after is rounding noise and counts as 0.
        """
        diagonal, below = on_host(self.tridiagonal[:, :, first : first + j]).swapaxes(0, 1)
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
        return _Ritz(vectors[:, :, -1], values[:, -1], gap, values[:, 0], residual, alive.sum(1) + 1)

    def missed(self, j: int, starts: F64, found: _Ritz) -> NDArray[np.bool_]:
        """Whether what is orthogonal to the first ``j`` basis vectors may hold another eigenvector of ``found.top``.

        The search begins at ``starts`` (B, n), random vectors, and overwrites what is behind the first ``j``. By Kaniel
        and Paige's bound it falls short of an eigenvalue by the spectrum's width over the square of a Chebyshev
        polynomial, which grows with the passes, times the start's squared part along the eigenvector: taken as
        :data:`MISSED`. It ends where that is below half the gap, so that the eigenvalue would have been seen.
        """
        vector = array_like(starts, self.s)
        for _ in range(2):
            parts = self.basis[:, : j + 1] @ vector[:, :, None]
            vector = vector - (parts.swapaxes(1, 2) @ self.basis[:, : j + 1])[:, 0]
        self.basis[:, j + 1] = vector / ((vector * vector).sum(1) ** 0.5).clip(BREAKDOWN)[:, None]
        level = found.top - found.gap / 2
        far, away = starts.shape[1] / MISSED, 2 * (found.top - found.low) / found.gap
        needed = np.log(2 * np.sqrt(far * away))
        certain = np.zeros(len(starts), dtype=bool)
        for i in range(1, SECOND_PASSES + 1):
            self.advance(j + i)
            if i == 1:
                continue
            seen = self.check(i, j)
            bulk = seen.top + seen.residual
            width = bulk - np.minimum(found.low, seen.low)
            growth = (i - 1) * np.arccosh(1 + 2 * np.maximum(level - bulk, 0) / width)
            certain |= (bulk < level) & ((growth > needed) | (seen.directions <= i))
            if (certain | (seen.top > level)).all():
                break
        return ~(certain & (seen.top < level))

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
