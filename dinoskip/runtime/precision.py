"""Precision of float32 matrix products, and on CUDA of convolutions.

torch has two settings for cuBLAS, an older one of the process (``set_float32_matmul_precision``, and the environment's
``TORCH_ALLOW_TF32_CUBLAS_OVERRIDE``) and a newer one of the back end (``fp32_precision``), and refuses products while
they differ. So both are set here, and both are put back. cuDNN's convolutions have a setting of their own, which is
TF32 by default.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dinoskip.runtime.arithmetic import Precision


def at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` in float32, or in float64 if they are in it."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


_lock = threading.Lock()
_inside: dict[str, list[str]] = {"cpu": [], "cuda": []}  # what those inside ask for
_before: list[str] = []  # settings of the process, cuBLAS, the CPU and cuDNN's convolutions, while anybody is inside


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Inside, float32 products and convolutions are float32, not TF32 or bfloat16, whose 7 to 10 bits move results.

    The setting is one of the whole process, so threads may be inside together: the last that leaves puts it back.
    """
    with _products(device, "ieee"):
        yield


@contextmanager
def tf32_products(device: torch.device) -> Iterator[None]:
    """Inside, float32 products on CUDA round their inputs to TF32's 10 bits, unless a thread asks for exact ones.

    On other devices nothing changes.
    """
    if device.type == "cuda":
        with _products(device, "tf32"):
            yield
    else:
        yield


@contextmanager
def frozen_passes(precision: Precision, device: torch.device) -> Iterator[None]:
    """Inside, a frozen network on ``device`` computes in this precision; on a CPU tf32 is fp32."""
    if precision == "bf16":
        with bf16_autocast(device):
            yield
    elif device.type == "cuda":
        with exact_products(device) if precision == "fp32" else tf32_products(device):
            yield
    else:  # torch's float32 on a CPU is float32 unless the user's process asks for less
        yield


@contextmanager
def bf16_autocast(device: torch.device, enabled: bool = True) -> Iterator[None]:
    """Inside, and if ``enabled``, products are bfloat16 by torch's autocast; on a CPU attention stays float32.

    torch's bfloat16 attention on a CPU goes back up to seven times as slowly as float32's for 37 tokens, which costs
    more than its AMX units save elsewhere.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device.type, torch.bfloat16, enabled=enabled))
        if enabled and device.type == "cpu":
            stack.enter_context(_Float32Attention())
        yield


class _Float32Attention(TorchFunctionMode):
    """Inside, scaled dot-product attention is computed in float32 and gives the type of its queries."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention or args[0].dtype != torch.bfloat16:
            return func(*args, **kwargs)
        query, key, value = (tensor.float() for tensor in args[:3])
        with torch.autocast("cpu", enabled=False):
            return func(query, key, value, *args[3:], **kwargs).to(args[0].dtype)


@contextmanager
def _products(device: torch.device, wanted: str) -> Iterator[None]:
    inside = _inside["cuda" if device.type == "cuda" else "cpu"]
    with _lock:
        if not _before:
            _before.extend([_process_setting(), *(_backend(kind).fp32_precision for kind in ("cuda", "cpu", "cudnn"))])
        inside.append(wanted)
        _settle()
    try:
        yield
    finally:
        with _lock:
            inside.remove(wanted)
            _settle()
            if not any(_inside.values()):
                _before.clear()


def _settle() -> None:
    """Set what those inside need, and what was before where nobody is."""
    process, cuda, cpu, convolutions = _before
    wanted = min(_inside["cuda"], default=None)  # "ieee" before "tf32"
    # Carried over to both back ends by torch.
    torch.set_float32_matmul_precision({"ieee": "highest", "tf32": "high", None: process}[wanted])
    _backend("cudnn").fp32_precision = wanted or convolutions
    if wanted is None:
        _backend("cuda").fp32_precision = cuda
    if _inside["cpu"]:
        _backend("cpu").fp32_precision = "ieee"
    elif wanted != "ieee":
        _backend("cpu").fp32_precision = cpu


def _backend(kind: str) -> Any:
    if kind == "cudnn":
        return torch.backends.cudnn.conv  # type: ignore[attr-defined]
    return torch.backends.cuda.matmul if kind == "cuda" else torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def _process_setting() -> str:
    """``highest``, ``high`` or ``medium``; torch does not tell where only the newer setting asks for TF32."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "highest"
