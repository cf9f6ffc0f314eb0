"""Query-key factors from leading eigenvectors against a full SVD, one thread: ``python benchmarks/bench_init.py``.

Claim (dinoskip/init/orthogonal.py): at ViT-S and ViT-B widths the leading 64 triplets are found two to four times
faster, with the same product to 1e-12.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from dinoskip.init.orthogonal import noise_matrix, spectral_factors
from dinoskip.randomness import torch_rng


def by_svd(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    u, s, vh = torch.linalg.svd(matrix)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, vh[:rank].T * root


def best_time(function: Callable[[], object], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def main() -> None:
    torch.set_num_threads(1)
    for dim, alpha, beta in ((384, 1.8, 1.0), (768, 2.0, 0.6)):
        matrix = alpha * noise_matrix(dim, "normal", torch_rng(0)) + beta * torch.eye(dim, dtype=torch.float64)
        ours, full = spectral_factors(matrix, 64), by_svd(matrix, 64)
        error = float((ours[0] @ ours[1].T - full[0] @ full[1].T).norm() / (full[0] @ full[1].T).norm())
        fast, slow = best_time(lambda m=matrix: spectral_factors(m, 64)), best_time(lambda m=matrix: by_svd(m, 64))  # type: ignore[misc]
        print(
            f"width {dim}: {fast * 1e3:.1f} ms, SVD {slow * 1e3:.1f} ms, {slow / fast:.1f}x, relative error {error:.1e}"
        )


if __name__ == "__main__":
    main()
