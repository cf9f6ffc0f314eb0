"""torch.compile for the backbones of one run: every network is compiled, and one that is not is said to be.

torch keeps compiled code by function, not by network, up to a limit (8 variants); past it a function runs uncompiled
without a word that a user would see. A study trains several networks in one process, each with variants for student
and teacher and for two crop sizes, so a run begins by dropping what earlier ones left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dinoskip.runtime.console import log
from dinoskip.runtime.distributed import World
from dinoskip.training.parallel import transformer_blocks

BACKEND = "inductor"


class Compiler:
    """Compiles the backbones of a run, and counts: graphs made, calls of a backbone, calls of compiled code.

    Attributes:
        graphs: compiled so far; no more after the first step.
        entered: forward passes of what was compiled.
        executed: runs of compiled graphs.
        failure: what the compiler said of a graph that it could not compile, which runs as it is; None: of none.
    """

    def __init__(self) -> None:
        torch.compiler.reset()
        self.graphs, self.entered, self.executed = 0, 0, 0
        self.failure: str | None = None

    def compile_(self, network: nn.Module, here: World, *, by_block: bool = False) -> None:
        """Compile in place, before the network is spread over ranks; names and state stay as they are.

        The whole backbone of the network; with several ranks, or if only its blocks are called (``by_block``), all
        blocks of the network one by one. Gradients of a graph are ready together at its end, so that of a whole
        backbone they could not be exchanged during the backward pass (``ddp``), and gathering a block's parameters
        (``fsdp``) is no part of a graph. Twelve blocks share one graph (with drop path one for each rate, of which
        torch would give up on the ninth).
        """
        backbone = network.get_submodule("backbone")
        blocks = transformer_blocks(network if by_block else backbone)
        if not blocks or not (by_block or here.size > 1):
            self._compile(backbone)
            return
        limit = 8 * len(blocks)  # rates, two crop sizes, student and teacher
        torch._dynamo.config.recompile_limit = max(limit, torch._dynamo.config.recompile_limit)
        # For DDP torch would cut each block's graph at the first bucket's 1 MiB; blocks are pieces small enough.
        torch._dynamo.config.optimize_ddp = False
        for block in blocks:
            self._compile(block)

    def _compile(self, module: nn.Module) -> None:
        module.compile(backend=self._backend, dynamic=False)
        compiled = module._compiled_call_impl
        assert compiled is not None

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.entered += 1
            return compiled(*args, **kwargs)

        module._compiled_call_impl = counted

    def _backend(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        run: Callable[..., Any] = graph.forward
        try:
            run = torch._dynamo.lookup_backend(BACKEND)(graph, inputs)
        except Exception as error:  # whatever a compiler raises, training goes on without it
            self.failure = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

        def counted(*args: Any) -> Any:
            self.executed += 1
            return run(*args)

        return counted

    def problem(self) -> str | None:
        """Return why backbones run uncompiled, all or some of the time, in a line; None if they are compiled."""
        if self.failure is not None:
            return f"torch.compile failed, the network runs without it: {self.failure}"
        if self.executed < self.entered:
            return f"{self.entered - self.executed} of {self.entered} forward passes were not compiled: torch gave up"
        return None


class CompilerWatch:
    """Looks at a run's compiler after each step: a fall-back is one warning, and stands in env.json."""

    def __init__(self, compiler: Compiler | None, note: Callable[..., None]) -> None:
        self._compiler, self._note = compiler, note
        self._graphs, self._warned = 0, False

    def look(self) -> None:
        """Record graphs and problem if there are more graphs, or a first problem, since the last look."""
        if self._compiler is None:
            return
        graphs, problem = self._compiler.graphs, self._compiler.problem()
        if graphs == self._graphs and self._warned == (problem is not None):
            return
        if problem is not None and not self._warned:
            log.warning("%s", problem)
        self._graphs, self._warned = graphs, problem is not None
        self._note(compiled_graphs=graphs, uncompiled=problem)
