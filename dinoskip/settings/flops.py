"""Floating-point operations of the ViTs and of a training step, in closed form.

A multiplication and an addition count as two. Matrix products only (patch embedding, qkv, QK^T, AV, projections, MLP,
heads), as is usual where a share of a card's matmul rate is stated: softmax, LayerNorm, GELU and updates are left out.
A layer's backward pass is two products of the forward pass's size; the patch embedding's is one, since images have no
gradient. Fused attention computes QK^T once more in its backward pass, which is no useful work and is not counted.
All figures are for one image, as whole numbers. Skips make no difference. Networks of timm's are counted by torch, a
training step as three forward passes.
"""

from __future__ import annotations

from typing import Any

from dinoskip.settings.config import implementation
from dinoskip.settings.vit_config import MLP_RATIO, SHAPES, VitConfig, layout_of


def patch_flops(config: VitConfig, size: int) -> int:
    """The patch embedding of a square image of side ``size`` (whole patches); 0 of a network of timm's."""
    if config.timm_name is not None:
        return 0
    width, patch = SHAPES[config.name]
    return 2 * (size // patch) ** 2 * 3 * patch**2 * width


def block_flops(tokens: int, width: int, mlp_ratio: float = MLP_RATIO) -> int:
    """One block's forward pass over ``tokens`` (patches and CLS); the number of heads does not matter."""
    linear = (3 + 1) * width**2 + 2 * width * round(mlp_ratio * width)  # qkv, projection, the MLP's two layers
    attention = 2 * tokens * width  # QK^T and AV
    return 2 * tokens * (linear + attention)


def network_flops(
    width: int, patch: int, depth: int, patches: int, mlp_ratio: float = MLP_RATIO, registers: int = 0
) -> int:
    """Forward pass of a ViT with a CLS token and ``registers`` over patches of ``patch`` pixels, no classifier."""
    return 2 * patches * 3 * patch**2 * width + depth * block_flops(patches + 1 + registers, width, mlp_ratio)


def vit_flops(config: VitConfig, size: int | None = None) -> int:
    """Forward pass of the backbone on an image of side ``size`` (default: the model's ``img_size``), no classifier."""
    side = config.img_size if size is None else size
    if config.timm_name is not None:
        counted: Any = implementation("dinoskip.models.network_facts:flops_of")
        return int(counted(config.timm_name, config.img_size, side))
    width, patch = SHAPES[config.name]
    patches, ratio = (side // patch) ** 2, layout_of(config.name)[2]
    return network_flops(width, patch, config.blocks, patches, ratio, config.registers)


def dino_head_flops(width: int, out_dim: int, hidden_dim: int, bottleneck_dim: int) -> int:
    """Forward pass of :class:`dinoskip.models.DINOHead` on one view."""
    return 2 * (width * hidden_dim + hidden_dim**2 + hidden_dim * bottleneck_dim + bottleneck_dim * out_dim)


def dino_step_flops(
    config: VitConfig, *, head: tuple[int, int, int], global_size: int, local_size: int, num_local: int
) -> int:
    """A DINO step: the teacher's forward pass on two global crops, the student's forward and backward on all.

    ``head`` is (out_dim, hidden_dim, bottleneck_dim).
    """
    scores = dino_head_flops(config.width, *head)
    globals_, locals_ = vit_flops(config, global_size) + scores, vit_flops(config, local_size) + scores
    forward = 2 * globals_ + num_local * locals_
    embedding = 2 * patch_flops(config, global_size) + num_local * patch_flops(config, local_size)
    return 2 * globals_ + 3 * forward - embedding


def supervised_step_flops(config: VitConfig, classes: int, size: int | None = None) -> int:
    """A supervised step: forward and backward of the backbone and a linear classifier on one image."""
    side = config.img_size if size is None else size
    forward = vit_flops(config, side) + 2 * config.width * classes
    return 3 * forward - patch_flops(config, side)


def vit_parameters(config: VitConfig) -> int:
    """Numbers in the weights of a backbone, no classifier."""
    if config.timm_name is not None:
        return config.facts.parameters
    (width, patch), (_, _, mlp_ratio) = SHAPES[config.name], layout_of(config.name)
    hidden, patches = round(mlp_ratio * width), (config.img_size // patch) ** 2
    scales = 0 if config.layer_scale is None else 2 * width
    norms = 4 * width * (2 if config.cls_norms else 1)  # of a block: gain and bias, twice
    block = 4 * width**2 + 4 * width + 2 * width * hidden + width + hidden + norms + scales
    tokens = patches + (1 + config.registers if config.registers else 2)  # positions and prefix tokens
    return 3 * patch**2 * width + width + tokens * width + config.blocks * block + norms // 2
