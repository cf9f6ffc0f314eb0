"""Gradients of one step: exchanged among ranks once, their norms, and each held to a bound of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dinoskip.runtime.distributed import local


def last_only(forward: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Around forward and backward of one micro-batch: gradients are exchanged only if it is the ``last`` of its step.

    ``forward`` is what ``parallel.wrap`` returned. Before the last micro-batch gradients add up on each rank.
    """
    if last or not isinstance(forward, (DistributedDataParallel, FSDPModule)):
        return nullcontext()
    return forward.no_sync() if isinstance(forward, DistributedDataParallel) else _unsynchronised(forward)


@contextmanager
def _unsynchronised(module: FSDPModule) -> Iterator[None]:
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


@torch.no_grad()
def gradient_norms(gradients: list[Tensor]) -> Tensor:
    """Euclidean norms (P,) float32 of whole gradients, equal on all ranks; collective if they are sharded.

    ``gradients`` are all plain tensors or all sharded, in the same order on every rank; P >= 1.
    """
    norms = torch.stack([norm.float() for norm in torch._foreach_norm([local(g) for g in gradients])])
    first = gradients[0]
    if not isinstance(first, DTensor):
        return norms
    squares = norms.square()
    dist.all_reduce(squares, group=first.device_mesh.get_group())
    return squares.sqrt()


def gradients_of(module: nn.Module) -> list[Tensor]:
    """The gradients that are there, in the order of the parameters."""
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def clip_each_(gradients: list[Tensor], norms: Sequence[float], bound: float) -> None:
    """Scale each gradient to norm ``bound`` at most, by its own norm (not the global one); 0 = leave all.

    ``norms`` are the gradients' norms on the host: they come with the finite test, and spare the scaling of
    the many gradients that are short enough.
    """
    # 1e-6 as clip_gradients of DINO's utils.py.
    long = [(g, bound / (n + 1e-6)) for g, n in zip(gradients, norms, strict=True) if bound and n + 1e-6 > bound]
    if long:
        torch._foreach_mul_([g for g, _ in long], [scale for _, scale in long])
