"""A pretended CUDA device: CPU tensors marked as lying on ``cuda:0``, held to the rules of a real one.

Inside :class:`PretendedDevice` the code under test sees a GPU: ``torch.cuda.is_available()`` is true, ``tensor.device``
says ``cuda:0`` for what was sent or made there, and its GPU branches run. All is computed on the CPU. What a GPU would
refuse is refused (:class:`DeviceMix`), what it would wait for is counted: see :class:`Counts`.

How: a ``TorchFunctionMode`` answers for devices and transfers, a ``TorchDispatchMode`` below autograd sees every
operation, those of the backward pass too. What lies on the device is a property of a storage, so views share it.
Streams are held to their order: what one writes and another reads without waiting for it, or without ``record_stream``,
is refused (:class:`StreamRace`), though all is done at once.
``FakeTensorMode`` has devices without data, but no path here can run without data (Lanczos stops by its residuals).
Threads started by a ``ThreadPoolExecutor`` inside are on the device too. :class:`RealDevice` counts the same on a GPU.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # torch loads it at some first call, and must not do so while it is told of a GPU
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).parents[2]
CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
aten = torch.ops.aten

# Operations whose result has a size or value that the host must know: CUDA waits for the device in each of them.
READS = {
    "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero", "aten::masked_select",
    "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::bincount", "aten::_linalg_eigh",
    "aten::_linalg_svd", "aten::_linalg_solve_ex", "aten::linalg_inv_ex",
}  # fmt: skip
# No kernel: memory without content, or other metadata.
SILENT = {
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::set_", "aten::_unsafe_view", "aten::lift_fresh", "aten::record_stream", "aten::_local_scalar_dense",
    "aten::resize_",
}  # fmt: skip
HOST = {"cpu", "numpy", "tolist", "__array__"}


class DeviceMix(RuntimeError):
    """Tensors of the host and of the device in one operation: a GPU refuses it, or copies behind the scenes."""


@dataclass
class Counts:
    """Counts of what happened on the device.

    Attributes:
        kernels: operations on it that compute. A real one launches at least as many kernels (a ``foreach`` operation
            over many tensors, a batched solver and a convolution launch several).
        reads: times that the host waited for a value or size, by the line of the project that asked.
        uploads: copies from the host for which the host waited, by line.
        moved: copies either way for which nobody waited (``non_blocking``; page-locked or not).
        traffic: bytes read and written by the kernels.
        names: kernels by operation.
    """

    reads: Counter[str] = field(default_factory=Counter)
    uploads: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    moved: int = 0
    traffic: int = 0

    @property
    def kernels(self) -> int:
        return self.names.total()

    @property
    def waits(self) -> int:
        """Host reads and uploads that are waited for."""
        return self.reads.total() + self.uploads.total()


def _line() -> str:
    """The innermost line of the project that is being run: path:line."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(str(ROOT)) and name != __file__ and "/.venv/" not in name:
            return f"{Path(name).relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


class Meter:
    """Counts; one thread at a time adds to them."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._lock = threading.Lock()

    def add(self, kind: str, name: str | None = None, nbytes: int = 0) -> None:
        line = _line() if kind in {"reads", "uploads"} else ""
        with self._lock:
            if kind == "moved":
                self.counts.moved += 1
            else:
                getattr(self.counts, kind)[name or line] += 1
            self.counts.traffic += nbytes

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """Inside, count from zero; the result is complete at the end."""
        before, self.counts = self.counts, Counts()
        try:
            yield self.counts
        finally:
            self.counts = before


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _count_kernel(meter: Meter, func: Any, inputs: list[Tensor], outputs: list[Tensor]) -> None:
    """Count one operation of which at least one tensor lies on the device."""
    name = func._schema.name
    if name in READS or _indexes_by_mask(name, inputs):
        meter.add("reads")
    if not func.is_view and name not in SILENT:
        touched = {id(tensor): tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs)}
        meter.add("names", name, sum(touched.values()))


def _indexes_by_mask(name: str, inputs: list[Tensor]) -> bool:
    indexed = name in {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
    if indexed and name != "aten::index" and inputs[-1].numel() == 1:  # torch fills by the mask; 2.15 says so
        return False
    return indexed and any(tensor.dtype in {torch.bool, torch.uint8} for tensor in inputs[1:])


# --- the pretended device --------------------------------------------------------------------------------


class Marks:
    """The storages that lie on the device."""

    def __init__(self) -> None:
        # A weak reference keeps the address of a freed storage from being used again.
        self._storages: dict[int, StorageWeakRef] = {}

    def add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if len(self._storages) > 20_000:
            self._storages = {key: ref for key, ref in list(self._storages.items()) if not ref.expired()}
        self._storages[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._storages


class StreamRace(RuntimeError):
    """A tensor is used on a stream that has not waited for the one that writes it, or that its memory does not know."""


class Stream:
    """A stream: its ``work`` counts what was asked of it, ``seen`` how much of the others' it waits for."""

    def __init__(self, streams: Streams) -> None:
        self._streams, self.work = streams, 0
        self.seen: dict[Stream, int] = {}

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: _Event) -> None:
        for stream, work in event.seen.items():
            self.seen[stream] = max(work, self.seen.get(stream, 0))

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event()
        event.seen = {**self.seen, self: self.work}
        return event

    def synchronize(self) -> None:
        self._streams.current().wait_stream(self)


class _Event:
    """The work that a stream had been given, and had waited for, when the event was recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.seen: dict[Stream, int] = {}

    def record(self, stream: Stream) -> None:
        stream.record_event(self)

    def synchronize(self) -> None: ...


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The first byte of its storage that a tensor has, and the one after its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start, step = tensor.storage_offset(), tensor.element_size()
    return start * step, (start + last + 1) * step if tensor.numel() else start * step


@dataclass
class _Memory:
    """The last writes of a storage: stream, bytes and the stream's count of work; and the streams that it waits for."""

    reference: StorageWeakRef
    known: set[Stream]
    written: list[tuple[int, int, Stream, int]] = field(default_factory=list)


class Streams:
    """The stream that last wrote each piece of memory, and whether a stream that reads it has waited."""

    def __init__(self) -> None:
        self._default = Stream(self)
        self._local = threading.local()
        self._memory: dict[int, _Memory] = {}

    def new(self, *_: Any, **__: Any) -> Stream:
        return Stream(self)

    def current(self, _: Any = None) -> Stream:
        stream: Stream = getattr(self._local, "stream", self._default)
        return stream

    @contextmanager
    def entered(self, stream: Stream) -> Iterator[None]:
        before, self._local.stream = self.current(), stream
        try:
            yield
        finally:
            self._local.stream = before

    def write(self, tensors: list[Tensor]) -> None:
        """The current stream writes these; it is the owner of the memory of those that are new."""
        here = self.current()
        here.work += 1
        for tensor in tensors:
            storage = tensor.untyped_storage()
            memory = self._memory.get(storage._cdata)
            if memory is None or memory.reference.expired():
                memory = self._memory[storage._cdata] = _Memory(StorageWeakRef(storage), {here})
            start, end = _extent(tensor)
            memory.written = [one for one in memory.written if one[0] < start or one[1] > end]
            memory.written.append((start, end, here, here.work))
        if len(self._memory) > 20_000:
            self._memory = {key: one for key, one in self._memory.items() if not one.reference.expired()}

    def read(self, tensors: list[Tensor]) -> None:
        """Refuse what another stream wrote if the current one has not waited, or if the memory may be given away."""
        here = self.current()
        for tensor in tensors:
            memory = self._memory.get(tensor.untyped_storage()._cdata)
            if memory is None or memory.reference.expired():
                continue
            start, end = _extent(tensor)
            for first, last, stream, work in memory.written:
                if stream is here or first >= end or last <= start:
                    continue
                if here.seen.get(stream, 0) < work:
                    raise StreamRace(f"{_line()}: {tuple(tensor.shape)}: its stream has not been waited for")
                if self._default not in memory.known and here not in memory.known:
                    raise StreamRace(f"{_line()}: {tuple(tensor.shape)}: of another stream, without record_stream")

    def keep(self, tensor: Tensor, stream: Stream) -> None:
        """``tensor.record_stream(stream)``."""
        memory = self._memory.get(tensor.untyped_storage()._cdata)
        if memory is not None:
            memory.known.add(stream)


class _Below(TorchDispatchMode):
    """Sees every operation; raises where marked and unmarked tensors meet, and counts what runs on marked ones."""

    def __init__(self, state: _State) -> None:
        super().__init__()
        self.state = state

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        state = self.state
        if state.local.quiet:
            return func(*args, **kwargs)
        inputs = _tensors((args, kwargs))
        here = [tensor for tensor in inputs if tensor in state.marks]
        if func._schema.name in {"aten::copy_", "aten::_to_copy"} and len(here) < len(inputs):
            return self._copy(func, inputs, here, args, kwargs)
        there = bool(here) or (not inputs and state.local.implied)
        if there:
            _refuse_host(func, [tensor for tensor in inputs if tensor.ndim and tensor not in state.marks])
            _refuse_generator(func, kwargs)
            state.streams.read(here)
        result = func(*args, **kwargs)
        outputs = _tensors(result)
        if there:
            for tensor in outputs:
                state.marks.add(tensor)
            if not func.is_view:
                state.streams.write(outputs)
            _count_kernel(state.meter, func, inputs, outputs)
        return result

    def _copy(self, func: Any, inputs: list[Tensor], here: list[Tensor], args: Any, kwargs: Any) -> Any:
        """A copy from or to the host, into a tensor that is there."""
        if here:
            asynchronous = bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            up = inputs[0] in self.state.marks
            waited = "uploads" if up else "reads"
            self.state.meter.add("moved" if asynchronous else waited, None)
            self.state.streams.read(here)
            self.state.streams.write([inputs[0]] if up else [])
        return func(*args, **kwargs)


def _refuse_host(func: Any, strangers: list[Tensor]) -> None:
    if strangers:
        shapes = ", ".join(f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}" for tensor in strangers)
        raise DeviceMix(f"{_line()}: {func}: on the host, beside tensors on {CUDA}: {shapes}")


def _refuse_generator(func: Any, kwargs: Any) -> None:
    generator = kwargs.get("generator")
    if generator is not None and not getattr(generator, "there", False):
        raise DeviceMix(f"{_line()}: {func}: a generator of the host for a tensor on {CUDA}")


class _Generator(torch.Generator):
    """A generator that knows whether it was asked for on the device (``there``)."""

    there: bool

    def __new__(cls, device: Any = "cpu") -> _Generator:
        generator = super().__new__(cls, "cpu")
        generator.there = torch.device(device).type == "cuda"
        return generator


class _Above(TorchFunctionMode):
    """Answers for devices and transfers, and takes the device out of what it passes on."""

    def __init__(self, state: _State) -> None:
        super().__init__()
        self.state = state

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        state, name = self.state, getattr(func, "__name__", "")
        first = args[0] if args and isinstance(args[0], Tensor) else None
        marked = first is not None and first in state.marks
        if first is not None:
            if name == "__get__":
                return self._attribute(func, first, marked)
            if name in {"to", "cuda"}:
                return self._to(func, first, marked, args[1:], kwargs)
            if name in HOST and marked:
                return self._to_host(name, first)
            if name in {"pin_memory", "is_pinned"}:
                return first if name == "pin_memory" else None
            if name == "get_device":
                return 0 if marked else -1
        if name == "_parse_to":
            return func(*args, **kwargs)
        return self._call(func, args, kwargs)

    def _attribute(self, func: Any, tensor: Tensor, marked: bool) -> Any:
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        if marked and attribute in {"device", "is_cuda", "is_cpu"}:
            return {"device": CUDA, "is_cuda": True, "is_cpu": False}[attribute]
        return self._call(func, (tensor,), {})

    def _to_host(self, name: str, tensor: Tensor) -> Any:
        if name in {"numpy", "__array__"}:
            raise TypeError(f"{_line()}: can't convert {CUDA} device type tensor to numpy; use .cpu() first")
        self.state.meter.add("reads")
        self.state.streams.read([tensor])
        host = self.state.quietly(tensor.clone)
        return host.tolist() if name == "tolist" else host

    def _to(self, func: Any, tensor: Tensor, marked: bool, args: Any, kwargs: dict[str, Any]) -> Any:
        """``.to``: the device first, then dtype and layout on the side where the tensor was."""
        device: torch.device | None = None
        if func.__name__ == "cuda":
            device, args, kwargs = CUDA, (), {}
        rest = []
        for value in args:
            if isinstance(value, Tensor):
                device = CUDA if value in self.state.marks else CPU
                rest.append(value.dtype)
            elif isinstance(value, (str, torch.device)):
                device = torch.device(value)
            elif value is not None:
                rest.append(value)
        device = torch.device(kwargs.pop("device", None) or device or (CUDA if marked else CPU))
        asynchronous = kwargs.pop("non_blocking", False)
        if rest and isinstance(rest[-1], bool):  # to(device, dtype, non_blocking)
            asynchronous = rest.pop()
        if device.type not in {"cpu", "cuda"}:
            return self._call(func, (tensor, device, *rest), kwargs)
        if (device.type == "cuda") != marked:
            waited = "reads" if marked else "uploads"
            self.state.meter.add("moved" if asynchronous else waited, None)
            if marked:
                self.state.streams.read([tensor])
            tensor = self.state.quietly(tensor.clone)
            if not marked:
                self.state.streams.write([self.state.marks.add(tensor)])
        return self._call(Tensor.to, (tensor, *rest), kwargs) if rest or kwargs else tensor

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call; what is made in C++ without any tensor belongs where the arguments are."""
        state, asked = self.state, kwargs.get("device")
        device = torch.device(asked) if asked is not None else None
        uploaded = device is not None and device.type == "cuda"
        if uploaded:
            kwargs["device"] = CPU
        kwargs.pop("pin_memory", None)
        inputs = _tensors((args, kwargs))
        there = uploaded or any(tensor in state.marks for tensor in inputs)
        with state.implying(there and not (device is not None and device.type == "cpu")):
            result = func(*args, **kwargs)
        if uploaded and getattr(func, "__name__", "") in {"tensor", "as_tensor", "asarray"}:
            return self._uploaded(args[0], result)
        if there:  # what no dispatched operation made: a deep copy, a result of torch's own Python
            host = {tensor.untyped_storage()._cdata for tensor in inputs if tensor not in state.marks}
            for tensor in _tensors(result):
                if tensor.untyped_storage()._cdata not in host:
                    state.marks.add(tensor)
        return result

    def _uploaded(self, source: Any, result: Tensor) -> Tensor:
        """``torch.tensor(values, device=...)`` waits for the copy; ``as_tensor`` may share memory with the host."""
        if isinstance(source, Tensor) and source in self.state.marks:
            return result
        self.state.meter.add("uploads")
        return self.state.marks.add(self.state.quietly(result.clone))


class _Local(threading.local):
    """A thread's state: whether operations pass unseen, and whether those without an argument are on the device."""

    quiet = False
    implied = False


_MARKS = Marks()  # of the process: what the project caches on a device outlives a test


class _State:
    def __init__(self) -> None:
        self.marks, self.meter, self.local = _MARKS, Meter(), _Local()
        self.streams = Streams()

    def quietly(self, action: Callable[[], Any]) -> Any:
        before, self.local.quiet = self.local.quiet, True
        try:
            return action()
        finally:
            self.local.quiet = before

    @contextmanager
    def implying(self, there: bool) -> Iterator[None]:
        before, self.local.implied = self.local.implied, there
        try:
            yield
        finally:
            self.local.implied = before

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is on the device."""
        with _Above(self), _Below(self):
            yield


class PretendedDevice:
    """Inside (``with PretendedDevice() as device``), ``device.device`` is a GPU as far as the code can tell."""

    device = CUDA
    real = False

    def __init__(self) -> None:
        self._state, self._stack = _State(), ExitStack()
        self.counting = self._state.meter.counting

    def __enter__(self) -> PretendedDevice:
        state = self._state
        submit, autocast, engine = ThreadPoolExecutor.submit, torch.autocast, torch.autograd._engine_run_backward

        def submitted(pool: ThreadPoolExecutor, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            def on_device() -> Any:
                with state.entered():
                    return work(*args, **kwargs)

            return submit(pool, on_device)

        def backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            """Functions of our own are called from here, where the function mode has been left."""
            there = any(tensor in state.marks for tensor in _tensors(outputs))
            with _Above(state), state.implying(there):
                return engine(outputs, *args, **kwargs)

        def casting(device_type: str, *args: Any, **kwargs: Any) -> Any:
            return autocast("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

        for target, name, value in (
            (ThreadPoolExecutor, "submit", submitted), (torch.autograd, "_engine_run_backward", backward),
            (torch, "autocast", casting), (torch, "Generator", _Generator),
            (torch.cuda, "is_available", lambda: True), (torch.cuda, "device_count", lambda: 1),
            (torch.cuda, "get_device_name", lambda _=None: "pretended"),
            (torch.cuda, "set_device", lambda _: None), (torch.cuda, "synchronize", lambda _=None: None),
            (torch.cuda, "mem_get_info", lambda _=None: (1 << 33, 1 << 34)),
            (torch.cuda, "Stream", state.streams.new), (torch.cuda, "Event", _Event),
            (torch.cuda, "stream", state.streams.entered), (torch.cuda, "current_stream", state.streams.current),
            (torch.cuda, "is_current_stream_capturing", lambda: False),  # torch 2.11's optimizers ask
            (torch.accelerator, "is_available", lambda: False),  # torch's own question
            (Tensor, "record_stream", lambda tensor, stream: state.streams.keep(tensor, stream)),
        ):  # fmt: skip
            self._stack.enter_context(mock.patch.object(target, name, value))
        self._stack.enter_context(mock.patch.object(torch.random, "fork_rng", _forked(torch.random.fork_rng)))
        self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        self._stack.enter_context(state.entered())
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    counting: Callable[[], Any]


def _forked(fork: Any) -> Any:
    """``fork_rng`` without the device's generator, of which there is none."""
    return lambda devices=None, **options: fork([], **options)


# --- a real one ------------------------------------------------------------------------------------------


class _Observer(TorchDispatchMode):
    """Counts on a GPU what :class:`PretendedDevice` counts without one; it refuses nothing, the GPU does."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        inputs, outputs = _tensors((args, kwargs)), _tensors(result)
        there = [tensor.is_cuda for tensor in (*inputs, *outputs)]
        if not any(there):
            return result
        if func._schema.name in {"aten::copy_", "aten::_to_copy"} and not all(there):
            asynchronous = bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True))
            waited = "uploads" if outputs[0].is_cuda else "reads"
            self.meter.add("moved" if asynchronous else waited)
        else:
            _count_kernel(self.meter, func, inputs, outputs)
        return result


class RealDevice:
    """The GPU of this machine. Nothing is compiled: torch refuses to under a dispatch mode, which sees no such code."""

    device = CUDA
    real = True

    def __init__(self) -> None:
        meter = Meter()
        self.counting, self._observer, self._stack = meter.counting, _Observer(meter), ExitStack()

    def __enter__(self) -> RealDevice:
        self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        self._stack.enter_context(self._observer)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
