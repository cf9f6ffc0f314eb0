"""Part ``optimizers``: steps on the parameters of a ViT-S with DINO's head, and a refresh's QR by several ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.steps import sizes
from dinoskip.models import create_model
from dinoskip.models.heads import DINOHead
from dinoskip.optim import build_optimizer
from dinoskip.optim.config import AdamWConfig, EcsConfig, KLShampooConfig, MuonConfig, SoapConfig
from dinoskip.optim.soap import orthonormal

KINDS: Mapping[str, Any] = {
    "adamw": AdamWConfig(),
    "soap": SoapConfig(precondition_frequency=10),
    "soap tf32": SoapConfig(precondition_frequency=10, tf32=True),
    "muon": MuonConfig(),
    "klshampoo": KLShampooConfig(precondition_frequency=10),
    "ecs": EcsConfig(precondition_frequency=100),
}
MATRICES = ((384, 48), (1152, 12), (1536, 24), (2048, 4))
"""Sides and numbers of the factors of a ViT-S and DINO's head."""


def network(kit: Kit) -> nn.Module:
    """Backbone and head with random gradients."""
    size = sizes(kit)
    net = nn.Module()
    net.backbone = create_model(size.model, depth=size.depth, img_size=size.large).to(kit.device)
    inner = (64, 32) if kit.tiny else (2048, 256)
    net.head = DINOHead(size.dim, size.out, hidden_dim=inner[0], bottleneck_dim=inner[1]).to(kit.device)
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    return net


def measure(kit: Kit, name: str, config: Any) -> None:
    """A plain step and, where there is one, the step of a refresh."""
    kit.fresh()
    net = network(kit)
    optimizer = build_optimizer(net, config)
    period, plain = getattr(config, "precondition_frequency", 0), 2 if kit.tiny else 5
    for _ in range(2):  # states are made in the first
        optimizer.step()
    facts = {"plain_ms": kit.ms(optimizer.step, plain, 0), "peak_gib": kit.peak_gib()}
    if 0 < period <= 10:
        for _ in range(2 + plain + 1, period):
            optimizer.step()
        facts["refresh_ms"] = 1e3 * kit.taken(optimizer.step)[0]
        facts["mean_ms"] = ((period - 1) * facts["plain_ms"] + facts["refresh_ms"]) / period
    kit.say(f"optimizer {name}", **facts)
    if name == "soap":
        with kit.waits("a SOAP step"):
            optimizer.step()


def one_by_one(a: Tensor) -> Tensor:
    """Q of each matrix by torch's QR."""
    return torch.stack([torch.linalg.qr(x).Q for x in a])


def batched(a: Tensor) -> Tensor:
    """Q of all matrices by one call of torch's QR."""
    q: Tensor = torch.linalg.qr(a).Q
    return q


def cholesky(a: Tensor) -> Tensor:
    """Q by three rounds of Cholesky QR in float64, columns scaled first: products and triangular solves alone."""
    q = a.double()
    q = q / q.norm(dim=-2, keepdim=True).clamp(min=1e-300)
    eye = torch.eye(a.shape[-1], device=a.device, dtype=torch.float64)
    for shift in (1e-12, 0.0, 0.0):  # the shift keeps the first factor positive definite (Fukaya et al. 2020)
        lower, _ = torch.linalg.cholesky_ex(q.mT @ q + shift * eye)
        q = torch.linalg.solve_triangular(lower.mT, q, upper=True, left=False)
    out: Tensor = q.float()
    return out


WAYS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "ours": orthonormal,
    "torch, one by one": one_by_one,
    "torch, batched": batched,
    "Cholesky, float64, batched": cholesky,
}


def run(kit: Kit) -> None:
    """Measure all, the optimizers first."""
    for name, config in KINDS.items():
        if kit.has(20) and not (kit.tiny and name not in ("adamw", "soap")):
            with kit.attempt(name):
                measure(kit, name, config)
    for side, count in ((32, 3),) if kit.tiny else MATRICES:
        generator = torch.Generator(kit.device).manual_seed(side)
        spread = torch.logspace(0, -3, side, device=kit.device)[:, None]
        g = torch.randn(count, side, 4 * side, device=kit.device, generator=generator) * spread
        basis = one_by_one(torch.randn(count, side, side, device=kit.device, generator=generator))
        power = g @ g.mT / g.shape[-1] @ basis
        eye = torch.eye(side, device=kit.device, dtype=torch.float64)
        for name, way in WAYS.items():
            if not kit.has(8):
                return
            with kit.attempt(f"QR {side} {name}"):
                q = way(power).double()
                off = float((q.mT @ q - eye).abs().max())
                took = kit.ms(lambda way=way, power=power: way(power), 2, 1)  # type: ignore[misc]
                kit.say(f"QR of {count} x {side}: {name}", ms=took, off_orthogonal=off)
