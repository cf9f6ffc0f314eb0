"""A DINO step in the style of public code (2021), written here, with switches for what one would do today.

The baseline of the step: of dinoskip it has nothing. Crops of one size go through the backbone together, the loss is a
double loop over views, and clip and average loop over parameters, as in facebookresearch/dino.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """A ViT and its head: width, heads, blocks, patch and image sides in pixels, prototypes, drop path."""

    dim: int = 384
    heads: int = 6
    depth: int = 12
    patch: int = 16
    size: int = 224
    out: int = 65536
    drop_path: float = 0.1


@dataclass(frozen=True)
class Style:
    """Settings by which a step is computed.

    ``dtype`` is autocast's (float16 with a gradient scaler). ``attention``: plain products and softmax, or torch's
    fused one. ``modern``: fused AdamW, and clip and average without a loop over parameters.
    """

    dtype: torch.dtype = torch.float16
    attention: Literal["plain", "sdpa"] = "plain"
    modern: bool = False
    compiled: bool = False
    backend: str = "inductor"


class DropPath(nn.Module):
    """Leave out a residual branch of some images."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, N, C), rows of B at 0 or scaled up."""
        if not self.rate or not self.training:
            return x
        keep = 1 - self.rate
        return x.div(keep) * x.new_empty(x.shape[0], *[1] * (x.ndim - 1)).bernoulli_(keep)


class Block(nn.Module):
    """Attention and MLP, each after a norm and with a skip."""

    def __init__(self, dim: int, heads: int, rate: float, attention: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.drop, self.heads, self.attention = DropPath(rate), heads, attention

    def attend(self, x: Tensor) -> Tensor:
        """Attention of (B, N, C)."""
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if self.attention == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = ((q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5).softmax(-1) @ v
        out: Tensor = self.proj(y.transpose(1, 2).reshape(b, n, c))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, N, C)."""
        x = x + self.drop(self.attend(self.norm1(x)))
        out: Tensor = x + self.drop(self.fc2(F.gelu(self.fc1(self.norm2(x)))))
        return out


class Vit(nn.Module):
    """A ViT that gives its normalised class token (B, C)."""

    def __init__(self, shape: Shape, attention: str) -> None:
        super().__init__()
        self.patch, dim = shape.patch, shape.dim
        self.embed = nn.Conv2d(3, dim, shape.patch, shape.patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (shape.size // shape.patch) ** 2 + 1, dim) * 0.02)
        rates = torch.linspace(0, shape.drop_path, shape.depth).tolist()
        self.blocks = nn.ModuleList(Block(dim, shape.heads, rate, attention) for rate in rates)
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def positions(self, h: int, w: int) -> Tensor:
        """Position embeddings of a grid, resized where it is not the network's own."""
        count = self.pos.shape[1] - 1
        if h * w == count:
            return self.pos
        side = math.isqrt(count)
        grid = self.pos[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(h, w), mode="bicubic")
        return torch.cat((self.pos[:, :1], grid.permute(0, 2, 3, 1).flatten(1, 2)), 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C) of images (B, 3, H, W)."""
        h, w = x.shape[-2] // self.patch, x.shape[-1] // self.patch
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(len(x), -1, -1), x), 1) + self.positions(h, w)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)[:, 0]
        return out


class Head(nn.Module):
    """DINO's head: an MLP, a unit bottleneck, and prototypes of unit length."""

    def __init__(self, dim: int, out: int, hidden: int = 2048, bottleneck: int = 256) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(bottleneck, out, bias=False))
        gain = self.last.parametrizations.weight.original0
        gain.data.fill_(1)
        gain.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (B, K)."""
        out: Tensor = self.last(F.normalize(self.mlp(x), dim=-1, p=2))
        return out


class Network(nn.Module):
    """Backbone and head on views (B, 3, S, S) of one size each."""

    def __init__(self, shape: Shape, attention: str) -> None:
        super().__init__()
        self.backbone = Vit(shape, attention)
        self.head = Head(shape.dim, shape.out)

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        """Return scores (V, K) of all views."""
        out: Tensor = self.head(torch.cat([self.backbone(view) for view in views]))
        return out


class PublicDino:
    """Student, teacher, centre and optimizer, and a step of them."""

    def __init__(self, device: torch.device, shape: Shape, style: Style) -> None:
        self.device, self.style = device, style
        self.student = Network(shape, style.attention).to(device).train()
        self.teacher = Network(shape, style.attention).to(device)
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        if style.compiled:
            for network in (self.student, self.teacher):
                network.backbone.compile(dynamic=False, backend=style.backend)
        fused = {"fused": True} if style.modern else {}
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=1e-4, **fused)  # type: ignore[arg-type]
        scaled = style.dtype == torch.float16 and device.type == "cuda"
        self.scaler = torch.amp.GradScaler(device.type, enabled=scaled)
        self.center = torch.zeros(1, shape.out, device=device)

    def loss(self, student: Tensor, teacher: Tensor, views: int) -> Tensor:
        """Cross-entropy of every pair of views but a view with itself; moves the centre."""
        chunks = (student / 0.1).chunk(views)
        targets = torch.softmax((teacher - self.center) / 0.04, -1).detach().chunk(2)
        total, terms = torch.zeros((), device=self.device), 0
        for i, q in enumerate(targets):
            for v in range(views):
                if v != i:
                    total = total + torch.sum(-q * F.log_softmax(chunks[v], -1), -1).mean()
                    terms += 1
        with torch.no_grad():
            self.center = self.center * 0.9 + teacher.float().mean(0, keepdim=True) * 0.1
        return total / terms

    def step(self, views: Sequence[Tensor], count: int) -> float:
        """Take a step on ``count`` views an image, grouped by size, the global ones first; return the loss."""
        low = self.device.type == "cuda" or self.style.dtype == torch.bfloat16  # float16 autocast is for a GPU
        with torch.autocast(self.device.type, self.style.dtype, enabled=low):
            with torch.no_grad():
                teacher = self.teacher([views[0]])
            loss = self.loss(self.student(views), teacher, count)
        value = loss.item()
        if not math.isfinite(value):
            raise ValueError(f"the loss is {value}")
        self.optimizer.zero_grad()
        torch.autograd.backward(self.scaler.scale(loss))
        self.scaler.unscale_(self.optimizer)
        self._clip()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._average()
        return value

    def _clip(self) -> None:
        """Clip the gradient of each parameter to length 3."""
        grads = [p.grad for p in self.student.parameters() if p.grad is not None]
        if self.style.modern:
            scales = (3.0 / (torch.stack(torch._foreach_norm(grads)) + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(grads, list(scales.unbind()))
            return
        for grad in grads:
            scale = 3.0 / (grad.norm(2) + 1e-6)
            if scale < 1:
                grad.mul_(scale)

    @torch.no_grad()
    def _average(self) -> None:
        """Move the teacher by 0.4 % towards the student."""
        student: list[Tensor] = list(self.student.parameters())
        teacher: list[Tensor] = list(self.teacher.parameters())
        if self.style.modern:
            torch._foreach_lerp_(teacher, student, 0.004)
            return
        for q, k in zip(student, teacher, strict=True):
            k.mul_(0.996).add_((1 - 0.996) * q.detach())
