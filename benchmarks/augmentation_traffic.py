"""Claim: on a device the compiled augmentation takes few kernels and a quarter of the memory traffic of its operations.

Nothing runs on a device: kernels and bytes of the compiled form are those of torch's scheduler after fusion (here for
its CPU backend), launches and bytes of the other form those of the operations that torch dispatches, on tensors without
data. For a batch of images with 2×224 + 8×96 crops.

    python -m benchmarks.augmentation_traffic [--images 128]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from functorch.compile import make_boxed_func
from torch._inductor.compile_fx import compile_fx, shape_env_from_inputs
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dinoskip.data.augment import augment, view_parameters
from dinoskip.data.config import AugmentConfig
from dinoskip.data.fused_augment import fused_augment, fused_parameters

GROUPS = ((slice(0, 2), 224), (slice(2, 10), 96))


class Dispatched(TorchDispatchMode):
    """Counts operations that launch something, and the bytes that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.bytes = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count the bytes that it reads and writes."""
        result = function(*args, **(kwargs or {}))
        aliases = any(a.alias_info is not None and not a.alias_info.is_write for a in function._schema.arguments)
        if aliases or "empty" in str(function):  # views and allocations
            return result
        read = {name: value for name, value in (kwargs or {}).items() if name != "out"}  # that is the result
        tensors = [leaf for leaf in tree_leaves((args, read, result)) if isinstance(leaf, torch.Tensor)]
        if "index_copy" in str(function):  # of the target only what is replaced is touched
            tensors = [args[3], args[3]]
        elif "index_select" in str(function):
            tensors = [result, result]
        self.launches += 1
        self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def fused_kernels(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[int, int]:
    """Return the number of kernels that ``function`` is fused into, and the bytes that they read and write."""
    kernels, moved = 0, 0

    def count(module: torch.fx.GraphModule, examples: list[Any], **_: Any) -> Any:
        nonlocal kernels, moved
        graph = GraphLowering(module, shape_env=shape_env_from_inputs(examples))
        with V.set_graph_handler(graph), V.set_real_inputs(examples), V.set_debug_handler(DebugContext()):
            graph.run(*examples)
            graph._update_scheduler()
            moved += graph.count_bytes()[0]
            kernels += len(graph.scheduler.nodes)
        return make_boxed_func(module.forward)

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        return compile_fx(module, examples, inner_compile=count)

    torch._dynamo.reset()
    torch.compile(function, dynamic=False, fullgraph=True, backend=backend)(*inputs)
    return kernels, moved


def compiled_traffic(images: int) -> tuple[int, int]:
    """Launches and bytes of the compiled augmentation, the copies of the parameters to the device included."""
    launches, moved = 0, 0
    for views, size in GROUPS:
        host = view_parameters(AugmentConfig(), 10, 0, 0, np.arange(1))[
            0, views
        ]  # of one image: bytes are in proportion
        crops = torch.zeros(len(host), 3, size, size, dtype=torch.uint8)
        kernels, read_and_written = fused_kernels(fused_augment, crops, torch.from_numpy(fused_parameters(host)))
        launches += kernels + 1
        moved += images * read_and_written
    return launches, moved


def dispatched_traffic(images: int) -> tuple[int, int]:
    """Launches and bytes of the augmentation operation by operation."""
    drawn = view_parameters(AugmentConfig(), 10, 0, 0, np.arange(images))
    with Dispatched() as counted:
        for views, size in GROUPS:
            host = np.ascontiguousarray(drawn[:, views].reshape(-1, drawn.shape[2]))
            augment(torch.empty(len(host), 3, size, size, dtype=torch.uint8, device="meta"), torch.from_numpy(host))
    return counted.launches, counted.bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=128)
    images = parser.parse_args().images
    for name, (launches, moved) in {
        "operation by operation": dispatched_traffic(images), "compiled": compiled_traffic(images),
    }.items():  # fmt: skip
        print(f"{name:24}{launches:5} launches {moved / 1e9:7.2f} GB for {images} images")


if __name__ == "__main__":
    main()
