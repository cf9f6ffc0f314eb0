"""Exact products whatever else the process has asked for, and where several threads ask for them.

cuBLAS reads ``torch.backends.cuda.matmul.allow_tf32`` before a product, which raises where torch's two settings differ;
neither needs a device.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dinoskip.runtime.precision import bf16_autocast, exact_products, frozen_passes, tf32_products

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def backend() -> Iterator[Any]:
    cpu = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, cpu.fp32_precision = cpu.fp32_precision, "bf16"
    yield cpu
    cpu.fp32_precision = before


@pytest.fixture(params=["highest", "high", "medium"])
def process(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each of the settings of the process, as ``torch.set_float32_matmul_precision`` leaves them."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = torch.get_float32_matmul_precision(), [one.fp32_precision for one in backends]
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before[0])
    for one, value in zip(backends, before[1], strict=True):
        one.fp32_precision = value


def settings() -> tuple[Any, ...]:
    cuda, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    return torch.get_float32_matmul_precision(), cuda.allow_tf32, cuda.fp32_precision, cpu.fp32_precision


def test_convolutions_on_cuda_are_exact_inside_and_as_they_were_after() -> None:
    convolution = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = convolution.fp32_precision
    assert before == "tf32", "torch's default"
    with exact_products(CUDA):
        assert convolution.fp32_precision == "ieee"
        with tf32_products(CUDA):
            assert convolution.fp32_precision == "ieee"
    with frozen_passes("tf32", CUDA):
        assert convolution.fp32_precision == "tf32"
        assert torch.backends.cuda.matmul.allow_tf32
    with exact_products(CPU):
        assert convolution.fp32_precision == before
    assert convolution.fp32_precision == before


def test_a_frozen_network_computes_as_asked() -> None:
    left, right = torch.ones(2, 4), torch.ones(4, 2)
    for precision, dtype in (("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)):
        with frozen_passes(precision, CPU):
            assert (left @ right).dtype == dtype


def test_the_setting_is_put_back_when_the_last_leaves(backend: Any) -> None:
    first, second = ExitStack(), ExitStack()  # of two threads
    first.enter_context(exact_products(CPU))
    second.enter_context(exact_products(CPU))
    assert backend.fp32_precision == "ieee"
    first.close()
    assert backend.fp32_precision == "ieee", "one is still inside"
    second.close()
    assert backend.fp32_precision == "bf16"
    with pytest.raises(KeyError), exact_products(CPU):
        raise KeyError
    assert backend.fp32_precision == "bf16"


def test_cublas_is_exact_inside_and_as_it_was_after(process: str) -> None:
    before = settings()
    assert before[1] == (process != "highest")
    with exact_products(CUDA):
        assert settings() == ("highest", False, "ieee", "ieee")
        with exact_products(CPU):
            assert settings() == ("highest", False, "ieee", "ieee")
    assert settings() == before
    with exact_products(CPU):
        assert settings() == (*before[:3], "ieee")
        with exact_products(CUDA):
            assert settings() == ("highest", False, "ieee", "ieee")
        assert settings() == (*before[:3], "ieee")
    assert settings() == before


def test_tf32_is_only_where_nobody_asks_for_exact_products(process: str) -> None:
    before = settings()
    rotation, other = ExitStack(), ExitStack()  # of two threads
    rotation.enter_context(tf32_products(CUDA))
    assert torch.backends.cuda.matmul.allow_tf32
    other.enter_context(exact_products(CUDA))
    assert not torch.backends.cuda.matmul.allow_tf32
    rotation.close()
    assert not torch.backends.cuda.matmul.allow_tf32, "one is still inside"
    other.close()
    assert settings() == before
    with tf32_products(CPU):
        assert settings() == before


def test_products_of_the_cpu_are_exact(process: str) -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 256, 256, generator=generator)
    with exact_products(CPU):
        product = left @ right
    torch.testing.assert_close(product.double(), left.double() @ right.double(), rtol=0, atol=2e-4)


def test_the_environment_does_not_break_them() -> None:
    """torch reads the variable when it starts, so this needs a process of its own."""
    program = """
import torch
from dinoskip.runtime.precision import exact_products
assert torch.backends.cuda.matmul.allow_tf32, "the variable has no effect"
with exact_products(torch.device("cuda")):
    assert not torch.backends.cuda.matmul.allow_tf32
assert torch.backends.cuda.matmul.allow_tf32
"""
    environment = {**os.environ, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_under_bfloat16_attention_of_a_cpu_is_float32s_rounded_and_products_are_bfloat16() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 37, 32, generator=generator).bfloat16()
    expected = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), scale=0.5).bfloat16()
    with bf16_autocast(CPU):
        assert torch.equal(F.scaled_dot_product_attention(query, key, value, scale=0.5), expected)
        assert (query.float() @ key.float().mT).dtype == torch.bfloat16
    with bf16_autocast(CPU, enabled=False):
        assert (query.float() @ key.float().mT).dtype == torch.float32


def test_its_gradients_are_those_of_float32_rounded() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(3, 2, 3, 37, 32, generator=generator).bfloat16().float().requires_grad_()
    rounded = exact.detach().bfloat16().requires_grad_()
    weights = torch.randn(2, 3, 37, 32, generator=generator).bfloat16()
    F.scaled_dot_product_attention(*exact).backward(weights.float())
    with bf16_autocast(CPU):
        attended = F.scaled_dot_product_attention(*rounded)
    attended.backward(weights)
    assert exact.grad is not None
    assert rounded.grad is not None
    torch.testing.assert_close(rounded.grad.float(), exact.grad, rtol=2**-8, atol=2**-8)
