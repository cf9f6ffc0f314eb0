"""The pretended device against planted faults, and what it must not take for one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.helpers.pretended_device import CUDA, DeviceMix, PretendedDevice, StreamRace


@pytest.fixture
def device() -> Iterator[PretendedDevice]:
    with PretendedDevice() as there:
        yield there


MIXES: dict[str, Callable[[Tensor], object]] = {
    "an operand of the host": lambda x: x + torch.ones(3, 4),
    "a mask of the host": lambda x: x.masked_fill(torch.ones(3, 4, dtype=torch.bool), 0),
    "an index of the host": lambda x: x[torch.tensor([0, 2])],
    "a list as index": lambda x: x[[0, 2]],
    "an array as index": lambda x: x[np.array([0, 2])],
    "an index of the host, selecting": lambda x: x.index_select(0, torch.tensor([0])),
    "an index of the device into the host": lambda x: torch.ones(3, 4)[torch.tensor([0], device=CUDA)],
    "a weight of the host": lambda x: F.linear(x, torch.ones(2, 4)),
    "a module of the host": lambda x: nn.Linear(4, 2)(x),
    "a generator of the host": lambda x: torch.rand(3, device=CUDA, generator=torch.Generator()),
    "a part of the host": lambda x: torch.cat([x, torch.ones(1, 4)]),
}
READS: dict[str, tuple[Callable[[Tensor], object], int]] = {
    "item": (lambda x: x.sum().item(), 1),
    "float": (lambda x: float(x.sum()), 1),
    "bool": (lambda x: bool((x > 0).all()), 1),
    "a branch": (lambda x: 1 if x.isfinite().all() else 0, 1),
    "tolist": (lambda x: x.tolist(), 1),
    "cpu": (lambda x: x.cpu(), 1),
    "to": (lambda x: x.to("cpu", torch.float64), 1),
    "a loop": (lambda x: [float(row.sum()) for row in x], 3),
    "nonzero": (lambda x: x.nonzero(), 1),
    "a mask as index": (lambda x: x[x > 0], 1),
    "unique": (lambda x: x.unique(), 1),
    "bincount": (lambda x: torch.bincount(x.long().flatten().abs()), 1),
    "eigh": (lambda x: torch.linalg.eigh(x @ x.T), 1),
    "a copy into the host": (lambda x: torch.empty(3, 4).copy_(x), 1),
}


@pytest.mark.parametrize("name", MIXES)
def test_a_planted_mix_is_refused(device: PretendedDevice, name: str) -> None:
    with pytest.raises(DeviceMix, match=r"test_pretended_device\.py:"):
        MIXES[name](torch.randn(3, 4).to(CUDA))


def test_numpy_refuses_the_device(device: PretendedDevice) -> None:
    x = torch.ones(2, device=CUDA)
    for reading in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match=r"use \.cpu"):
            reading()


@pytest.mark.parametrize("name", READS)
def test_a_planted_read_is_counted(device: PretendedDevice, name: str) -> None:
    act, count = READS[name]
    x = torch.randn(3, 4).to(CUDA)
    with device.counting() as counts:
        act(x)
    assert counts.reads.total() == count
    assert all(line.startswith("tests/device/test_pretended_device.py:") for line in counts.reads)


def test_uploads_are_counted_where_they_are_waited_for(device: PretendedDevice) -> None:
    with device.counting() as counts:
        torch.ones(3).to(CUDA)
        torch.tensor([1, 2], device=CUDA)
        torch.ones(3).to(CUDA, non_blocking=True)
        torch.zeros(3, device=CUDA)
    assert counts.uploads.total() == 2
    assert (counts.moved, counts.kernels) == (1, 1)  # zeros are written by a kernel


def test_no_fault_is_seen_where_there_is_none(device: PretendedDevice) -> None:
    """CUDA allows numbers, tensors without dimensions, what C++ makes beside its arguments, and deep copies."""
    x = torch.randn(3, 4).to(CUDA)
    with device.counting() as counts:
        assert (x * 2 + torch.tensor(1.0)).device == CUDA
        assert x.new_zeros(2).device == torch.zeros_like(x).device == x[1:, ::2].T.device == CUDA
        assert torch.where(x > 0, x, 0.0).is_cuda
        assert torch.arange(3, device=x.device).is_cuda
        assert copy.deepcopy(x).is_cuda
        assert F.interpolate(x[None, None], (5, 5), mode="bilinear").is_cuda
        x[x > 0] = 0.0
        with torch.autocast("cuda", torch.bfloat16):
            assert (x @ x.T).dtype == torch.bfloat16
    assert not torch.ones(2).is_cuda
    assert counts.waits == 0


def test_gradients_lie_where_the_parameters_do(device: PretendedDevice) -> None:
    layer = nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 1)).to(CUDA)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    with device.counting() as counts:
        layer(torch.randn(2, 4).to(CUDA, non_blocking=True)).sum().backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.device == CUDA for p in layer.parameters())
    assert counts.waits == 0
    assert counts.kernels > 10


class _Careless(torch.autograd.Function):
    """Its backward pass makes a tensor of the host."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * torch.arange(4)


def test_a_mix_in_a_backward_pass_is_refused(device: PretendedDevice) -> None:
    x = torch.randn(3, 4).to(CUDA).requires_grad_()
    with pytest.raises(DeviceMix):
        _Careless.apply(x).sum().backward()


def test_threads_are_on_the_device(device: PretendedDevice) -> None:
    x = torch.randn(3, 4).to(CUDA)
    with ThreadPoolExecutor(1) as pool, device.counting() as counts:
        assert pool.submit(lambda: x.device).result() == CUDA
        assert pool.submit(lambda: float(x.sum())).result() == float(x.sum())
        with pytest.raises(DeviceMix):
            pool.submit(lambda: x + torch.ones(3, 4)).result()
    assert counts.reads.total() == 2


def test_a_planted_race_between_streams_is_refused(device: PretendedDevice) -> None:
    x, stream = torch.ones(3, device=CUDA), torch.cuda.Stream()
    with torch.cuda.stream(stream), pytest.raises(StreamRace, match="has not been waited for"):
        x + 1
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = x + 1
        made = stream.record_event()
        later = y * 2
    here = torch.cuda.current_stream()
    for use in (lambda: y + 1, lambda: y[:2].sum(), lambda: y.tolist(), lambda: y.cpu()):
        with pytest.raises(StreamRace, match="has not been waited for"):
            use()
    here.wait_event(made)
    with pytest.raises(StreamRace, match="without record_stream"):
        y + 1
    y.record_stream(here)
    assert (y + 1).tolist() == [3, 3, 3]
    with pytest.raises(StreamRace, match="has not been waited for"):
        later + 1
    y.add_(1)  # written here: now the other stream has to wait
    with torch.cuda.stream(stream), pytest.raises(StreamRace):
        y + 1


def test_bytes_and_kernels(device: PretendedDevice) -> None:
    x, y = torch.zeros(10, 10, device=CUDA), torch.zeros(10, 10, device=CUDA)
    with device.counting() as counts:
        x.view(100).add_(y.T.reshape(-1))
    assert counts.names == {"aten::clone": 1, "aten::add_": 1}
    assert counts.traffic == 4 * 100 * (2 + 2)


def test_nothing_is_left_behind() -> None:
    before = torch.Generator, torch.autocast, torch.cuda.is_available, ThreadPoolExecutor.submit
    with PretendedDevice():
        assert torch.cuda.is_available()
    assert before == (torch.Generator, torch.autocast, torch.cuda.is_available, ThreadPoolExecutor.submit)
    assert not torch.ones(2).is_cuda
