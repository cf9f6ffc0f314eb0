"""What torch's compiler makes of a function: its kernels and the bytes they move, counted without building them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch._inductor.compile_fx import compile_fx, shape_env_from_inputs
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V


def kernels_and_bytes(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[int, int]:
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

    torch._dynamo.reset()
    backend = lambda module, examples: compile_fx(module, examples, inner_compile=count)  # noqa: E731
    torch.compile(function, dynamic=False, fullgraph=True, backend=backend)(*inputs)
    return kernels, moved
