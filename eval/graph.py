"""TokenCut's affinity graph, kept as its 0/1 edge matrix, and its cut vector by the dense generalised solver.

A = weight * edges + floor everywhere. The binary graph of the paper has 0/1 edges, weight 1 - eps and floor eps; the
weighted one (the reference's ``--no-binary-graph``) has A itself as edges, weight 1 and floor 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dinoskip.randomness import numpy_rng

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
TINY_NORM = np.float32(1e-12)  # of torch.nn.functional.normalize, which the reference calls


@dataclass(frozen=True, eq=False)
class Graph:
    """An affinity graph of n tokens: edges float64 (n, n) symmetric, degree float64 (n,), all positive.

    ``isolated`` (n,) marks the tokens of a binary graph that are joined to themselves alone.
    """

    edges: F64
    weight: float
    floor: float
    degree: F64
    isolated: NDArray[np.bool_]
    binary: bool

    def apply(self, vector: F64) -> F64:
        """Return A times ``vector`` (n,)."""
        return np.asarray(self.weight * (self.edges @ vector) + self.floor * vector.sum())

    def probe(self) -> tuple[F64, NDArray[np.intp]]:
        """Return A times a fixed random vector, and a class number (n,) for every token; twins share one.

        Twins are tokens that a cut cannot tell apart: those with the same row of 0/1 ``edges``, and all isolated
        tokens. The vector holds integers small enough for every sum to be exact, so equal products mean equal rows.
        The rows of a weighted graph carry rounding errors, so there each token is its own class.
        """
        n = len(self.degree)
        span = 2 ** (51 - n.bit_length())
        random = numpy_rng(0, "tokencut", "probe", n).integers(-span, span, n).astype(np.float64)
        codes = self.edges @ random
        image = self.weight * codes + self.floor * random.sum()
        if not self.binary:
            return image, np.arange(n)
        codes[self.isolated] = 2.0**53  # no sum is as large
        return image, np.unique(codes, return_inverse=True)[1]

    def dense(self) -> F64:
        """Return the affinity matrix A, float64 (n, n)."""
        return np.where(self.edges > 0, 1.0, self.floor) if self.binary else self.edges


@dataclass(frozen=True, eq=False)
class CutVector:
    """Second generalised eigenvector y (n,) of (D - A, D), y'Dy = 1, sign open.

    ``error`` (n,) bounds the error of each entry (0 from the dense solver, the last resort); ``eigenvalue`` is the
    second smallest, ``gap`` its distance to the third; ``passes`` counts products with A, 0 for the dense solver.
    """

    y: F64
    error: F64
    eigenvalue: float
    gap: float
    passes: int


def normalise(features: F32) -> F32:
    """Return the rows of ``features`` (n, C) divided by their length (L2); zero rows stay zero."""
    with np.errstate(over="ignore", under="ignore"):
        lengths = np.sqrt(np.einsum("ij,ij->i", features, features))
        if not np.isfinite(lengths).all():  # squares beyond float32
            lengths = np.linalg.norm(features.astype(np.float64), axis=1)
        return np.asarray(features / np.maximum(lengths, TINY_NORM)[:, None], dtype=np.float32)


def build_graph(unit: F32, tau: float, eps: float, binary: bool = True) -> Graph:
    """Connect tokens by cosine similarity; ``unit`` (n, C) holds normalised rows.

    Binary: affinity 1 where the float32 similarity is strictly greater than tau, else eps. Weighted: the similarity
    where it is at least tau, else eps. Raises ValueError if a degree is not positive (an eps of 0, or negative
    similarities kept by a negative tau), where the reference's solver fails too.
    """
    n = len(unit)
    similarity = unit @ unit.T  # numpy sees the transpose and calls the symmetric rank-k product: half the work
    if binary:
        similar = np.greater(similarity, np.float32(tau), out=similarity)
        count = (similar @ np.ones(n, np.float32)).astype(np.float64)
        isolated = (count == 1) & (similar.diagonal() > 0)
        graph = Graph(similar.astype(np.float64), 1.0 - eps, eps, (1.0 - eps) * count + eps * n, isolated, True)
    else:
        similarity[similarity < np.float32(tau)] = eps
        edges = similarity.astype(np.float64)
        graph = Graph(edges, 1.0, 0.0, edges.sum(axis=1), np.zeros(n, dtype=bool), False)
    if not graph.degree.min() > 0:
        token = int(graph.degree.argmin())
        raise ValueError(
            f"token {token} has degree {graph.degree[token]:g}; use a positive eps and a tau of at least 0"
        )
    return graph


def dense_vector(graph: Graph) -> CutVector:
    """Solve (D - A) y = lambda D y as the reference does: all n^3 of it, for few tokens and for undecided cuts."""
    affinity = graph.dense()
    degrees = np.diag(graph.degree)
    try:
        values, vectors = scipy.linalg.eigh(
            degrees - affinity, degrees, subset_by_index=[1, 2], overwrite_a=True, overwrite_b=True, check_finite=False
        )
    except np.linalg.LinAlgError as error:
        raise ValueError(f"the graph's eigenvectors could not be computed: {error}") from error
    y = vectors[:, 0]
    return CutVector(y, np.zeros_like(y), float(values[0]), float(values[1] - values[0]), 0)
