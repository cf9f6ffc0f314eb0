"""The cut vector by Lanczos: a few products with the 0/1 matrix instead of a dense eigendecomposition.

With s = degree^(-1/2) the vector is y = s * u, u the second eigenvector of the operator v -> s * (A (s * v)), whose
first one, sqrt(degree), is known and deflated. Everything is float64 with full reorthogonalisation: float32 products
change boxes. A batch of graphs runs on any device; graphs leave it as they converge.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.tokencut.graph import ALONE, F64, CutVector, Graphs

FIRST_CHECK, MAX_PASSES = 8, 160
RESIDUAL = 5e-11  # of the unit vector u, so that y agrees with a dense solver to 1e-10/gap; 1e-8 saves three passes
ROUNDING = 2e-16  # a token; error of the operator and the basis
BREAKDOWN = 1e-12  # length below which a new direction is rounding noise


def lanczos(graphs: Graphs, image: Tensor, codes: Tensor) -> list[CutVector | None]:
    """Return the cut vector of each graph with error bounds, None where the method cannot be trusted.

    ``image`` and ``codes`` are those of :meth:`Graphs.probe`. The start is the operator's image of a fixed random
    vector, averaged over twins, so that the search stays among vectors that are equal on twins: the others have
    eigenvalue 1 (tokens with the same row), or one above that of the cut between the isolated tokens and the rest. A
    start that depends on the degrees alone would miss vectors that are antisymmetric under a symmetry of the graph.
    """
    count, n = graphs.degree.shape
    twins, limit = _Twins.of(codes), min(MAX_PASSES, n - 1)
    found: list[CutVector | None] = [None] * count
    space = _Space.begin(graphs, image, limit)
    here, sought = np.arange(count), np.ones(count, dtype=bool)  # which graphs ``space`` is of; which are not done
    check = FIRST_CHECK
    for j in range(1, limit + 1):
        space.advance(j)
        if j < min(check, limit):
            continue
        vectors, (top, gap, residual, directions) = space.check(j)
        # Closed with fewer directions than classes of twins: some eigenvalue is multiple.
        lost = sought & (directions <= j) & ((directions < twins.classes[here] - 1) | (top <= 0))
        done = sought & ~lost & (residual <= RESIDUAL) & (residual < gap / 4)
        rows = np.flatnonzero(done)
        for row, y, s in zip(rows, *space.solution(rows, vectors, j), strict=True) if len(rows) else ():
            i = int(here[row])
            error = (residual[row] + ROUNDING * n) / gap[row] * (s + s.mean())
            least = min(float(gap[row]), twins.gap(graphs, i, float(top[row])))
            found[i] = CutVector(y, error, float(1.0 - top[row]), least, min(j, int(directions[row])))
        sought &= ~(done | lost)
        if not sought.any():
            break
        # A residual falls by about a factor of four a pass, and seldom by more than ten.
        check = j + max(1, int(np.log10(max(residual[sought].min() / RESIDUAL, 1.0))))
        if 2 * sought.sum() <= len(here):  # copying the edges of those left costs about two products
            left = np.flatnonzero(sought)
            space, here, sought = space.take(left), here[left], sought[left]
    return found


@dataclass(frozen=True, eq=False)
class _Twins:
    """Of B graphs, on the host: number of classes of twins, of isolated tokens, and whether others are twins too."""

    classes: NDArray[np.int64]
    alone: NDArray[np.int64]
    others: NDArray[np.bool_]

    @classmethod
    def of(cls, codes: Tensor) -> _Twins:
        ordered = np.sort(codes.cpu().numpy(), axis=1)
        same = ordered[:, 1:] == ordered[:, :-1]
        others = (same & (ordered[:, 1:] != ALONE)).any(1)
        return cls(codes.shape[1] - same.sum(1), (ordered == ALONE).sum(1), others)

    def gap(self, graphs: Graphs, i: int, top: float) -> float:
        """Return how far ``top`` is above the operator's eigenvalues for vectors that differ on twins, inf without."""
        gap = top if self.others[i] else np.inf
        if self.alone[i] < 2:
            return gap
        return min(gap, top - graphs.weight / float(graphs.degree[i][graphs.isolated[i]][0]))


@dataclass(frozen=True, eq=False)
class _Space:
    """The Krylov spaces of B graphs: ``basis`` (B, limit + 2, n), row 0 deflated; the operator there is tridiagonal.

    ``diagonal`` and ``below`` are (B, limit).
    """

    graphs: Graphs
    s: Tensor
    basis: Tensor
    diagonal: Tensor
    below: Tensor

    @classmethod
    def begin(cls, graphs: Graphs, image: Tensor, limit: int) -> _Space:
        degree, alone = graphs.degree.cpu().numpy(), graphs.isolated.cpu().numpy()
        s, known = degree**-0.5, np.sqrt(degree / degree.sum(1, keepdims=True))
        start: F64 = s * image.cpu().numpy()
        for vector, isolated in zip(start, alone, strict=True):
            if isolated.any():  # the only twins of which the start differs
                vector[isolated] = vector[isolated].mean()
        start /= np.maximum(np.linalg.norm(start, axis=1, keepdims=True), BREAKDOWN)
        for _ in range(2):
            start -= (start * known).sum(1, keepdims=True) * known
        length = np.linalg.norm(start, axis=1, keepdims=True)
        start = np.where(length < BREAKDOWN, 0.0, start / np.maximum(length, BREAKDOWN))
        basis = graphs.degree.new_empty(len(s), limit + 2, s.shape[1])
        basis[:, :2] = torch.from_numpy(np.stack((known, start), 1))
        steps = torch.zeros(2, len(s), limit, dtype=basis.dtype, device=basis.device)
        return cls(graphs, torch.from_numpy(s).to(basis.device), basis, steps[0], steps[1])

    def advance(self, j: int) -> None:
        """Apply the operator to basis vector ``j``, store what is orthogonal to the known ones as the next.

        All graphs at once; or one by one in NumPy, whose calls cost a third of torch's, which counts for one graph.
        """
        if self.graphs.half:
            for arrays in self._arrays:
                _advance_one(self.graphs, arrays, j)
            return
        product = self.graphs.apply(self.s * self.basis[:, j]).mul_(self.s)
        self.diagonal[:, j - 1], self.below[:, j - 1] = self._append(j, product)

    def _append(self, last: int, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Make ``vector`` (B, n) orthogonal to rows 0..last, store it; return its part along ``last``, its length."""
        known = self.basis[:, : last + 1]
        along = (known[:, -1] * vector).sum(1)
        for _ in range(2):  # twice is enough
            parts = torch.bmm(known, vector[:, :, None])
            vector = torch.baddbmm(vector[:, None], parts.mT, known, alpha=-1)[:, 0]
        length = torch.linalg.vector_norm(vector, dim=1)
        torch.div(vector, length.clamp_min(BREAKDOWN)[:, None], out=self.basis[:, last + 1])
        return along, length

    @cached_property
    def _arrays(self) -> list[tuple[F64, ...]]:
        """Edges, s, basis, diagonal and below of each graph, on the CPU, sharing memory."""
        parts = (self.graphs.edges, self.s, self.basis, self.diagonal, self.below)
        return list(zip(*(part.numpy() for part in parts), strict=True))

    def check(self, j: int) -> tuple[F64, F64]:
        """Top eigenvectors (B, j) in the basis, and (4, B): eigenvalue, gap, residual, directions; on the host.

        Where a space closed, what came after is rounding noise and counts as 0.
        """
        diagonal: F64 = self.diagonal[:, :j].cpu().numpy()
        below: F64 = self.below[:, :j].cpu().numpy()
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

    def solution(self, rows: NDArray[np.intp], vectors: F64, j: int) -> tuple[F64, F64]:
        """Return y and s of the graphs in ``rows``, each (rows, n), on the host; ``vectors`` are of all graphs."""
        if self.graphs.half:
            several = [self._arrays[row] for row in rows]
            ys = [s * (vectors[row] @ basis[1 : j + 1]) for row, (_, s, basis, *_) in zip(rows, several, strict=True)]
            return np.stack(ys), np.stack([s for _, s, *_ in several])
        which = torch.from_numpy(rows).to(self.s.device)
        s = self.s[which]
        parts = torch.from_numpy(vectors[rows]).to(self.s.device)
        u = torch.bmm(parts[:, None], self.basis[which, 1 : j + 1])[:, 0]
        return (s * u).cpu().numpy(), s.cpu().numpy()

    def take(self, rows: NDArray[np.intp]) -> _Space:
        """Return the spaces of the graphs in ``rows``."""
        which = torch.from_numpy(rows).to(self.s.device)
        parts = (self.s, self.basis, self.diagonal, self.below)
        return _Space(self.graphs.take(which), *(part[which] for part in parts))


def _advance_one(graphs: Graphs, arrays: tuple[F64, ...], j: int) -> None:
    """Do for one graph, of these edges, s, basis, diagonal and below, what :meth:`_Space.advance` does for all."""
    edges, s, basis, diagonal, below = arrays
    known = basis[: j + 1]
    vector = s * graphs.apply_one(edges, s * basis[j])
    diagonal[j - 1] = basis[j] @ vector
    before = float(np.linalg.norm(vector))
    for _ in range(2):  # twice is enough, and once if little was taken away
        vector -= (known @ vector) @ known
        length = float(np.linalg.norm(vector))
        if length > 0.1 * before:
            break
    below[j - 1] = length
    np.divide(vector, max(length, BREAKDOWN), out=basis[j + 1])
