"""DINO as facebookresearch/dino states it, plainly: loss pair by pair, ViT and head on named tensors, the loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor
from torch.nn import functional as F


def double_loop(student: Tensor, teacher: Tensor, center: Tensor, student_temp: float, teacher_temp: float) -> Tensor:
    """Mean cross-entropy of all pairs of a teacher view and another student view; scores (V*B, K) and (2*B, K)."""
    batch = teacher.shape[0] // 2
    targets = torch.softmax((teacher - center) / teacher_temp, -1).split(batch)
    views = (student / student_temp).split(batch)
    total, pairs = torch.zeros((), dtype=student.dtype), 0
    for i, q in enumerate(targets):
        for v, s in enumerate(views):
            if v != i:
                total = total + (-q * torch.log_softmax(s, -1)).sum(-1).mean()
                pairs += 1
    return total / pairs


Values = dict[str, Tensor]


def resized_positions(embedding: Tensor, side: int, rule: str) -> Tensor:
    """The position embedding (1, 1 + g*g, C) for ``side`` x ``side`` patches, as facebookresearch/dino or timm does."""
    grid = round((embedding.shape[1] - 1) ** 0.5)
    if side == grid:
        return embedding
    cls, patches = embedding[:, :1], embedding[:, 1:]
    if rule == "timm":
        moved = resample_abs_pos_embed(patches, [side, side], num_prefix_tokens=0)
    else:
        factor = (side + 0.1) / grid  # vision_transformer.py, interpolate_pos_encoding
        planes = patches.reshape(1, grid, grid, -1).permute(0, 3, 1, 2)
        planes = F.interpolate(planes, scale_factor=(factor, factor), mode="bicubic")
        moved = planes.permute(0, 2, 3, 1).flatten(1, 2)
    return torch.cat([cls, moved], 1)


def vit(p: Values, images: Tensor, depth: int, heads: int, skip: bool, rule: str = "timm") -> Tensor:
    """The class token (B, C) of a ViT whose named tensors are ``p`` (without the prefix), with or without skips."""
    return vit_tokens(p, images, depth, heads, skip, rule)[:, 0]


def vit_tokens(p: Values, images: Tensor, depth: int, heads: int, skip: bool, rule: str = "timm") -> Tensor:
    """All tokens (B, 1 + N, C) of a ViT after its last norm."""
    kernel = p["patch_embed.proj.weight"]
    x = F.conv2d(images, kernel, p["patch_embed.proj.bias"], stride=kernel.shape[-1])
    side, x = x.shape[-1], x.flatten(2).transpose(1, 2)
    x = torch.cat([p["cls_token"].expand(len(x), -1, -1), x], 1) + resized_positions(p["pos_embed"], side, rule)
    return vit_blocks(p, x, depth, heads, skip)


def vit_blocks(p: Values, x: Tensor, depth: int, heads: int, skip: bool) -> Tensor:
    """Tokens (B, N, C) through ``blocks.0``, ``blocks.1``, ... and ``norm``."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], 1e-6)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    for i in range(depth):
        q, k, v = linear(norm(x, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv").chunk(3, -1)
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        attended = linear((weights @ v).transpose(1, 2).flatten(2), f"blocks.{i}.attn.proj")
        x = x + attended if skip else attended
        hidden = F.gelu(linear(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1"))
        x = linear(hidden, f"blocks.{i}.mlp.fc2") + (x if skip else 0)
    return norm(x, "norm")


def head(p: Values, x: Tensor) -> Tensor:
    """DINOHead's scores (B, K): three layers, unit length, and directions of unit length times their gains."""
    for layer in (0, 2, 4):
        x = x @ p[f"mlp.{layer}.weight"].T + p[f"mlp.{layer}.bias"]
        x = F.gelu(x) if layer < 4 else x
    v = p["last_v"]
    return (x / x.norm(dim=-1, keepdim=True)) @ (v / v.norm(dim=-1, keepdim=True) * p["last_g"]).T


@dataclass
class Published:
    """Settings of a public command of main_dino.py; the names are its arguments'."""

    epochs: int
    batch: int
    norm_last_layer: bool
    teacher_temp: float
    warmup_teacher_temp_epochs: int
    warmup_teacher_temp: float = 0.04
    lr: float = 0.0005
    min_lr: float = 1e-6
    warmup_epochs: int = 10
    weight_decay: float = 0.04
    weight_decay_end: float = 0.4
    clip_grad: float = 3.0
    freeze_last_layer: int = 1
    momentum_teacher: float = 0.996
    student_temp: float = 0.1
    center_momentum: float = 0.9

    def at(self, step: int, per_epoch: int) -> tuple[float, float, float, float]:
        """Learning rate, weight decay, teacher's momentum and temperature of a step."""
        total, warm, epoch = self.epochs * per_epoch, self.warmup_epochs * per_epoch, step // per_epoch

        def fall(first: float, last: float, at: int, of: int) -> float:
            return last + 0.5 * (first - last) * (1 + math.cos(math.pi * at / of))

        peak = self.lr * self.batch / 256
        lr = peak * step / (warm - 1) if step < warm else fall(peak, self.min_lr, step - warm, total - warm)
        rise = min(1.0, epoch / max(self.warmup_teacher_temp_epochs - 1, 1))
        temp = self.warmup_teacher_temp + (self.teacher_temp - self.warmup_teacher_temp) * rise
        return (
            lr, fall(self.weight_decay, self.weight_decay_end, step, total),
            fall(self.momentum_teacher, 1.0, step, total), temp,
        )  # fmt: skip


class PlainDino:
    """main_dino.py's loop over named tensors, with its AdamW written out; one process, no mixed precision.

    ``network(values, images)`` gives the scores of one size of view.
    """

    def __init__(self, start: Values, network: Callable[[Values, Tensor], Tensor], recipe: Published) -> None:
        self.network, self.recipe = network, recipe
        self.student = {name: value.clone() for name, value in start.items()}
        self.teacher = {name: value.clone() for name, value in start.items()}
        self.moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in start.items()}
        self.updates = dict.fromkeys(start, 0)
        self.center = torch.zeros_like(start["head.last_v"][:, 0])

    def step(self, number: int, per_epoch: int, views: list[Tensor]) -> float:
        """Update everything with views (two global ones stacked, local ones stacked); return the loss."""
        recipe = self.recipe
        lr, decay, momentum, temp = recipe.at(number, per_epoch)
        leaves = {name: value.clone().requires_grad_() for name, value in self.student.items()}
        teacher = self.network(self.teacher, views[0])
        student = torch.cat([self.network(leaves, view) for view in views])
        loss = double_loop(student, teacher, self.center, recipe.student_temp, temp)
        loss.backward()
        for name, leaf in leaves.items():
            if name == "head.last_g" and recipe.norm_last_layer:
                continue
            if name.startswith("head.last") and number // per_epoch < recipe.freeze_last_layer:
                continue
            assert leaf.grad is not None
            gradient = leaf.grad * min(1.0, recipe.clip_grad / (float(leaf.grad.norm()) + 1e-6))
            self._adamw(name, gradient, lr, decay if leaf.ndim > 1 and not name.endswith("bias") else 0.0)
        for name, value in self.teacher.items():
            self.teacher[name] = momentum * value + (1 - momentum) * self.student[name]
        self.center = recipe.center_momentum * self.center + (1 - recipe.center_momentum) * teacher.mean(0)
        return loss.item()

    def _adamw(self, name: str, gradient: Tensor, lr: float, decay: float) -> None:
        first, second = self.moments[name]
        self.updates[name] += 1
        count = self.updates[name]
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        self.moments[name] = first, second
        size = (second / (1 - 0.999**count)).sqrt() + 1e-8
        self.student[name] = self.student[name] * (1 - lr * decay) - lr * first / (1 - 0.9**count) / size
