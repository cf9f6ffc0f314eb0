"""The nearest of many unit vectors by inner product: faiss, exact by default, or torch where faiss has no GPU.

faiss (Douze et al. 2024) is on the GPU where it is built with one. Both exact ways compare float32 inner products; they
may order vectors differently whose similarities differ by its rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.errors import ConfigError
from eval.retrieval.config import IndexName

_CHUNK_ELEMENTS = 2**26  # similarities held at once by torch: 256 MiB
_IVF_PROBES = 32  # inverted lists that are searched
_LARGE = 2**20  # vectors beyond which cells are found of fewer of them, in fewer rounds, than faiss would (256, 10)
_FEW, _ROUNDS = 39, 4  # a cell; 39 is the least that faiss recommends


class Neighbours:
    """An index of unit vectors float32 (M, C).

    ``flat`` compares a query with all of them; on a CPU it reads ``memory`` itself, without a copy. ``ivf`` groups them
    in about 4·√M cells by k-means and compares it with those of the 32 nearest cells: faster, not exact.
    """

    def __init__(self, memory: NDArray[np.float32], device: torch.device, index: IndexName = "flat") -> None:
        import faiss  # heavy, and only for its indexes

        self.count, self.device = len(memory), device
        self._rows: torch.Tensor | None = None
        self._exact: Callable[..., Any] | None = None
        memory = np.ascontiguousarray(memory)
        on_gpu = device.type == "cuda" and faiss.get_num_gpus() > 0
        if device.type == "cpu" and index == "flat":
            self._exact = partial(faiss.knn, xb=memory, metric=faiss.METRIC_INNER_PRODUCT)
            return
        if device.type == "cuda" and not on_gpu and index == "flat":
            self._rows = torch.from_numpy(memory).to(device, non_blocking=True)
            return
        dim = memory.shape[1]
        self._index: Any = faiss.IndexFlatIP(dim)
        if index == "ivf":
            cells = min(self.count, round(4 * math.sqrt(self.count)))
            self._index = faiss.IndexIVFFlat(self._index, dim, cells, faiss.METRIC_INNER_PRODUCT)
            self._index.cp.min_points_per_centroid = 1  # few vectors are no reason to warn
            if self.count > _LARGE:
                self._index.cp.max_points_per_centroid, self._index.cp.niter = _FEW, _ROUNDS
            self._index.nprobe = min(cells, _IVF_PROBES)
        if on_gpu:
            self._resources = faiss.StandardGpuResources()
            self._index = faiss.index_cpu_to_gpu(self._resources, device.index or 0, self._index)
        self._index.train(memory)
        self._index.add(memory)

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the ``k`` largest inner products of each query (Q, C), falling, and with which vectors, both (Q, k).

        Where ``ivf`` finds fewer, similarities are -inf. Raises :class:`ConfigError` if there are fewer than ``k``.
        """
        if not 1 <= k <= self.count:
            raise ConfigError(f"k: {k} neighbours were asked of {self.count} vectors", f"choose 1 to {self.count}")
        if self._rows is not None:
            return self._by_torch(torch.from_numpy(queries).to(self.device, non_blocking=True), self._rows, k)
        queries = np.ascontiguousarray(queries)
        similar, where = self._exact(queries, k=k) if self._exact else self._index.search(queries, k)
        similar[where < 0] = -np.inf
        return cast("NDArray[np.float32]", similar), np.maximum(where, 0)

    @staticmethod
    def _by_torch(queries: torch.Tensor, rows: torch.Tensor, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        nearest = [(part @ rows.T).topk(k) for part in torch.split(queries, max(1, _CHUNK_ELEMENTS // len(rows)))]
        similar, where = (torch.cat(parts).cpu().numpy() for parts in zip(*nearest, strict=True))
        return similar, where
