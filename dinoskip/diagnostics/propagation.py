"""Propagation of signals and gradients through one network as it is: a row for each block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from dinoskip.models.rank_collapse import token_cosine
from dinoskip.models.vit import embed
from dinoskip.runtime.randomness import torch_rng

_CLASSES = 10  # up to so many images each have a label of their own
_HEAD_STD = 0.02  # as linear layers start in timm's ViTs


@dataclass(frozen=True)
class PropagationRow:
    """One block, measured at its output."""

    block: int
    """1..depth."""
    token_cosine: float
    """Mean cosine between different patches of an image."""
    cls_cosine: float
    """Mean cosine between the CLS tokens of different images."""
    rms: float
    """Root mean square of the patches' entries."""
    gradient: float
    """Norm of the gradient with respect to all parameters of the block."""


@torch.enable_grad()
def propagation(model: VisionTransformer, images: Tensor) -> list[PropagationRow]:
    """A row for each block, from ``images`` (B, 3, H, W), normalised, B of 2 or more; the model itself is not changed.

    Computed with the model as it is (dtype, device, mode). The loss is the cross-entropy of a random 10-class head on
    the normed CLS token, image i having label i mod 10. Raises ValueError for one image, or a model without CLS token.
    """
    if len(images) < 2 or not model.has_class_token:
        raise ValueError(f"propagation needs two images and a CLS token, got {len(images)} images")
    parameter = next(model.parameters())
    tokens = embed(model, images.to(parameter.device, parameter.dtype))
    measured: list[tuple[float, float, float]] = []
    for block in model.blocks:
        tokens = block(tokens)
        patches = tokens.detach()[:, model.num_prefix_tokens :]
        between = token_cosine(tokens.detach()[None, :, 0])
        measured.append((token_cosine(patches), between, float(patches.double().square().mean().sqrt())))
    normed = model.norm(tokens)[:, 0]
    head = torch.randn(normed.shape[-1], _CLASSES, generator=torch_rng(0, "propagation", "head")) * _HEAD_STD
    labels = torch.arange(len(images), device=normed.device) % _CLASSES
    loss = F.cross_entropy(normed @ head.to(normed.device, normed.dtype), labels)
    by_block = [list(block.parameters()) for block in model.blocks]
    gradients = iter(torch.autograd.grad(loss, [parameter for parameters in by_block for parameter in parameters]))
    norms = [float(torch.stack([next(gradients).norm() for _ in parameters]).norm()) for parameters in by_block]
    return [PropagationRow(i, *row, norm) for i, (row, norm) in enumerate(zip(measured, norms, strict=True), 1)]
