"""What the stacked optimizers do across ranks: split the refresh of the bases, and step sharded parameters whole.

All ranks step at the same time with the same gradients (DDP has averaged them, FSDP's are gathered here), so they
hold the same state. The bases are computed by one rank each and broadcast: replicas stay bit-identical even where
two GPUs would round a QR differently, and the refresh is shared out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate


def place() -> tuple[int, int]:
    """(rank, number of ranks) of this process; (0, 1) outside torch.distributed."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def owners(costs: Iterable[float], ranks: int) -> list[int]:
    """The rank that does each task: dearest first, each to the rank with the least to do so far."""
    costs = list(costs)
    load, chosen = [0.0] * ranks, [0] * len(costs)
    for task in sorted(range(len(costs)), key=lambda i: -costs[i]):
        chosen[task] = min(range(ranks), key=lambda rank: load[rank])
        load[chosen[task]] += costs[task]
    return chosen


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor gathered (a collective: every rank calls it in the same order), any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's slice of a sharded tensor, sharing its memory; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part(delta: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of ``delta``, which has the parameter's whole shape. Nothing is communicated."""
    if not isinstance(parameter, DTensor):
        return delta
    mesh = parameter.device_mesh
    replicated = DTensor.from_local(delta, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(placements=parameter.placements).to_local()


def shared(
    costs: list[float], compute: Callable[[list[int]], dict[int, list[Tensor]]], like: Callable[[int], list[Tensor]]
) -> list[list[Tensor]]:
    """Let every rank ``compute`` its own tasks (by number), broadcast the results; all ranks return all of them.

    ``like`` gives empty tensors of the shapes and dtypes that a task results in.
    """
    rank, ranks = place()
    owner = owners(costs, ranks)
    mine = compute([task for task, one in enumerate(owner) if one == rank])
    results = [mine[task] if task in mine else like(task) for task in range(len(costs))]
    if ranks > 1:
        for task, tensors in enumerate(results):
            for tensor in tensors:
                dist.broadcast(tensor, owner[task])
    return results


def assemble(
    parts: Iterable[tuple[tuple[slice, ...] | None, Tensor]], shape: torch.Size, view: tuple[int, ...]
) -> Tensor:
    """One tensor of ``shape`` from its cuts (taken in ``view``), or the only part itself."""
    parts = list(parts)
    if parts[0][0] is None:
        return parts[0][1]
    result = torch.empty(shape, dtype=parts[0][1].dtype, device=parts[0][1].device)
    for cut, values in parts:
        result.view(view)[cut] = values
    return result
