"""Part ``tokencut``: TokenCut in batches on the device, where its time goes, and a plain dense one beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.bench_tokencut import features
from benchmarks.gpu.kit import Kit
from eval.tokencut.cut import TokenCuts, batch_size, split, tokencut
from eval.tokencut.eigenvector import cut_vectors
from eval.tokencut.graph import build_graphs, normalise, similarities

GRIDS = ((28, 28), (37, 50))
_DISTINCT = 24  # images that are made up; a batch repeats them


def dense(tokens: Tensor) -> Tensor:
    """The second eigenvector of one image the usual way on a GPU: dense affinity, eigh in float64."""
    unit = torch.nn.functional.normalize(tokens, dim=1)
    affinity = torch.where(unit @ unit.T > 0.2, 1.0, 1e-5).double()
    scale = affinity.sum(1).rsqrt()
    laplacian = torch.eye(len(affinity), device=tokens.device, dtype=affinity.dtype) - scale[:, None] * affinity * scale
    second: Tensor = torch.linalg.eigh(laplacian)[1][:, 1] * scale
    return second


def run(kit: Kit) -> None:
    """Measure each grid."""
    for grid in ((10, 14),) if kit.tiny else GRIDS:
        if kit.has(6):
            with kit.attempt(f"grid {grid}"):
                measure(kit, grid)


def measure(kit: Kit, grid: tuple[int, int]) -> None:
    """Images a second, milliseconds of the parts of a batch, and the dense way's rate."""
    kit.fresh()
    at_once = 3 if kit.tiny else batch_size(grid[0] * grid[1], kit.device)
    count = at_once if kit.tiny else 2 * at_once
    distinct = np.stack([features(grid, 384, seed) for seed in range(min(count, _DISTINCT))])
    tokens = torch.from_numpy(np.resize(distinct, (count, *distinct.shape[1:]))).to(kit.device)
    tokencut(tokens, grid)
    whole, cuts = kit.taken(lambda: tokencut(tokens, grid))
    kit.say(f"TokenCut {grid}", images_s=count / whole, images=count)
    part, spent = tokens[:at_once], {}

    def timed(name: str, action: Callable[[], Any]) -> Any:
        seconds, value = kit.taken(action)
        spent[name] = 1e3 * seconds
        return value

    likeness = timed("similarities", lambda: similarities(normalise(part)))
    graphs = timed("graphs", lambda: build_graphs(likeness, 0.2, 1e-5))
    vectors = timed("eigenvectors", lambda: cut_vectors(graphs))
    timed("boxes on the host", lambda: [split(vector, grid) for vector in vectors])
    kit.say(f"TokenCut {grid}, a batch of {len(part)}, ms", **spent)
    assert isinstance(cuts, TokenCuts)  # of several images
    slow = kit.ms(lambda: dense(tokens[0]), 3, 1)
    agree = abs(np.corrcoef(dense(tokens[0]).cpu().numpy(), cuts[0].eigenvector)[0, 1])
    kit.say(f"dense eigh {grid}", images_s=1e3 / slow, agrees=float(agree))
    with kit.waits("a batch of TokenCut"):
        tokencut(part, grid)
