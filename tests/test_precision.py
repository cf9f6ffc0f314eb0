"""Exact products where several threads ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from dinoskip.precision import exact_products


@pytest.fixture
def backend() -> Iterator[Any]:
    found = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, found.fp32_precision = found.fp32_precision, "bf16"
    yield found
    found.fp32_precision = before


def test_the_setting_is_put_back_when_the_last_leaves(backend: Any) -> None:
    first, second = ExitStack(), ExitStack()  # of two threads
    first.enter_context(exact_products(torch.device("cpu")))
    second.enter_context(exact_products(torch.device("cpu")))
    assert backend.fp32_precision == "ieee"
    first.close()
    assert backend.fp32_precision == "ieee", "one is still inside"
    second.close()
    assert backend.fp32_precision == "bf16"
    with pytest.raises(KeyError), exact_products(torch.device("cpu")):
        raise KeyError
    assert backend.fp32_precision == "bf16"
