"""Work that threads do ahead of its use: decoding of images and label maps while a model computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from dinoskip.runtime.cores import available_cores

J = TypeVar("J")
R = TypeVar("R")


def threads_of(workers: int) -> int:
    """Return how many threads read images: ``workers``; if 0 as many as processors, at most 8."""
    return workers or min(8, available_cores())


def prefetched(jobs: Iterable[J], work: Callable[[J], R], workers: int) -> Iterator[tuple[J, R]]:
    """Yield every job with its result, in order; ``workers`` threads work ahead."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ahead")
    ahead: deque[tuple[J, Future[R]]] = deque()
    try:
        for job in jobs:
            ahead.append((job, pool.submit(work, job)))
            if len(ahead) > workers:
                first, future = ahead.popleft()
                yield first, future.result()
        for first, future in ahead:
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
