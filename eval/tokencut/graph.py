"""TokenCut's affinity graphs, kept as their edge matrices.

A = weight * edges + floor everywhere. The binary graph of the paper has 0/1 edges, weight 1 - eps and floor eps; the
weighted one (the reference's ``--no-binary-graph``) has A itself as edges, weight 1 and floor 0. A batch holds B graphs
of n tokens each.

Arrays are NumPy's on a CPU and torch's on a GPU (:data:`Array`). What follows uses what both understand, so that
there is one code for both; NumPy's calls cost a third of torch's, which counts where graphs come one by one.

Beyond :data:`eval.tokencut.memory.LARGEST_DENSE` tokens similarities are :class:`eval.tokencut.tiles.Tiles` and edges
:class:`eval.tokencut.tiles.LargeEdges`: no matrix of n x n numbers exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg.blas
import torch
from numpy.typing import NDArray
from torch import Tensor

from dinoskip.runtime.precision import exact_products
from dinoskip.runtime.randomness import numpy_rng
from eval.tokencut.memory import LARGEST_DENSE
from eval.tokencut.tiles import LargeEdges, Tiles

F64 = NDArray[np.float64]
Array = Any  # NDArray[np.float64] on a CPU, a float64 tensor on a GPU; the edges of large graphs are LargeEdges
TINY_NORM = 1e-12  # of torch.nn.functional.normalize, which the reference calls
ISOLATED = 2.0**53  # the code of isolated tokens: no sum is as large
GOLDEN = 0.6180339887498949  # multiples of the golden section, modulo 1, lie far apart: a number for every degree


class GraphFacts(NamedTuple):
    """Facts about B graphs in host memory: ``degree``, ``isolated`` and results of :meth:`Graphs.probe`, (B, n) each.

    ``complete``: whether a binary graph joins every token to every other, as in a collapsed image; ``unjoined``:
    whether it joins no token to another. In both all weights off the diagonal are equal, and there is no second
    eigenvector.
    """

    degree: F64
    isolated: NDArray[np.bool_]
    image: F64
    codes: F64
    colours: F64
    complete: list[bool]
    unjoined: list[bool]


@dataclass(frozen=True, eq=False)
class Graphs:
    """B affinity graphs of n tokens: edges float64 (B, n, n) symmetric, degree float64 (B, n), all positive.

    Of large graphs the edges are no array but can be multiplied (:class:`eval.tokencut.tiles.LargeEdges`).

    ``isolated`` bool (B, n) marks the tokens of a binary graph that are joined to themselves alone, ``finite`` those
    whose features are finite. What the host must know of a batch is in ``facts``: a GPU is waited for once.
    """

    edges: Array
    weight: float
    floor: float
    degree: Array
    isolated: Array
    finite: Array
    binary: bool

    @cached_property
    def facts(self) -> GraphFacts:
        """Facts about the graphs in host memory; ValueError if features are not finite or a degree is not positive.

        A degree is not positive for an eps of 0, or negative similarities kept by a negative tau, where the reference's
        solver fails too.
        """
        parts = (self.degree, self.isolated, *self.probe(), self.finite)
        degree, isolated, image, codes, colours, finite = read_together(*parts)
        if not finite.all():
            raise ValueError("features must be finite")
        for i, token in np.argwhere(~(degree > 0)):
            raise ValueError(
                f"token {token} has degree {degree[i, token]:g}; use a positive eps and a tau of at least 0"
            )
        n = degree.shape[1]
        # k edges give a degree of k weight + n floor: the bounds are half an edge below n and above a token's own.
        complete = [self.binary and least > n - self.weight / 2 for least in degree.min(1).tolist()]
        unjoined = [self.binary and most < 1.5 * self.weight + self.floor * n for most in degree.max(1).tolist()]
        return GraphFacts(degree, isolated > 0, image, codes, colours, complete, unjoined)

    def apply(self, vectors: Array) -> Array:
        """Return A times ``vectors`` (B, n)."""
        return symmetric_product(self.edges, vectors, self.weight) + self.floor * vectors.sum(1)[:, None]

    def take(self, which: NDArray[np.intp]) -> Graphs:
        """Return the graphs of the indices ``which``, copied."""
        where = array_like(which, self.degree)
        edges = self.edges.take(which) if isinstance(self.edges, LargeEdges) else self.edges[where]
        parts = (edges, self.weight, self.floor, self.degree[where], self.isolated[where])
        return Graphs(*parts, self.finite[where], self.binary)

    def probe(self) -> tuple[Array, Array, Array]:
        """Return A times a fixed random vector, a code and a colour of every token, each float64 (B, n).

        Twins are tokens that a cut cannot tell apart: those with the same row of 0/1 ``edges``, and all isolated
        tokens; they share a code. The vector holds integers small enough for every sum to be exact, so equal products
        mean equal rows. The rows of a weighted graph carry rounding errors, so there each token is its own class.

        Tokens that a symmetry of the graph exchanges share a colour: a sum over their neighbours of numbers that depend
        on the neighbour's degree alone (one round of Weisfeiler and Leman's refinement). A weighted graph has one
        colour, which says nothing.
        """
        count, n = self.degree.shape
        span = _span(n)
        random = _probe_numbers(n)
        codes = symmetric_product(self.edges, array_like(np.tile(random, (count, 1)), self.degree))
        image = self.weight * codes + self.floor * float(random.sum())
        if not self.binary:
            numbers = np.tile(np.arange(n, dtype=np.float64), (count, 1))
            return image, array_like(numbers, self.degree), array_like(np.zeros_like(numbers), self.degree)
        colours = symmetric_product(self.edges, self.degree * GOLDEN % 1.0 * span // 1.0)
        codes[self.isolated] = ISOLATED
        return image, codes, colours

    def dense(self, i: int) -> F64:
        """Return the affinity matrix A of graph ``i``, float64 (n, n), on the host."""
        array = on_host(self.edges[i])
        return np.where(array > 0, 1.0, self.floor) if self.binary else array


def _span(n: int) -> int:
    """Return the size of numbers of which float64 holds sums of ``n`` exactly, with a bit to spare."""
    return 1 << (51 - n.bit_length())


@lru_cache(maxsize=4)  # the grids of a set are few, and a small graph takes not much longer than its numbers
def _probe_numbers(n: int) -> NDArray[np.float64]:
    """Return ``n`` fixed random integers below :func:`_span` in size, not to be written to."""
    span = _span(n)
    numbers = numpy_rng(0, "tokencut", "probe", n).integers(-span, span, n).astype(np.float64)
    numbers.flags.writeable = False
    return numbers


def on_host(array: Array) -> NDArray[Any]:
    """Return an array of either kind as NumPy's."""
    return array.cpu().numpy() if isinstance(array, Tensor) else np.asarray(array)


def read_together(*arrays: Array) -> list[NDArray[np.float64]]:
    """Return arrays of one shape as NumPy's, float64; a GPU is waited for once."""
    if isinstance(arrays[0], Tensor):
        return list(torch.stack([array.double() for array in arrays]).cpu().numpy())
    return [np.asarray(array, dtype=np.float64) for array in arrays]


def array_like(array: NDArray[Any], other: Array) -> Array:
    """Return a NumPy array as the kind of ``other``, on its device; nothing waits for the copy."""
    return torch.from_numpy(array).to(other.device, non_blocking=True) if isinstance(other, Tensor) else array


def symmetric_product(matrices: Array, vectors: Array, scale: float = 1.0) -> Array:
    """Return ``scale`` times symmetric matrices (B, n, n) times vectors (B, n), float64. Sums of integers are exact.

    On a CPU by BLAS's ``dsymv``, which reads one triangle and so takes half the time of a general product.
    """
    if isinstance(matrices, LargeEdges):
        return matrices.product(vectors, scale)
    if isinstance(matrices, Tensor):
        start = vectors.new_zeros(len(vectors), vectors.shape[1], 1)
        return torch.baddbmm(start, matrices, vectors[:, :, None], beta=0, alpha=scale)[:, :, 0]
    products = np.empty_like(vectors)
    for matrix, vector, product in zip(matrices, vectors, products, strict=True):
        # Transposed, a matrix lies in memory as Fortran has it; it is symmetric, so nothing else changes.
        scipy.linalg.blas.dsymv(scale, matrix.T, vector, y=product, overwrite_y=True)
    return products


def normalise(features: Tensor, length: Tensor | None = None) -> Tensor:
    """Return the rows of ``features`` (..., C), float32, divided by their :func:`lengths`, if these are not given.

    Zero rows stay zero.
    """
    length = lengths(features) if length is None else length
    return (features / length.clamp_min(TINY_NORM)[..., None].to(features.dtype)).float()


def centred(features: Tensor) -> Tensor:
    """Return features (..., n, C) without the mean token of each image, float32.

    An offset that all tokens share raises every cosine: a graph can be complete though its tokens differ.
    """
    features = features.float()
    return features - features.mean(-2, keepdim=True)


def lengths(features: Tensor) -> Tensor:
    """Return the L2 norm of each row (..., C): float32, or float64 where a square goes beyond float32 and on a GPU.

    Raises ValueError for features that are not finite: their norms are not, either. On a GPU nothing waits to know:
    :attr:`Graphs.facts` and :func:`eval.tokencut.lost.grow` say so.
    """
    length: Tensor = torch.linalg.vector_norm(features, dim=-1)
    if features.is_cuda:
        return torch.where(length.isfinite(), length, torch.linalg.vector_norm(features, dim=-1, dtype=torch.float64))
    if not bool(torch.isfinite(length).all()):
        length = torch.linalg.vector_norm(features, dim=-1, dtype=torch.float64)
        if not bool(torch.isfinite(length).all()):
            raise ValueError("features must be finite")
    return length


def mean_cosine(unit: Tensor) -> list[float]:
    """Return for each image the mean cosine between different tokens, of normalised rows (B, n, C), n at least 2."""
    n, total = unit.shape[1], unit.sum(1, dtype=torch.float64)
    cosines: list[float] = ((total.square().sum(1) - n) / (n * (n - 1))).tolist()
    return cosines


def similarities(unit: Tensor) -> Tensor | Tiles:
    """Return the inner products (B, n, n) of normalised rows (B, n, C), float32 (TF32 changes 2 % of the cuts).

    Of more than :data:`eval.tokencut.memory.LARGEST_DENSE` tokens they are tiles, which are made when they are asked
    for.
    """
    if unit.shape[1] > LARGEST_DENSE:
        return Tiles(unit)
    if unit.is_cuda:
        with exact_products(unit.device):
            return unit @ unit.mT
    rows = unit.numpy()
    return torch.from_numpy(rows @ rows.swapaxes(1, 2))  # NumPy multiplies one triangle and copies it: half the work


def build_graphs(similarity: Tensor | Tiles, tau: float, eps: float, *, binary: bool = True) -> Graphs:
    """Connect tokens by cosine similarity, float32 (B, n, n), which is left as it is.

    Binary: affinity 1 where the similarity is strictly greater than float32 tau, else eps. Weighted: the similarity
    where it is at least tau, else eps. What is wrong with the features is said by :attr:`Graphs.facts`.
    """
    level = float(np.float32(tau))
    if isinstance(similarity, Tiles):
        return _large_graphs(similarity, level, eps, binary=binary)
    count, n = similarity.shape[:2]
    edges: Array
    if not binary:
        edges = similarity.masked_fill(similarity < level, eps).double()
        edges = edges if edges.is_cuda else edges.numpy()
    elif similarity.is_cuda:
        edges = (similarity > level).double()
    else:  # NumPy casts truth values four times as fast
        edges = np.greater(similarity.numpy(), np.float32(level)).astype(np.float64)
    total = symmetric_product(edges, array_like(np.ones((count, n)), edges))
    finite: Array = similarity.diagonal(0, 1, 2).isfinite()  # of a token to itself
    finite = finite if finite.is_cuda else finite.numpy()
    if binary:
        diagonal = edges.diagonal(0, 1, 2)
        return Graphs(edges, 1.0 - eps, eps, (1.0 - eps) * total + eps * n, (total == 1) & (diagonal > 0), finite, True)
    return Graphs(edges, 1.0, 0.0, total, array_like(np.zeros((count, n), dtype=bool), edges), finite, False)


def _large_graphs(similar: Tiles, level: float, eps: float, *, binary: bool) -> Graphs:
    """Connect tokens as :func:`build_graphs` does, without a matrix of n x n numbers."""
    (count, n), unit = similar.unit.shape[:2], similar.unit
    to_itself = unit.square().sum(2)
    loop, finite = (part if unit.is_cuda else part.numpy() for part in (to_itself > level, to_itself.isfinite()))
    ones: Array = np.ones((count, n))
    ones = array_like(ones, unit) if unit.is_cuda else ones
    edges = LargeEdges.of(similar, level, None if binary else eps)
    total: Array = edges.product(ones, 1.0)
    if binary:
        return Graphs(edges, 1.0 - eps, eps, (1.0 - eps) * total + eps * n, (total == 1) & loop, finite, True)
    return Graphs(edges, 1.0, 0.0, total, loop & False, finite, False)
