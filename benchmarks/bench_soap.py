"""SOAP on the parameters of a ViT-S: ours (stacked) against a plain one, tensor by tensor, and against fused AdamW.

    python benchmarks/bench_soap.py [--blocks 12] [--dim 384] [--frequency 10] [--rounds 2] [--device cpu]

One process, interleaved: in every round each optimizer takes the plain steps and the refresh of one period in turn;
the least of each counts. Operations are counted in two steps of the first round. The plain one is written below after
the paper's algorithm (Vyas et al., arXiv 2409.11321): it loops over tensors and, like the public implementation, turns
the first moment out of the basis and back in every step. Targets on a CPU: step at most 0.70 of the plain one's, at
most 100 dispatched operations on a plain step and 200 at a refresh (views not counted), state at most 38.7 bytes a
parameter. On a GPU the QRs of a refresh are also timed one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dinoskip.models import create_model
from dinoskip.optim import AdamWConfig, SoapConfig, build_optimizer
from dinoskip.optim.soap import orthonormal


class PlainSOAP(torch.optim.Optimizer):
    """SOAP a tensor at a time; kernels as (out, rest)."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], eps: float, decay: float, period: int):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": decay, "period": period})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One step of every tensor."""
        for group in self.param_groups:
            for p in group["params"]:
                shape = [s for s in (p.shape if p.ndim < 4 else (len(p), p[0].numel())) if s > 1]
                self._update(p, p.grad.reshape(shape), self.state[p], group, p.ndim > 1)

    def _update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any], sided: bool) -> None:
        beta1, beta2 = group["betas"]
        if not state:
            state.update(step=0, m=torch.zeros_like(g), v=torch.zeros_like(g))
            state["factors"] = [torch.zeros(n, n, device=g.device) for n in g.shape] if sided else []
            self._learn(g, state["factors"], beta2)
            state["bases"] = [torch.linalg.eigh(f)[1].flip(1) for f in state["factors"]]
            return
        bases = state["bases"]
        rotated = _turn(g, bases)
        state["step"] += 1
        state["m"].mul_(beta1).add_(rotated, alpha=1 - beta1)
        state["v"].mul_(beta2).add_(rotated.square(), alpha=1 - beta2)
        update = _turn(state["m"] / state["v"].sqrt().add_(group["eps"]), [b.T for b in bases])
        size = group["lr"] * (1 - beta2 ** state["step"]) ** 0.5 / (1 - beta1 ** state["step"])
        p.add_(update.view(p.shape), alpha=-size)
        p.add_(p, alpha=-group["lr"] * group["weight_decay"])
        state["m"] = _turn(state["m"], [b.T for b in bases])
        self._learn(g, state["factors"], beta2)
        if state["step"] % group["period"] == 0:
            for i, (factor, basis) in enumerate(zip(state["factors"], bases, strict=True)):
                order = torch.diag(basis.T @ factor @ basis).argsort(descending=True)
                state["v"] = state["v"].index_select(i, order)
                bases[i] = torch.linalg.qr(factor @ basis[:, order])[0]
        state["m"] = _turn(state["m"], bases)

    @staticmethod
    def _learn(g: Tensor, factors: list[Tensor], beta: float) -> None:
        for i, factor in enumerate(factors):
            rest = [d for d in range(g.ndim) if d != i]
            factor.lerp_(torch.tensordot(g, g, dims=[rest, rest]), 1 - beta)


def _turn(tensor: Tensor, matrices: list[Tensor]) -> Tensor:
    for matrix in matrices:
        tensor = torch.tensordot(tensor, matrix, dims=[[0], [0]])
    return tensor


class Operations(TorchDispatchMode):
    """Counts dispatched operations that are no views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and func is not torch.ops.aten.detach.default
        return func(*args, **(kwargs or {}))


def timed(action: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds that one call takes, the device waited for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def made_up_model(blocks: int, dim: int, device: torch.device) -> torch.nn.Module:
    """A ViT with made-up gradients of full rank."""
    model = create_model("vit_small_patch16", depth=blocks, embed_dim=dim, num_heads=dim // 64).to(device)
    generator = torch.Generator(device).manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, device=device)
    return model


def refresh_on_a_gpu(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    bases = [value for state in optimizer.state.values() for key, value in state.items() if "basis" in key]
    sizes = {len(basis) for basis in bases}
    stacks = [torch.stack([basis for basis in bases if len(basis) == n]) for n in sorted(sizes)]
    together, alone = [], []
    for _ in range(3):
        together.append(timed(lambda: [orthonormal(stack) for stack in stacks], device))
        alone.append(timed(lambda: [torch.linalg.qr(matrix) for stack in stacks for matrix in stack], device))
    print(
        f"{len(bases)} QRs: ours {min(together) * 1e3:.1f} ms, one after the other {min(alone) / min(together):.2f} x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("blocks", 12), ("dim", 384), ("frequency", 10), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device, period = torch.device(args.device), args.frequency
    models = {name: made_up_model(args.blocks, args.dim, device) for name in ("ours", "plain", "adamw")}
    plain = PlainSOAP(models["plain"].parameters(), 1e-3, (0.95, 0.95), 1e-8, 0.01, period)
    optimizers = {
        "ours": build_optimizer(models["ours"], SoapConfig(precondition_frequency=period)),
        "plain": plain,
        "adamw": build_optimizer(models["adamw"], AdamWConfig()),
    }
    size = sum(p.numel() for p in models["ours"].parameters())
    print(f"{size / 1e6:.2f} M parameters, {device}, {torch.get_num_threads()} threads, refresh every {period} steps")
    first = {name: timed(optimizer.step, device) for name, optimizer in optimizers.items()}
    steps = {name: [] for name in optimizers}
    refreshes = {name: [] for name in optimizers}
    operations = {name: [] for name in optimizers}
    for turn in range(args.rounds):
        for number in range(1, period + 1):
            for name, optimizer in optimizers.items():
                with Operations() if turn == 0 and number in (1, period) else contextlib.nullcontext() as mode:
                    seconds = timed(optimizer.step, device)
                (refreshes if number == period else steps)[name].append(seconds)
                if mode is not None:
                    operations[name].append(mode.count)
    for name in optimizers:
        low, high = min(steps[name]), min(refreshes[name])
        mean = (low * (period - 1) + high) / period
        print(
            f"{name:6} first {first[name]:7.3f} s  plain step {low:7.3f} s  refresh {high:7.3f} s"
            f"  amortised {mean:7.3f} s  operations {operations[name][0]} plain, {operations[name][1]} at a refresh"
        )
        steps[name] = [low, high, mean]
    for kind, at in (("plain step", 0), ("refresh", 1), ("amortised", 2)):
        ours = steps["ours"][at]
        print(f"{kind}: {ours / steps['plain'][at]:.3f} of the plain SOAP, {ours / steps['adamw'][at]:.1f} x AdamW")
    tensors = [v for state in optimizers["ours"].state.values() for v in state.values() if isinstance(v, Tensor)]
    state = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    print(f"state: {state / size:.2f} bytes a parameter")
    if device.type == "cuda":
        refresh_on_a_gpu(optimizers["ours"], device)


if __name__ == "__main__":
    main()
