"""Views of the next micro-batch, made on a stream of their own while the device still computes with those before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from dinoskip.data.loader import Batch


class ViewsAhead:
    """Takes micro-batches from an iterator, at most one ahead of the step that asks, and makes their views on a GPU.

    The same batches in the same order, with the same views, as without; the memory of one more micro-batch is needed.
    What lies on the device before this is made (a resident set) may be read by ``views``, which draws nothing.

    Args:
        views: moves a batch to the device and finishes it there.
        device: a GPU.
    """

    def __init__(self, views: Callable[[Batch], list[Tensor]], device: torch.device) -> None:
        self._views, self._device = views, device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._begun: tuple[Iterator[Batch], Batch, list[Tensor], Any] | None = None

    def begin(self, batches: Iterator[Batch]) -> float:
        """Begin the next micro-batch of ``batches``, if there is one; return the seconds that it was waited for.

        To be called when the device has much to do.
        """
        began = time.perf_counter()
        batch = next(batches, None)
        waited = time.perf_counter() - began
        if batch is not None:
            with torch.cuda.stream(self._stream):
                self._begun = batches, batch, self._views(batch), self._stream.record_event()
        return waited

    def take(self, batches: Iterator[Batch]) -> tuple[Batch, list[Tensor]]:
        """The next micro-batch of ``batches`` and its views, which the current stream, and not the host, waits for.

        What was begun of another iterator is dropped. Raises :class:`StopIteration` at the end.
        """
        if self._begun is None or self._begun[0] is not batches:
            self._begun = None
            self.begin(batches)
        if self._begun is None:
            raise StopIteration
        (_, batch, views, ready), self._begun = self._begun, None
        here = torch.cuda.current_stream(self._device)
        here.wait_event(ready)
        for view in views:
            view.record_stream(here)  # its memory is not given to the next batch while this step reads it
        return batch, views
