"""Several ranks on one model: DistributedDataParallel, or FSDP2 (``fully_shard``), behind a few functions.

Beside this file only ``gradients.py`` and ``checkpoint.py`` know which of the two runs. ``ddp`` keeps all parameters
on every rank; ``fsdp`` cuts each along its first axis, so that a rank holds 1/size of parameters, gradients and
optimizer state, and gathers a transformer block only while it computes (Zhao et al. 2023, arXiv:2304.11277). Both
average gradients over ranks in the parameters' own precision, so they give the same numbers up to rounding. With one
rank every function passes its argument through.

Order: build, compile if wanted, :func:`wrap` and :func:`shard`, and only then the optimizer and any
list of parameters, for ``fsdp`` replaces the parameters of a module by sharded ones of the same names.
"""

from __future__ import annotations

import warnings
from typing import Literal

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dinoskip.errors import ConfigError
from dinoskip.runtime.distributed import World

Strategy = Literal["ddp", "fsdp"]


def transformer_blocks(module: nn.Module) -> list[nn.Module]:
    """The transformer blocks in a module."""
    sequences = (getattr(part, "blocks", None) for part in module.modules())
    return [block for blocks in sequences if isinstance(blocks, (nn.Sequential, nn.ModuleList)) for block in blocks]


def wrap(module: nn.Module, here: World, strategy: Strategy) -> nn.Module:
    """Make ``module`` one that exchanges gradients among ranks, and return what to call in the forward pass.

    ``ddp`` returns a wrapper around the untouched module; ``fsdp`` shards the module in place and returns it. Every
    rank must hold the same values before. No parameter may go unused in a step; one may be used more than once
    (a backbone over two crop sizes), and its gradient may be dropped afterwards (a frozen last layer).
    """
    if here.size == 1:
        return module
    _synchronise_norms(module, here)
    if strategy == "fsdp":
        shard(module, here, strategy)
        return module
    devices = [here.device] if here.device.type == "cuda" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.15 renames broadcast_buffers; 2.11 has no other name
        # Buffers of ours change alike on all ranks, so none is broadcast; gradients live in the buckets that are sent.
        return DistributedDataParallel(module, devices, broadcast_buffers=False, gradient_as_bucket_view=True)


def _synchronise_norms(module: nn.Module, here: World) -> None:
    """Let BatchNorm, in place, see the batches of all ranks; :class:`ConfigError` without GPUs, where torch cannot."""
    if not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
        return
    if here.device.type != "cuda":
        raise ConfigError("a network with BatchNorm is trained by one process, or on GPUs")
    nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]


def shard(module: nn.Module, here: World, strategy: Strategy) -> None:
    """Under ``fsdp`` shard ``module`` in place: each transformer block by itself, then all that is left; else nothing.

    A teacher sharded like its student has the same slices on the same rank, so that its moving average needs no
    communication.
    """
    if here.size > 1:
        _synchronise_norms(module, here)
    if here.size == 1 or strategy != "fsdp":
        return
    mesh = init_device_mesh(here.device.type, (here.size,))
    for block in transformer_blocks(module):
        fully_shard(block, mesh=mesh)
    # By default the outermost module keeps its gathered parameters after a forward pass, until a backward pass. A
    # teacher has none: it would go on with the values that it had at its first step.
    fully_shard(module, mesh=mesh, reshard_after_forward=True)
