"""Whole tensors of modules that may be sharded, and back: what checkpoints and evaluation need of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from dinoskip.distributed import local, whole


@torch.no_grad()
def load_whole_(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into ``target``, of which this rank may hold a slice only; every rank passes the same value.

    ``value`` may lie on another device and have another dtype; its shape must be the target's whole shape.
    """
    if target.shape != value.shape:
        raise ValueError(f"shape {tuple(value.shape)} does not fit {tuple(target.shape)}")
    if isinstance(target, DTensor):
        # No source rank: each cuts its own slice, and nothing is sent.
        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
    local(target).copy_(local(value))


@torch.no_grad()
def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """A module's state, whole and on the CPU; collective if it is sharded."""
    return {name: whole(tensor).cpu() for name, tensor in module.state_dict().items()}


def as_parameter(parameter: Tensor, value: Tensor) -> Tensor:
    """``value`` cut as ``parameter`` is, if that is sharded and both have one shape; else ``value`` itself."""
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)
