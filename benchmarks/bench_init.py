"""Time to initialise, one thread, in seconds of this process: ``python benchmarks/bench_init.py``.

Claims (dinoskip/init): the leading 64 triplets of a query-key matrix come two to four times faster than by
``torch.linalg.svd``, with the same product to 1e-12; a whole ViT-B takes less than 30 s.
"""

from __future__ import annotations

from functools import partial

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from benchmarks.measuring import least_seconds, seconds
from dinoskip.init import ModelConfig, build_model
from dinoskip.init.config import ConditionedInit, Init, MimeticInit, ResidualFreeInit, SkiplessInit
from dinoskip.init.orthogonal import noise_matrix, spectral_factors
from dinoskip.runtime.randomness import torch_rng


def by_svd(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    u, s, vh = torch.linalg.svd(matrix)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, vh[:rank].T * root


def main() -> None:
    torch.set_num_threads(1)
    for dim, alpha, beta in ((384, 1.8, 1.0), (768, 2.0, 0.6)):
        matrix = alpha * noise_matrix(dim, "normal", torch_rng(0)) + beta * torch.eye(dim, dtype=torch.float64)
        ours, full = spectral_factors(matrix, 64), by_svd(matrix, 64)
        error = float((ours[0] @ ours[1].T - full[0] @ full[1].T).norm() / (full[0] @ full[1].T).norm())
        balance = float((ours[0].T @ ours[0] - ours[1].T @ ours[1]).abs().max())
        fast, slow = (least_seconds(partial(factors, matrix, 64)) for factors in (spectral_factors, by_svd))
        print(
            f"width {dim}: {fast * 1e3:.0f} ms, SVD {slow * 1e3:.0f} ms, {slow / fast:.1f}x, "
            f"relative error {error:.0e}, balance {balance:.0e}"
        )
    inits: tuple[Init, ...] = (
        SkiplessInit(alpha=2, beta=0.6),
        SkiplessInit(alpha=2, beta=0.6, draw="svd"),
        MimeticInit(),
        ConditionedInit(v="blocked"),
        ResidualFreeInit(),
    )
    for init in inits:
        model = ModelConfig(name="vit_base_patch16", skip=False, init=init)
        taken = seconds(partial(build_model, model, 0))
        print(f"ViT-B, {init.name}{' svd' if getattr(init, 'draw', '') == 'svd' else ''}: {taken:.1f} s")


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
