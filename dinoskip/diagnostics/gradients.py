"""Gradient norms by part (query, key, value, output, fc1, fc2) and block, sliced from the fused weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.models import Backbone
from dinoskip.runtime.randomness import torch_rng

PARTS = ("query", "key", "value", "output", "fc1", "fc2")
_CLASSES = 10  # up to so many images each have a label of their own


@torch.no_grad()
def part_norms(block: nn.Module, of: Callable[[nn.Parameter], Tensor | None]) -> dict[str, Tensor]:
    """Frobenius norm of ``of(weight)`` for each part of a timm block, scalars on the weights' device.

    ``of`` gives the gradient (or the weight itself, or an update), of the parameter's shape; parts that a block does
    not have, or of which ``of`` gives None, are left out.
    """
    named = dict(block.named_parameters())
    places = {"attn.qkv.weight": ("query", "key", "value"), "attn.proj.weight": ("output",)}
    places |= {"mlp.fc1.weight": ("fc1",), "mlp.fc2.weight": ("fc2",)}
    norms: dict[str, Tensor] = {}
    for name, parts in places.items():
        value = of(named[name]) if name in named else None
        if value is not None:
            pieces = value.detach().double().tensor_split(len(parts))
            norms |= {part: piece.norm() for part, piece in zip(parts, pieces, strict=True)}
    return norms


def gradient_norms(backbone: Backbone, images: Tensor) -> list[dict[str, float]]:
    """``{part: ‖∂L/∂W‖_F}`` of every block for a cross-entropy on the images, image i having label i mod 10.

    ``block`` is all its matrices together, which every kind of block has. The class scores are a fixed random read-out
    (variance 1/C) of the normed class token, or of the mean token where there is none: the same loss for every model of
    one width. ``.grad`` of the parameters stays as it is.
    """
    adapter = backbone.adapter
    with torch.enable_grad():
        tokens, context = adapter.embed(images)
        for index in range(len(adapter.blocks)):
            tokens = adapter.run_block(index, tokens, context)
        normed = adapter.final_norm(tokens)
        tokens = tokens if normed is None else normed
        loss = _loss(tokens[:, 0] if backbone.has_class_token else tokens.mean(1))
        weights = [p for block in adapter.blocks for p in block.parameters() if p.ndim == 2 and p.requires_grad]
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    by_id = {id(w): gradient for w, gradient in zip(weights, gradients, strict=True) if gradient is not None}
    rows = []
    for block in adapter.blocks:
        norms = [by_id[id(p)].double().norm() for p in block.parameters() if id(p) in by_id]
        row = {"block": torch.stack(norms).norm(), **part_norms(block, lambda p: by_id.get(id(p)))}
        rows.append({part: float(norm) for part, norm in row.items()})
    return rows


def _loss(pooled: Tensor) -> Tensor:
    width = pooled.shape[-1]
    draw = torch.randn(width, _CLASSES, dtype=torch.float64, generator=torch_rng(0, "read-out")) / width**0.5
    labels = torch.arange(len(pooled), device=pooled.device) % _CLASSES
    return F.cross_entropy(pooled @ draw.to(pooled), labels)
