"""Ranks from torchrun, SLURM or none, and the few things all ranks must agree on.

With one process every function here is a plain pass-through, so the training loop is written once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from dinoskip.errors import ConfigError, DataError

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process's place among all: ``rank`` of ``size``, and the device it computes on."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes files and prints."""
        return self.rank == 0


def choose_device(device: str = "auto", local_rank: int = 0) -> torch.device:
    """Return the device named ``auto``, ``cpu`` or ``cuda``; :class:`ConfigError` if it is not there."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in {"cpu", "cuda"}:
        raise ConfigError(f"device: {device!r} is none of auto, cpu, cuda")
    if device == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                "device: cuda was asked for, but torch sees no GPU", "use device=cpu or see `dinoskip doctor`"
            )
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def _ranks() -> tuple[int, int, int]:
    """Return (rank, world size, local rank) from torchrun's variables, else SLURM's, else (0, 1, 0)."""
    env = os.environ
    if "RANK" in env and "WORLD_SIZE" in env:
        return int(env["RANK"]), int(env["WORLD_SIZE"]), int(env.get("LOCAL_RANK", 0))
    if "SLURM_PROCID" in env and int(env.get("SLURM_NTASKS", 1)) > 1 and "SLURM_STEP_ID" in env:
        return int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"]), int(env.get("SLURM_LOCALID", 0))
    return 0, 1, 0


@contextmanager
def world(device: str = "auto") -> Iterator[World]:
    """Join the process group (nccl on GPUs, gloo on CPUs) if there are several ranks, and leave it at the end."""
    rank, size, local_rank = _ranks()
    chosen = choose_device(device, local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if size > 1:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", rank=rank, world_size=size)
    try:
        yield World(rank, size, chosen)
    finally:
        if size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def _many() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def all_reduce_mean(tensor: torch.Tensor) -> torch.Tensor:
    """Average ``tensor`` over all ranks in place and return it."""
    if _many():
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
    return tensor


def all_reduce_max(tensor: torch.Tensor) -> torch.Tensor:
    """Element-wise maximum over all ranks, in place: how ranks agree on stop flags and non-finite steps."""
    if _many():
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


def from_main(value: Any) -> Any:
    """Return rank 0's ``value`` on every rank: facts about the file system are decided once."""
    if not _many():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def on_main(action: Callable[[], T]) -> T:
    """Run ``action`` on rank 0 alone; every rank returns its value or raises its error: none waits for a dead one."""
    if not _many():
        return action()
    box: tuple[Any, Exception | None] = (None, None)
    if dist.get_rank() == 0:
        try:
            box = (action(), None)
        except Exception as failure:
            box = (None, failure)
    value, error = from_main(box)
    if error is not None:
        raise error
    return cast(T, value)


def gather(value: Any) -> list[Any]:
    """Return every rank's ``value``, in the order of ranks."""
    if not _many():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def agree(value: T, what: str) -> T:
    """Return ``value`` if it is the same on all ranks; else every rank raises :class:`DataError` naming ``what``."""
    found = gather(value)
    other = next((rank for rank, theirs in enumerate(found) if theirs != found[0]), None)
    if other is not None:
        raise DataError(
            f"{what}: rank {other} sees {found[other]}, rank 0 sees {found[0]}",
            "every machine must see the same files: check that the path is the same shared folder everywhere",
        )
    return value
