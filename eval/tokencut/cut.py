"""TokenCut (Wang et al., CVPR 2022): one object box an image from a normalised cut of its patch tokens.

The rules are those of the public reference (YangtaoWANG95/TokenCut), docs/tokencut.md lists them; the eigenvector
comes from :mod:`eval.tokencut.eigenvector`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import scipy.ndimage
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dinoskip.runtime.cores import available_cores
from eval.tokencut.eigenvector import TIE, CutVector, blas, cut_vectors, off_mean
from eval.tokencut.graph import build_graphs, normalise, similarities
from eval.tokencut.memory import images_at_once
from eval.tokencut.tiles import Tiles

Box = tuple[int, int, int, int]
Grid = tuple[int, int]
T = TypeVar("T")
NO_BOX: Box = (-1, -1, -1, -1)  # of a graph without a cut; no pixel is in it
LEAST_TOKENS = 3  # fewer cannot be cut
_GPU_BYTES = 2**31  # larger: fewer launches for small graphs; smaller: less memory beside the network
_AHEAD = 8  # calls that wait or are done for each worker: graphs take unequal times


@dataclass(frozen=True, eq=False)
class TokenCut:
    """The cut of one image, h x w tokens, N = h * w.

    Attributes
    ----------
    is_cut
        Whether the graph has one second eigenvector. It has none where all weights between tokens are equal, or the
        second and third eigenvalue are (:data:`eval.tokencut.eigenvector.MULTIPLE`): what a solver returns is then the
        processor's choice. Such an image has no box and counts as a miss.
    eigenvector
        float64 (N,), row-major over the grid: second generalised eigenvector y, y'Dy = 1, positive at the seed's side.
        NaN without a cut.
    mask
        bool (h, w): the side of the split that holds the seed (foreground), empty without a cut. Tokens on the mean
        (:func:`eval.tokencut.eigenvector.off_mean`) are in neither side: background.
    component
        bool (h, w): the 4-connected part of ``mask`` that holds the seed.
    seed
        Flat index of the token of largest \\|y\\|, the lowest one of those tied; -1 without a cut.
    box
        x1 y1 x2 y2 of ``component`` in cells, end exclusive; -1 -1 -1 -1 without a cut.
    tied
        int64: all tokens tied for the seed, ``seed`` included.
    complete
        Whether every token is joined to every other, as in a collapsed network; no cut, then.
    eigenvalue, gap
        The second smallest generalised eigenvalue and its distance to the third.
    passes
        Products with the affinity matrix that Lanczos took; 0 if another solver had the last word.
    """

    is_cut: bool
    eigenvector: NDArray[np.float64]
    mask: NDArray[np.bool_]
    component: NDArray[np.bool_]
    seed: int
    box: Box
    tied: NDArray[np.int64]
    complete: bool
    eigenvalue: float
    gap: float
    passes: int

    @property
    def degenerate(self) -> bool:
        """Whether there is no cut: the opposite of ``is_cut``, as result rows have it."""
        return not self.is_cut

    @property
    def ambiguous(self) -> bool:
        """Whether another of the tied seeds lies outside ``component``, that is, would give another box."""
        return not bool(self.component.ravel()[self.tied].all())


class TokenCuts(tuple[TokenCut, ...]):
    """The cuts of a batch: a tuple of :class:`TokenCut` whose attributes also come stacked."""

    @property
    def is_cut(self) -> NDArray[np.bool_]:
        """Bool (B,)."""
        return np.array([cut.is_cut for cut in self], dtype=np.bool_)

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


# tau and eps are those of main_tokencut.py.
def tokencut(
    features: ArrayLike | Tensor, grid: Grid, tau: float = 0.2, eps: float = 1e-5, *, binary: bool = True
) -> TokenCut | TokenCuts:
    """Cut patch tokens in two by a normalised cut and box the object.

    Parameters
    ----------
    features
        (N, C), or (B, N, C) for B images of one grid; NumPy or torch, cast to float32. On a CPU the B run in parallel,
        one core each; a tensor on a GPU is cut there, all B at once. Patch tokens only (no class token), row-major
        over the grid, not normalised.
    grid
        (rows, columns), rows * columns = N.
    tau, eps
        Affinity is 1 where the cosine similarity is strictly greater than ``tau``, else ``eps``.
    binary
        False keeps the similarity instead of 1 (the reference's ``--no-binary-graph``).

    Returns
    -------
    TokenCut or TokenCuts
        The latter for (B, N, C), equal to the B single ones.

    Raises
    ------
    ValueError
        Fewer than 3 tokens, a shape that does not fit the grid, non-finite features, or a degree that is not positive.
    """
    tensor = as_float32(features)
    if tensor.ndim not in {2, 3}:
        raise ValueError(f"features must have shape (N, C) or (B, N, C), not {tuple(tensor.shape)}")
    batch = tensor if tensor.ndim == 3 else tensor[None]
    check_tokens(batch, grid)

    def cut_part(part: Tensor) -> list[TokenCut]:
        similarity = similarities(normalise(part))
        return cut(similarity, [grid] * len(part), tau, eps, binary=binary)

    if tensor.ndim == 2:
        return cut_part(batch)[0]
    parts = torch.split(batch, batch_size(batch.shape[1], batch.device))
    at_once = images_at_once(*batch.shape[1:])
    batches = map(cut_part, parts) if batch.is_cuda else each(lambda i: cut_part(parts[i]), len(batch), at_once)
    return TokenCuts(cut for cuts in batches for cut in cuts)


def cut(
    similarity: Tensor | Tiles, grids: Sequence[Grid], tau: float, eps: float, *, binary: bool = True
) -> list[TokenCut]:
    """Cut images of one number of tokens N by their similarities, float32 (B, N, N), each with its own grid.

    See :func:`eval.tokencut.graph.similarities`: those of large images are tiles.
    """
    graphs = build_graphs(similarity, tau, eps, binary=binary)
    return [split(vector, grid) for vector, grid in zip(cut_vectors(graphs), grids, strict=True)]


def split(vector: CutVector, grid: tuple[int, int]) -> TokenCut:
    """Apply the reference's rules to the cut vector: mean split, seed, foreground side, component, box."""
    y, is_cut = vector.y, vector.is_cut
    if is_cut:
        size, distance = np.abs(y), off_mean(y)
        tied = np.flatnonzero(size >= size.max() * (1 - TIE)).astype(np.int64)
        seed = int(tied[0])
        if distance[seed] < 0:
            y, distance = -y, -distance
        # Tokens on the mean are background; the reference compares with a rounded mean, so there rounding decides.
        mask = (distance > 0).reshape(grid)
        component, box = component_of(mask, seed)
    else:
        # The reference boxes these images, too: by the vector that the solver happens to return, which depends on the
        # processor's BLAS. Such a box is no measurement of the network, so there is none, and the image is a miss.
        y, tied, seed, box = np.full_like(y, np.nan), np.empty(0, dtype=np.int64), -1, NO_BOX
        mask, component = (np.zeros(grid, dtype=np.bool_) for _ in range(2))
    return TokenCut(
        is_cut=is_cut,
        eigenvector=y,
        mask=mask,
        component=component,
        seed=seed,
        box=box,
        tied=tied,
        complete=vector.complete,
        eigenvalue=vector.eigenvalue,
        gap=vector.gap,
        passes=vector.passes,
    )


def component_of(mask: NDArray[np.bool_], seed: int) -> tuple[NDArray[np.bool_], Box]:
    """Return the 4-connected part of ``mask`` (h, w) that holds token ``seed``, one of it, and its box in cells."""
    labels, _ = scipy.ndimage.label(mask)  # its default structure is the 4-neighbourhood
    component = labels == labels.flat[seed]
    rows, columns = np.flatnonzero(component.any(axis=1)), np.flatnonzero(component.any(axis=0))
    return component, (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)


def to_pixels(box: ArrayLike, patch_size: int, image_size: tuple[int, int]) -> Box:
    """Return a box in cells as x1 y1 x2 y2 in pixels, end exclusive, clipped to the image.

    ``image_size`` is the original (H, W), before padding to a multiple of ``patch_size``. The box -1 -1 -1 -1 of an
    image without a cut stays as it is.
    """
    height, width = image_size
    if (np.asarray(box) < 0).all():
        return NO_BOX
    x1, y1, x2, y2 = (int(side) * int(patch_size) for side in np.asarray(box).reshape(4))
    return min(x1, width), min(y1, height), min(x2, width), min(y2, height)


def each(function: Callable[[int], T], count: int, workers: int = 0) -> Iterator[T]:
    """Yield ``function(0)``, ..., ``function(count - 1)`` in order, from worker threads with one BLAS thread each.

    ``workers`` 0 is one a core. They are a few calls ahead of what is taken, so that memory does not grow with
    ``count``. One graph a core is faster on a CPU than batched products; torch and NumPy
    release the interpreter lock while they compute (SciPy's ``dsymv``, a quarter of a cut, does not).
    """
    threads, workers = torch.get_num_threads(), workers or available_cores()
    executor = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    ahead: deque[Future[T]] = deque()
    try:
        with blas().limit(limits=1, user_api="blas"):
            for i in range(count):
                ahead.append(executor.submit(function, i))
                if len(ahead) > _AHEAD * workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)  # what a worker sets is also what threads of later begin with


def batch_size(tokens: int, device: torch.device) -> int:
    """Return how many graphs of ``tokens`` tokens to cut at once: one on a CPU, as many as take some 2 GiB on a GPU."""
    return max(1, _GPU_BYTES // (16 * tokens**2)) if device.type == "cuda" else 1


def check_tokens(batch: Tensor, grid: Grid, least: int = LEAST_TOKENS) -> None:
    """Raise ValueError if features (B, N, C) do not fit the grid or are of fewer than ``least`` tokens."""
    rows, columns = grid
    if batch.ndim != 3 or rows < 1 or columns < 1 or batch.shape[1] != rows * columns:
        raise ValueError(f"features of shape {tuple(batch.shape[1:])} do not fit a grid of {rows} x {columns} tokens")
    if batch.shape[1] < least:
        raise ValueError(f"a cut needs at least {least} tokens, not {batch.shape[1]}")


def as_float32(features: ArrayLike | Tensor) -> Tensor:
    """Return features as a float32 tensor, on the device where they are; ValueError if they are complex."""
    if not isinstance(features, Tensor):
        features = np.asarray(features)
        if np.iscomplexobj(features):
            raise ValueError("features must be real")
        with np.errstate(over="ignore"):  # what overflows float32 is refused as non-finite
            features = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
    elif features.is_complex():
        raise ValueError("features must be real")
    return features.detach().float().contiguous()
