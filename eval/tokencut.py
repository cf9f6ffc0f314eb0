"""TokenCut (Wang et al., CVPR 2022): one object box an image from a normalised cut of its patch tokens.

The rules are those of the public reference (YangtaoWANG95/TokenCut), docs/tokencut.md lists them; the eigenvector
comes from :mod:`eval.lanczos` and, where its accuracy leaves the seed or the split open, from the reference's own
dense solver.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import scipy.ndimage
import torch
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from eval.graph import CutVector, Graph, build_graph, dense_vector, normalise
from eval.lanczos import lanczos

Box = tuple[int, int, int, int]
T = TypeVar("T")
TIE = 1e-8  # seeds this close (relative) are tied: the reference's choice among them depends on the BLAS
RESOLVED = 1e-10  # relative error below which "tied" can be told from "nearly tied"
MULTIPLE = 1e-9  # second and third eigenvalue closer than this: the eigenvector is one of many
DENSE_TOKENS = 48  # up to here the dense solver is as fast


@dataclass(frozen=True, eq=False)
class TokenCut:
    """The cut of one image, h x w tokens, N = h * w.

    Attributes
    ----------
    eigenvector
        float64 (N,), row-major over the grid: second generalised eigenvector y, y'Dy = 1, positive at the seed's side.
    mask
        bool (h, w): the side of the split that holds the seed (foreground).
    component
        bool (h, w): the 4-connected part of ``mask`` that holds the seed.
    seed
        Flat index of the token of largest \\|y\\|, the lowest one of those tied.
    box
        x1 y1 x2 y2 of ``component`` in cells, end exclusive.
    tied
        int64: all tokens tied for the seed, ``seed`` included.
    degenerate
        Whether the second eigenvalue is multiple, so that the cut is one of many equally good ones.
    eigenvalue, gap
        The second smallest generalised eigenvalue and its distance to the third.
    passes
        Products with the affinity matrix that Lanczos took; 0 if the dense solver had the last word.
    """

    eigenvector: NDArray[np.float64]
    mask: NDArray[np.bool_]
    component: NDArray[np.bool_]
    seed: int
    box: Box
    tied: NDArray[np.int64]
    degenerate: bool
    eigenvalue: float
    gap: float
    passes: int

    @property
    def ambiguous(self) -> bool:
        """Whether another of the tied seeds lies outside ``component``, that is, would give another box."""
        return not bool(self.component.ravel()[self.tied].all())


class TokenCuts(tuple[TokenCut, ...]):
    """The cuts of a batch: a tuple of :class:`TokenCut` whose attributes also come stacked."""

    @property
    def eigenvector(self) -> NDArray[np.float64]:
        """float64 (B, N)."""
        return np.stack([cut.eigenvector for cut in self])

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Bool (B, h, w)."""
        return np.stack([cut.mask for cut in self])

    @property
    def seed(self) -> NDArray[np.int64]:
        """int64 (B,)."""
        return np.array([cut.seed for cut in self], dtype=np.int64)

    @property
    def box(self) -> NDArray[np.int64]:
        """int64 (B, 4), in cells."""
        return np.array([cut.box for cut in self], dtype=np.int64)


def tokencut(
    features: ArrayLike | torch.Tensor,
    grid: tuple[int, int],
    tau: float = 0.2,
    eps: float = 1e-5,
    *,
    binary: bool = True,
) -> TokenCut | TokenCuts:
    """Cut patch tokens in two by a normalised cut and box the object.

    Parameters
    ----------
    features
        (N, C), or (B, N, C) for B images of one grid, which run in parallel, one core each; NumPy or torch, cast to
        float32. Patch tokens only (no class token), row-major over the grid, not normalised.
    grid
        (rows, columns), rows * columns = N.
    tau, eps
        Affinity is 1 where the cosine similarity is strictly greater than ``tau``, else ``eps``.
    binary
        False keeps the similarity instead of 1 (the reference's ``--no-binary-graph``).

    Returns
    -------
    A :class:`TokenCut`, or for (B, N, C) a :class:`TokenCuts`, equal to the B single ones.

    Raises
    ------
    ValueError
        Fewer than 3 tokens, a shape that does not fit the grid, non-finite features, or a degree that is not positive.
    """
    array = _as_float32(features)
    if array.ndim == 2:
        _check(array, grid)
        return cut_unit(normalise(array), grid, tau, eps, binary=binary)
    if array.ndim != 3:
        raise ValueError(f"features must have shape (N, C) or (B, N, C), not {array.shape}")
    for one in array:
        _check(one, grid)
    return TokenCuts(each(lambda i: cut_unit(normalise(array[i]), grid, tau, eps, binary=binary), len(array)))


def cut_unit(
    unit: NDArray[np.float32], grid: tuple[int, int], tau: float, eps: float, *, binary: bool = True
) -> TokenCut:
    """Cut one image whose rows (N, C), float32, are already normalised as they shall be compared."""
    _check(unit, grid)
    graph = build_graph(unit, tau, eps, binary)
    return split(cut_vector(graph), grid)


def cut_vector(graph: Graph) -> CutVector:
    """Return the cut vector, by Lanczos if that decides split and seed, else by the dense solver."""
    if len(graph.degree) > DENSE_TOKENS:
        image, twins = graph.probe()
        candidate = lanczos(graph, image, twins)
        if candidate is not None and _decides(candidate, twins):
            return candidate
    return dense_vector(graph)


def _decides(vector: CutVector, twins: NDArray[np.intp]) -> bool:
    """Whether no value within the error bounds of ``vector`` would move a token across the mean or change the seed."""
    if (np.abs(vector.y - vector.y.mean()) <= 2 * vector.error).any():
        return False
    size = np.abs(vector.y)
    top = int(size.argmax())
    slack = vector.error + vector.error[top]
    rivals = (size >= size[top] * (1 - TIE) - slack) & (twins != twins[top])
    return bool((slack[rivals] <= RESOLVED * size[top]).all())


def split(vector: CutVector, grid: tuple[int, int]) -> TokenCut:
    """Apply the reference's rules to the cut vector: mean split, seed, foreground side, component, box."""
    y = vector.y
    size = np.abs(y)
    tied = np.flatnonzero(size >= size.max() * (1 - TIE)).astype(np.int64)
    seed = int(tied[0])
    mask = y > y.mean()
    if not mask[seed]:
        y, mask = -y, ~mask
    mask = mask.reshape(grid)
    labels, _ = scipy.ndimage.label(mask)  # its default structure is the 4-neighbourhood
    component = labels == labels.flat[seed]
    rows, columns = np.flatnonzero(component.any(axis=1)), np.flatnonzero(component.any(axis=0))
    return TokenCut(
        eigenvector=y,
        mask=mask,
        component=component,
        seed=seed,
        box=(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1),
        tied=tied,
        degenerate=vector.gap < MULTIPLE,
        eigenvalue=vector.eigenvalue,
        gap=vector.gap,
        passes=vector.passes,
    )


def to_pixels(box: ArrayLike, patch_size: int, image_size: tuple[int, int]) -> Box:
    """Return a box in cells as x1 y1 x2 y2 in pixels, end exclusive, clipped to the image.

    ``image_size`` is the original (H, W), before padding to a multiple of ``patch_size``.
    """
    height, width = image_size
    x1, y1, x2, y2 = (int(side) * int(patch_size) for side in np.asarray(box).reshape(4))
    return min(x1, width), min(y1, height), min(x2, width), min(y2, height)


def each(function: Callable[[int], T], count: int) -> Iterator[T]:
    """Yield ``function(0)``, ..., ``function(count - 1)`` in order, computed by one thread a core with one BLAS thread.

    Batched products are slower on a CPU than one graph a core; NumPy's products release the interpreter lock.
    """
    executor = ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0)))
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield from executor.map(function, range(count))
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _as_float32(features: ArrayLike | torch.Tensor) -> NDArray[np.float32]:
    if isinstance(features, torch.Tensor):
        features = features.detach().to("cpu", torch.float32).numpy()
    if np.iscomplexobj(features):
        raise ValueError("features must be real")
    with np.errstate(over="ignore"):  # what overflows float32 is refused as non-finite
        return np.ascontiguousarray(features, dtype=np.float32)


def _check(array: NDArray[np.float32], grid: tuple[int, int]) -> None:
    rows, columns = grid
    if array.ndim != 2 or rows < 1 or columns < 1 or len(array) != rows * columns:
        raise ValueError(f"features of shape {array.shape} do not fit a grid of {rows} x {columns} tokens")
    if len(array) < 3:
        raise ValueError(f"a cut needs at least 3 tokens, not {len(array)}")
    if not np.isfinite(array).all():
        raise ValueError("features must be finite")
