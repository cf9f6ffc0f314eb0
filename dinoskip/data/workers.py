"""The processes that read images: how they start and end, why one failed, and whether a run waits for them."""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
import signal
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import queues
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess, parent_process
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, Dataset

from dinoskip.errors import DataError, first_line
from dinoskip.runtime.cores import available_cores

GRACE_S = 30  # after SIGTERM, for the parent to save its state: as long as torchrun waits before SIGKILL
WORKER_TIMEOUT_S = 600  # longer: a hang is noticed later; shorter: slow storage is taken for one
PR_SET_PDEATHSIG = 1  # from linux/prctl.h
SLIGHT = 0.05  # of the time: waiting below this is not worth a change


def _end_worker(error: Exception, _: Any) -> None:
    """End this worker when it cannot hand over a batch: the batch would be lost, and the parent wait for it in vain."""
    os._exit(errno.ENOSPC if "shared memory" in str(error) else 1)


def start_worker(_: int) -> None:
    """Leave Ctrl-C and preemption to the parent, which saves its state first; a worker ends with its parent."""
    signal.set_wakeup_fd(-1)  # the parent's, which would take this process's signals for its own
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE_S))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    queues.Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]
    if sys.platform == "linux":  # torch looks for the parent now and then, and not at all while an image is read
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        parent = parent_process()
        if parent is not None and parent.pid != os.getppid():  # it was killed before this line
            os._exit(1)


def is_worker_death(error: BaseException) -> bool:
    """Whether what torch's DataLoader raised means that a worker died or hangs."""
    return not isinstance(error, RuntimeError) or "DataLoader" in str(error)


def explain_failure(workers: Sequence[BaseProcess], *, hangs: bool, due: int, timeout: int) -> tuple[str, str]:
    """Say what happened to a worker and what may help.

    Args:
        workers: the processes.
        hangs: whether one did not answer within ``timeout`` seconds, rather than ended.
        due: number of the batch that was waited for; workers take turns.
        timeout: in seconds.
    """
    if not hangs:
        with suppress(RuntimeError):  # torch's handler of the signal may say the same once more
            ended = wait([worker.sentinel for worker in workers], timeout=5)
            for worker in workers:
                if worker.sentinel in ended:  # its pipes close a moment before its end
                    worker.join(5)
    dead = next((worker for worker in workers if not worker.is_alive()), None)
    if dead is not None and dead.exitcode in {errno.ENOSPC, -signal.SIGBUS}:
        return "ran out of shared memory (/dev/shm)", "make it larger, or use fewer workers"
    if hangs:
        pid = workers[due % len(workers)].pid
        return f"(process {pid}) hangs, for {timeout} s", "is the file system of the images alive?"
    if dead is not None:
        return f"(process {dead.pid}) died", "often memory ran out: use fewer workers"
    return "failed", "use 0 workers to see where"


class WorkerLoader(DataLoader):
    """torch's DataLoader over a data set whose items are batches, read by ``workers`` processes (0: by this one).

    Args:
        batches: the data set.
        positions: what to ask it for; a list that may be filled anew before each iteration, while the workers live on.
        workers: processes.
        pin: whether batches are page-locked.
    """

    def __init__(self, batches: Dataset, positions: list[Any], workers: int, *, pin: bool) -> None:
        super().__init__(
            batches,
            batch_size=None,
            sampler=positions,
            num_workers=workers,
            pin_memory=pin,
            timeout=WORKER_TIMEOUT_S if workers else 0,
            worker_init_fn=start_worker,
            # Not through a fork server (Python 3.14): its workers outlive a killed trainer, for their parent lives on.
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
            persistent_workers=workers > 0,
            generator=torch.Generator(),  # else it would draw from the global one
        )
        if workers:  # runs before multiprocessing's own exit handler, which would wait for workers that ignore SIGTERM
            atexit.register(_close, weakref.ref(self))

    def failure(self, error: Exception, due: int, near: Callable[[], Sequence[str]]) -> DataError:
        """Return an error for ``error``: the worker that died or hangs at batch ``due``, and the images it may be at.

        ``near`` is asked for their names once the worker has ended: until then the signal of its end may still come.
        """
        text = first_line(error)
        workers = getattr(self._iterator, "_workers", [])
        what, hint = explain_failure(workers, hangs="timed out" in text, due=due, timeout=WORKER_TIMEOUT_S)
        return DataError(f"a data worker {what}, near images {', '.join(near())}: {text}", hint)

    def close(self) -> None:
        """End the processes that read images, if any were started."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            workers = list(getattr(iterator, "_workers", ()))
            iterator._shutdown_workers()
            for worker in workers:  # one that hangs in a read takes no notice of SIGTERM
                worker.kill()


def _close(loader: weakref.ref[WorkerLoader]) -> None:
    alive = loader()
    if alive is not None:
        alive.close()


def wait_advice(
    data_wait: float, *, mode: Literal["crops", "decode", "resident"] | None, workers: int = 0, cores: int = 0
) -> str:
    """Return one line on where a step's time goes.

    Args:
        data_wait: share of the time that steps waited for their images, 0 to 1 (``data_wait`` of metrics.jsonl).
        mode: of the data path; None where there is no choice.
        workers: processes that read images for this rank.
        cores: processors they may use; 0 counts them.
    """
    if data_wait < SLIGHT:
        return f"compute-bound: {data_wait:.0%} of the time was spent waiting for images"
    cores = cores or available_cores()
    advice = []
    if mode == "resident":
        advice.append("another mode than resident would wait longer; a larger batch spreads what is left")
    else:
        if workers < cores:
            advice.append(f"more workers: {workers} of {cores} processors read")
        if mode == "crops":
            advice.append("mode decode, which cuts crops on the device")
        if mode is not None:
            advice.append("smaller images by dinoskip data pack, or mode resident if they then fit")
    return f"data-bound: {data_wait:.0%} of the time was spent waiting for images" + (
        f" (try {'; '.join(advice)})" if advice else ""
    )
