"""A function run on several gloo ranks at once, each a process from the same fork server."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

DEADLINE = 120.0


def _rank(
    action: Callable[..., None], rank: int, size: int, meeting: str, arguments: tuple[Any, ...], join: bool
) -> None:
    import torch
    import torch.distributed as dist

    from dinoskip.runtime.distributed import World

    os.setsid()
    torch.set_num_threads(1)
    if size > 1 and join:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size,
                                timeout=timedelta(seconds=60))  # fmt: skip
    try:
        action(World(rank, size, torch.device("cpu")), *arguments)
    except BaseException:
        Path(f"{meeting}.failed{rank}").write_text(traceback.format_exc())
        os._exit(1)  # at once: the other ranks must not wait for its farewell
    if dist.is_initialized():
        dist.destroy_process_group()


def on_ranks(size: int, folder: Path, action: Callable[..., None], *arguments: Any, join: bool = True) -> None:
    """Call ``action(world, *arguments)``, a module's function, on each of ``size`` ranks; fail if one of them does.

    Without ``join`` they are started, but not yet made a process group.
    """
    context = multiprocessing.get_context("forkserver")
    meeting = folder / f"meeting-{action.__name__}-{size}"
    started = [
        context.Process(target=_rank, args=(action, rank, size, str(meeting), arguments, join)) for rank in range(size)
    ]
    for process in started:
        process.start()
    try:
        for process in started:
            process.join(DEADLINE)
        messages = [path.read_text() for path in sorted(folder.glob(f"{meeting.name}.failed*"))]
        assert [process.exitcode for process in started] == [0] * size, "\n".join(messages)
    finally:
        for process in started:
            process.kill()
            process.join(10)


def assert_two_ranks_equal_one(
    folder: Path, steps: Callable[..., None], *arguments: Any, rtol: float = 1e-6, atol: float = 1e-9
) -> set[str]:
    """Fail unless ``steps(world, out, *arguments)`` saves the same tensors on one rank and on two; their names."""
    import torch

    from dinoskip.io.files import load_tensors

    for size in (1, 2):
        on_ranks(size, folder, steps, str(folder / str(size)), *arguments)
    single, double = (load_tensors(folder / str(size)) for size in (1, 2))
    assert set(single) == set(double)
    for name, value in single.items():
        torch.testing.assert_close(double[name], value, rtol=rtol, atol=atol, msg=name)
    return set(single)
