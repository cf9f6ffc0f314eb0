"""Ranks from torchrun, SLURM or none, and the few things all ranks must agree on.

With one process every function here is a plain pass-through, so the training loop is written once.
"""

from __future__ import annotations

import faulthandler
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

from dinoskip.errors import ConfigError, DataError, DinoskipError, Interrupted, Preempted, RankLost, first_line
from dinoskip.runtime.console import log
from dinoskip.runtime.cores import available_cores
from dinoskip.runtime.environment import gpu_problem
from dinoskip.runtime.heartbeat import BOUND, IDLE, Heartbeat, ProgressCallback, no_progress
from dinoskip.runtime.joining import Meeting, RankIdentity, job_token, join, ports_of, this_rank

T = TypeVar("T")
JOIN = timedelta(minutes=5)  # for all ranks to find one another
TIMEOUT = timedelta(hours=3)  # of one collective, torch's last resort: longer than ranks wait by default (heartbeat.py)
PATIENCE = timedelta(seconds=IDLE)  # of ranks that wait for one another as long as it takes
_NO_STEP = 0xFFFFFFF0  # SLURM's numbers of the batch script, of an interactive shell and the like begin here


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

    def readers(self, asked: int) -> int:
        """Processes that read images for this rank: as ``asked``. For 0: none on a CPU, which has other work; beside a
        GPU this rank's share of the cores but one, at most 16.
        """
        if asked or self.device.type == "cpu":
            return asked
        cores = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # srun has shared them out
        return max(1, min(16, cores - 1))


def choose_device(device: str = "auto") -> torch.device:
    """Return the device named ``auto``, ``cpu`` or ``cuda``, the first GPU; :class:`ConfigError` if not there.

    ``auto`` on a machine whose GPU torch cannot use is refused, too: hours on its CPU are not what was meant.
    """
    if device == "auto":
        problem = gpu_problem(torch.version.cuda, torch.cuda.is_available())
        if problem is not None:
            raise problem
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in {"cpu", "cuda"}:
        raise ConfigError(f"device: {device!r} is none of auto, cpu, cuda")
    if device == "cuda":
        if not torch.cuda.is_available():
            raise gpu_problem(torch.version.cuda, False) or ConfigError(
                "device: cuda was asked for, but torch sees no GPU", "use --device cpu or see `dinoskip doctor`"
            )
        return torch.device("cuda", 0)
    return torch.device("cpu")


# --- who is there -------------------------------------------------------------------------------------


def _number(name: str, low: int = 0) -> int:
    text = os.environ[name]
    if not text.isdigit() or int(text) < low:
        raise ConfigError(f"{name}={text}: is not a number of {low} or more", "it is set by torchrun or srun; unset it")
    return int(text)


def _ranks() -> tuple[int, int, int, Meeting]:
    """Return (rank, world size, local rank, where to meet) from torchrun's variables, else srun's, else of one process.

    Raises :class:`ConfigError` for variables that contradict one another.
    """
    env = os.environ
    if "RANK" in env or "WORLD_SIZE" in env:
        return _from_torchrun()
    # In a batch script or a shell of salloc there is a job, but no step: one process, whatever the job has.
    if "SLURM_PROCID" not in env or int(env.get("SLURM_STEP_ID", _NO_STEP)) >= _NO_STEP:
        return 0, 1, 0, Meeting()
    rank = _number("SLURM_PROCID")
    size = _number("SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS", 1)
    if rank >= size:
        raise ConfigError(f"SLURM_PROCID={rank}: there are only {size} tasks", "start all of them with one srun")
    local = _number("SLURM_LOCALID") if "SLURM_LOCALID" in env else 0
    host = env.get("MASTER_ADDR") or first_host(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "")
    return rank, size, local, Meeting(host, (_port(),) if env.get("MASTER_PORT") else ports_of(job_token()))


def _port() -> int:
    port = _number("MASTER_PORT", 1)
    if port > 65535:
        raise ConfigError(f"MASTER_PORT={port}: is not a port, 1 to 65535", "unset it under srun, or give another")
    return port


def is_main() -> bool:
    """Whether this process is rank 0, or the only one; also where the ranks have not met."""
    return _ranks()[0] == 0


def rank_and_size() -> tuple[int, int]:
    """This process's rank and how many torchrun or srun has started to work together; they need not have met."""
    return _ranks()[:2]


def _from_torchrun() -> tuple[int, int, int, Meeting]:
    missing = [name for name in ("RANK", "WORLD_SIZE") if name not in os.environ]
    if missing:
        raise ConfigError(f"{missing[0]} is not set, but its companion is", "start all ranks with torchrun or srun")
    rank, size = _number("RANK"), _number("WORLD_SIZE", 1)
    if rank >= size:
        raise ConfigError(f"RANK={rank}: must be less than WORLD_SIZE={size}")
    for name in ("MASTER_ADDR", "MASTER_PORT") if size > 1 else ():
        if name not in os.environ:
            raise ConfigError(f"{name} is not set for {size} ranks", "start all ranks with torchrun or srun")
    local = _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else 0
    if size == 1:
        return rank, size, local, Meeting()
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun serves the store itself
    return rank, size, local, Meeting(os.environ["MASTER_ADDR"], (_port(),), agent)


def first_host(nodelist: str) -> str:
    """The first host of a SLURM node list: ``gpu01`` of ``gpu[01-04,07],big1``; every bracket's first number."""
    match = re.match(r"(?:[^,\[\]\s]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+(?=,|$)", nodelist)
    if match is None:
        raise ConfigError(
            f"SLURM_JOB_NODELIST={nodelist!r}: is not a list of hosts", "set MASTER_ADDR to the first host"
        )
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", match[0])


def _gpu_of(local_rank: int) -> int:
    """Number of this process's GPU among those it sees: its own, where each task of srun sees one alone."""
    seen = torch.cuda.device_count()
    if seen == 1 and "RANK" not in os.environ:
        return 0
    if local_rank >= seen:
        raise ConfigError(
            f"process {local_rank + 1} of this machine has no GPU: {seen} are visible",
            "start one process a GPU (torchrun --nproc-per-node, srun --ntasks-per-node)",
        )
    return local_rank


_life: Heartbeat | None = None  # of this process while it is one of several ranks


@contextmanager
def world(device: str = "auto", settings: Mapping[str, Any] | None = None, output: str | Path = "") -> Iterator[World]:
    """Join the process group (nccl on GPUs, gloo on CPUs) if there are several ranks, and leave it at the end.

    ``settings``, by key, and the ``output`` must be the same on all ranks, as must their code. Inside another ``world``
    it is that one. Raises :class:`ConfigError` if the variables of torchrun or SLURM contradict one another, if not all
    ranks are there in five minutes, if one has other settings, or if another job is met. From here on a rank that dies
    or hangs is named by the others, which end (:mod:`dinoskip.runtime.heartbeat`).
    """
    global _life
    rank, size, local_rank, meeting = _ranks()
    chosen = choose_device(device)
    if chosen.type == "cuda":
        chosen = torch.device("cuda", _gpu_of(local_rank))
        torch.cuda.set_device(chosen)
    here = World(rank, size, chosen)
    if size == 1 or dist.is_initialized():
        yield here
        return
    life = _life = _join(here, meeting, this_rank(rank, size, {"device": chosen.type, **(settings or {})}, output))
    together = False
    try:
        with life.watched(BOUND):
            try:
                yield here
                together = True
            except (Preempted, Interrupted) as stop:
                # After a second signal this rank leaves at once; after the loss of another there is nobody to wait for.
                if not isinstance(stop.__context__, KeyboardInterrupt) and not isinstance(stop, RankLost):
                    life.note(0, "leaving", BOUND)
                    dist.barrier()  # launchers end all ranks once one has failed: rank 0 writes its last words before
                    together = True
                raise
    except BaseException as error:
        life.end(error)
        raise
    else:
        life.end(None)
    finally:
        _life = None
        # NCCL waits in here for the other ranks. They may know nothing of an error of this one, and would wait for it:
        # nobody would ever see the error. It is left to the end of this process instead, which aborts it.
        if together or chosen.type != "cuda":
            faulthandler.dump_traceback_later(BOUND, exit=True)  # the signs of life have ended
            dist.destroy_process_group()
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def watched(bound: float, lost: Callable[[str], None] | None = None) -> Iterator[ProgressCallback]:
    """:meth:`dinoskip.runtime.heartbeat.Heartbeat.watched` among the ranks of this job; nothing happens with one rank
    alone."""
    if _life is None:
        yield no_progress
        return
    with _life.watched(bound, lost) as note:
        yield note


def _join(here: World, meeting: Meeting, me: RankIdentity) -> Heartbeat:
    """Meet the other ranks, begin to give signs of life, and make torch's process group."""
    store = join(meeting, me, JOIN.total_seconds())
    nccl = here.device.type == "cuda"
    try:
        with ExitStack() as started:
            life = Heartbeat(here.rank, here.size, store, JOIN.total_seconds())
            started.push(lambda _, error, __: life.end(error))
            store.set_timeout(TIMEOUT)
            dist.init_process_group(
                "nccl" if nccl else "gloo", store=dist.PrefixStore("group", store), rank=here.rank,
                world_size=here.size, timeout=TIMEOUT, device_id=here.device if nccl else None,
            )  # fmt: skip
            started.pop_all()
    except (dist.DistError, ValueError) as error:
        raise ConfigError(
            f"rank {here.rank} of {here.size} lost the others as they joined at {meeting.place}: {first_line(error)}",
            "all ranks must reach one another; see what they said",
        ) from None
    life.note(0, "between trainings", IDLE)
    return life


# --- what they do together ----------------------------------------------------------------------------


@contextmanager
def _name_lost_rank() -> Iterator[None]:
    """Turn torch's error about a rank that does not answer into one line."""
    try:
        yield
    except RuntimeError as error:
        hint = "see what it said; run the same command again to continue"
        raise DinoskipError("another process of this job has ended before its work was done", hint) from error


class ProcessGroup:
    """Ranks that act together: all of them make the same calls in the same order.

    ``group`` is torch's; None is its default group, of all ranks of the job. With one rank nothing is communicated.
    :class:`DinoskipError` where a rank has ended.
    """

    def __init__(self, rank: int, size: int, group: Any = None) -> None:
        self.rank, self.size, self._group = rank, size, group

    def gather(self, value: T) -> list[T]:
        """Every rank's ``value``, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with _name_lost_rank():
            dist.all_gather_object(values, value, group=self._group)
        return values

    def from_main(self, value: T) -> T:
        """Rank 0's ``value`` on every rank."""
        if self.size == 1:
            return value
        box = [value]
        with _name_lost_rank():
            dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def on_main(self, action: Callable[[], T]) -> T:
        """Run ``action`` on rank 0 alone; every rank returns its value or raises its error."""
        if self.size == 1:
            return action()
        result: tuple[Any, Exception | None] = (None, None)
        if self.rank == 0:
            try:
                result = (action(), None)
            except Exception as failure:
                result = (None, failure)
        value, error = self.from_main(result)
        if error is not None:
            raise error
        return cast(T, value)

    def send(self, value: Any) -> None:
        """Send ``value`` from rank 0 to all others, which iterate over what it sends; None ends their iteration."""
        self.from_main(value)

    def received(self) -> Iterator[Any]:
        """Yield, on the other ranks, what rank 0 sends, until it sends None."""
        while (value := self.from_main(None)) is not None:
            yield value


def all_ranks() -> ProcessGroup:
    """All ranks of the job; this process alone where there is no process group."""
    if not (dist.is_available() and dist.is_initialized()):
        return ProcessGroup(0, 1)
    return ProcessGroup(dist.get_rank(), dist.get_world_size())


def group_without_timeout(here: World | None) -> ProcessGroup:
    """A group of all ranks that wait for one another as long as it takes; all call this. None: this process alone."""
    if here is None or here.size == 1:
        return ProcessGroup(0, 1)
    return ProcessGroup(here.rank, here.size, dist.new_group(backend="gloo", timeout=PATIENCE))


def all_reduce_mean(tensor: torch.Tensor) -> torch.Tensor:
    """Average ``tensor`` over all ranks in place and return it."""
    if (size := all_ranks().size) > 1:
        dist.all_reduce(tensor)
        tensor /= size
    return tensor


def all_reduce_max(tensor: torch.Tensor) -> torch.Tensor:
    """Element-wise maximum over all ranks, in place: how ranks agree on stop flags and non-finite steps."""
    if all_ranks().size > 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


def gather_rows(tensor: torch.Tensor) -> torch.Tensor:
    """All ranks' tensors, of equal shapes, one after the other along the first axis, in the order of ranks.

    Collective. A gradient of the result goes back to the rank that each row is from, added up over all ranks; all of
    them must then go backward.
    """
    gathered: torch.Tensor = _GatherRows.apply(tensor)
    return gathered


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ranks = all_ranks()
        ctx.rows = slice(ranks.rank * len(tensor), (ranks.rank + 1) * len(tensor))
        if ranks.size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(ranks.size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if all_ranks().size > 1:
            gradient = gradient.clone()
            dist.all_reduce(gradient)
        return gradient[ctx.rows]


def on_main(action: Callable[[], T]) -> T:
    """:meth:`ProcessGroup.on_main` of all ranks: facts about the file system are decided once."""
    return all_ranks().on_main(action)


def gather(value: T) -> list[T]:
    """Every rank's ``value``, in the order of ranks: :meth:`ProcessGroup.gather` of all."""
    return all_ranks().gather(value)


def differing_rank(values: Sequence[Any]) -> int | None:
    """The first rank whose value is not rank 0's, None if there is none."""
    return next((rank for rank, value in enumerate(values) if value != values[0]), None)


def run_together(action: Callable[[], T], what: str) -> list[T]:
    """``action()`` of every rank, in the order of ranks; if it fails on any, all raise :class:`DataError`."""
    value: T | None = None
    fault = ""
    try:
        value = action()
    except (DinoskipError, RuntimeError, ValueError) as error:  # RuntimeError: out of device memory
        fault = str(error).strip().partition("\n")[0] or type(error).__name__
    outcomes = gather((value, fault))
    for rank, (_, message) in enumerate(outcomes):
        if message:
            raise DataError(f"{what}: rank {rank}: {message}" if len(outcomes) > 1 else f"{what}: {message}")
    return [cast(T, value) for value, _ in outcomes]


def read_together(read: Callable[[], T], what: str) -> T:
    """``read()`` on every rank; ranks on which it fails get rank 0's value, with one warning.

    A network file system may hide for a while from one machine what it shows to another. Where rank 0 fails, all raise
    its error.
    """
    value: T | None = None
    error: Exception | None = None
    try:
        value = read()
    except (OSError, DinoskipError) as failure:
        error = failure
    failed = [rank for rank, has in enumerate(gather(error is not None)) if has]
    if not failed:
        return cast(T, value)

    def of_main() -> T:
        if error is not None:
            raise error
        log.warning("%s: not readable on rank %d (%d in all): sent from rank 0", what, failed[0], len(failed))
        return cast(T, value)

    return on_main(of_main)


def agree(value: T, what: str) -> T:
    """Return ``value`` if it is the same on all ranks; else every rank raises :class:`DataError` naming ``what``."""
    values = gather(value)
    other = differing_rank(values)
    if other is not None:
        raise DataError(
            f"{what}: rank {other} sees {values[other]}, rank 0 sees {values[0]}",
            "every machine must see the same files: check that the path is the same shared folder everywhere",
        )
    return value


# --- sharded tensors ----------------------------------------------------------------------------------


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A sharded tensor gathered (a collective: every rank calls it in the same order), any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's slice of a sharded tensor, sharing its memory; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_part(delta: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part of ``delta``, which has the parameter's whole shape. Nothing is communicated."""
    if not isinstance(parameter, DTensor):
        return delta
    mesh = parameter.device_mesh
    replicated = DTensor.from_local(delta, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(placements=parameter.placements).to_local()
