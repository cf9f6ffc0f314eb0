"""The machine's matmul rate."""

import itertools

import pytest
import torch

from dinoskip.environment import matmul_gflops


def test_the_rate_is_operations_by_seconds() -> None:
    before = torch.get_num_threads()
    try:
        for threads, side in ((1, 384), (2, 384), (4, 768)):
            torch.set_num_threads(threads)
            ticks = itertools.count().__next__  # every product takes one second
            assert matmul_gflops(torch.device("cpu"), torch.float32, ticks) == 2 * side**3 / 1e9
    finally:
        torch.set_num_threads(before)


def test_the_best_product_counts_but_for_the_first() -> None:
    took = itertools.chain([4, 2, 8], itertools.repeat(4))
    ticks = itertools.chain([0], itertools.chain.from_iterable((0, one) for one in took))  # the first is read once
    side = 384 * int(torch.get_num_threads() ** 0.5)
    assert matmul_gflops(torch.device("cpu"), torch.float32, ticks.__next__) == 2 * side**3 / 1e9 / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_real_rate_is_plausible_and_draws_no_random_numbers(dtype: torch.dtype) -> None:
    state = torch.get_rng_state()
    assert 0.1 < matmul_gflops(torch.device("cpu"), dtype) < 1e6
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.gpu
def test_bfloat16_is_faster_than_float32_on_a_gpu() -> None:
    device = torch.device("cuda")
    assert matmul_gflops(device, torch.bfloat16) > 1.5 * matmul_gflops(device, torch.float32)
