# Frozen: rows docs/results/initialisations.md, commit 41fd7fa3, 2026-11-25.
"""The initialisations that are compared, by name: what each does to a network that starts by the default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.init import calibrated_, reparametrise_, skipless_
from dinoskip.init.orthogonal import haar
from dinoskip.models.vit import embed
from dinoskip.runtime.randomness import torch_rng

Candidate = Callable[[VisionTransformer, Tensor, int], object]
"""Changes a model, given normalised images to measure on and a seed."""
STEPS: Mapping[str, float] = {"k1": 3.0, "k2": 3.0, "c1": 2.0, "c2": 10.0}
SMALLER_STEPS: Mapping[str, float] = {"k1": 6.0, "k2": 6.0, "c1": 6.0, "c2": 30.0}


@torch.no_grad()
def centre_(model: VisionTransformer, images: Tensor, attention: float, mlp: float) -> None:
    """Set the biases of proj and fc2, block by block, to minus these shares of the mean output over patches."""
    tokens = embed(model, images.float())
    for block in model.blocks:
        tokens = centred(block, tokens, attention, mlp)


def centred(block: nn.Module, tokens: Tensor, attention: float, mlp: float) -> Tensor:
    """:func:`centre_` of one block that receives ``tokens``; what it then gives."""
    for share, norm, part, bias in (
        (attention, "norm1", "attn", "attn.proj.bias"), (mlp, "norm2", "mlp", "mlp.fc2.bias"),
    ):  # fmt: skip
        parameter = block.get_parameter(bias)
        parameter.zero_()
        output = block.get_submodule(part)(block.get_submodule(norm)(tokens))
        parameter.copy_(-share * output[:, 1:].mean((0, 1)))
        tokens = output + parameter
    return tokens


def default(model: VisionTransformer, images: Tensor, seed: int) -> None:
    """Leave the network as its default initialisation has made it."""


def paper(model: VisionTransformer, images: Tensor, seed: int) -> None:
    """The initialisation of Cutting the Skip."""
    skipless_(model, seed=seed)


def paper_centred(model: VisionTransformer, images: Tensor, seed: int, *, share: float = 1.0) -> None:
    """The paper's, with this share of means subtracted by biases; of the patch embedding's, all."""
    paper(model, images, seed)
    with torch.no_grad():
        bias = model.patch_embed.proj.bias
        bias.sub_(model.patch_embed(images.float()).mean((0, 1, 2)))
    centre_(model, images, share, share)


def calibrated(model: VisionTransformer, images: Tensor, seed: int, **settings: Any) -> None:
    """Ours, with settings other than the defaults."""
    calibrated_(model, images, seed=seed, **settings)


def attention_centred(model: VisionTransformer, images: Tensor, seed: int) -> None:
    """Ours, but the MLP keeps its mean."""
    calibrated_(model, images, seed=seed)
    centre_(model, images, 1.0, 0.0)


@torch.no_grad()
def split_heads(
    model: VisionTransformer, images: Tensor, seed: int, *, around: int, blocks: slice = slice(None)
) -> None:
    """Ours, but the last ``around`` heads of ``blocks`` look around: independent small W^Q and W^K, even attention."""
    calibrated_(model, images, seed=seed)
    for index in range(len(model.blocks))[blocks]:
        attention = model.blocks[index].attn
        weight, dim, width = attention.qkv.weight, attention.qkv.in_features, attention.head_dim
        for head in range(attention.num_heads - around, attention.num_heads):
            for part in (0, 1):
                drawn = haar(dim, width, torch_rng(seed, "around", index, head, part))
                rows = slice(part * dim + head * width, part * dim + (head + 1) * width)
                weight[rows] = 0.5 * drawn.T.float()
    centre_(model, images, 0.5, 0.5)


@torch.no_grad()
def class_token_looks(model: VisionTransformer, images: Tensor, seed: int, *, rank: int) -> None:
    """Ours, but W^Q of every block loses the ``rank`` main directions of its CLS tokens, which then look around."""
    calibrated_(model, images, seed=seed)
    tokens = embed(model, images.float())
    for block in model.blocks:
        normed = block.norm1(tokens)[:, 0]
        directions = torch.linalg.svd(normed, full_matrices=False).Vh[:rank]
        dim = block.attn.qkv.in_features
        queries = block.attn.qkv.weight[:dim]
        queries.sub_(queries @ directions.T @ directions)
        tokens = centred(block, tokens, 0.5, 0.5)


@torch.no_grad()
def class_token_keeps_a_head(model: VisionTransformer, images: Tensor, seed: int) -> None:
    """Ours, but the CLS token looks at itself by the first head, which keeps it recognisable, and around by the others.

    W^Q of the other heads loses the mean direction of the block's CLS tokens.
    """
    calibrated_(model, images, seed=seed)
    tokens = embed(model, images.float())
    for block in model.blocks:
        dim, width = block.attn.qkv.in_features, block.attn.head_dim
        weight = block.attn.qkv.weight
        direction = F.normalize(block.norm1(tokens)[:, 0].mean(0), dim=0)
        weight[:width] = weight[dim : dim + width]
        weight[width:dim].sub_(torch.outer(weight[width:dim] @ direction, direction))
        tokens = centred(block, tokens, 0.5, 0.5)


@torch.no_grad()
def temperature_by_depth(model: VisionTransformer, images: Tensor, seed: int, *, last: float) -> None:
    """Ours, but logits are multiplied by a factor that grows from 1 to ``last`` over the blocks, geometrically."""
    calibrated_(model, images, seed=seed)
    depth = len(model.blocks)
    for index, block in enumerate(model.blocks):
        dim = block.attn.qkv.in_features
        block.attn.qkv.weight[: 2 * dim] *= last ** (index / max(1, depth - 1) / 2)
    centre_(model, images, 0.5, 0.5)


@torch.no_grad()
def mirrored(
    model: VisionTransformer, images: Tensor, seed: int, *, of: Candidate, bent: float = 0.0, centring: float = 0.5
) -> None:
    """Another candidate whose MLPs start with a rotation: GELU(a) - GELU(-a) = a.

    fc1 = [P; -P; W], fc2 = [R P^T, -R P^T, V] with P^T P = 1, R from Haar: looks-linear initialisation (Balduzzi et al.
    2017) in half of the hidden units, whose mean is 0 and whose Jacobian is orthogonal. The other half bends: W and V
    from Haar, its output ``bent`` times as large as the rotation's. With ``bent`` 0 all units are mirrored. Means of
    attention and of what bends are subtracted by biases.
    """
    of(model, images, seed)
    tokens = embed(model, images.float())
    for index, block in enumerate(model.blocks):
        first, second = block.mlp.fc1, block.mlp.fc2
        dim, hidden = first.in_features, first.out_features // (4 if bent else 2)
        drawn = [haar(rows, dim, torch_rng(seed, "mirrored", index, part)).float()
                 for part, rows in enumerate((hidden, dim, 2 * hidden, 2 * hidden))]  # fmt: skip
        spread, rotation, bending, back = drawn
        first.bias.zero_()
        block.norm2.weight.fill_(1.0)
        first.weight.copy_(torch.cat([spread, -spread, 2 * bending] if bent else [spread, -spread]))
        inputs = block.attn(block.norm1(tokens))
        normed = block.norm2(inputs - inputs[:, 1:].mean((0, 1)))
        sizes = F.gelu(normed @ (2 * bending).T) @ back
        size = (sizes - sizes[:, 1:].mean((0, 1))).pow(2).mean().sqrt()
        parts = [rotation @ spread.T, -rotation @ spread.T, *([bent / size * back.T] if bent else [])]
        second.weight.copy_(torch.cat(parts, 1))
        tokens = centred(block, tokens, centring, centring)


def scaled(
    model: VisionTransformer, images: Tensor, seed: int, *, of: Candidate, by: Mapping[str, float] = STEPS
) -> None:
    """Another candidate with scales moved into its weights: the same function, smaller relative steps."""
    of(model, images, seed)
    reparametrise_(model, **by)


OURS = partial(calibrated, centring=0.5, gain=1.0)
MIXING = partial(calibrated, mixing_heads=1, mixing_every=4)  # one head around, each fourth block, measured with it
FIRST_HALF = partial(split_heads, around=1, blocks=slice(6))
EACH_SECOND, EACH_THIRD, EACH_FOURTH, EACH_SIXTH = (
    partial(split_heads, around=1, blocks=slice(step - 1, None, step)) for step in (2, 3, 4, 6)
)  # the last of so many blocks
CANDIDATES: Mapping[str, Candidate] = MappingProxyType(
    {
        "skip": default,
        "default": default,
        "paper": paper,
        "calibrated": OURS,
        "paper, scaled": partial(scaled, of=paper),
        "calibrated, scaled": partial(scaled, of=OURS),
        "calibrated, mixing": MIXING,
        "calibrated, mixing, scaled": partial(scaled, of=MIXING),
        "calibrated, mixing, scaled more": partial(scaled, of=MIXING, by=SMALLER_STEPS),
        "calibrated, mixing each eighth block, scaled": partial(
            scaled, of=partial(calibrated, mixing_heads=1, mixing_every=8)
        ),
        "mirrored": partial(mirrored, of=OURS),
        "mirrored, scaled": partial(scaled, of=partial(mirrored, of=OURS)),
        "half mirrored": partial(mirrored, of=OURS, bent=1.0),
        "half mirrored, scaled": partial(scaled, of=partial(mirrored, of=OURS, bent=1.0)),
        "paper, mirrored, scaled": partial(scaled, of=partial(mirrored, of=paper, centring=0.0)),
        "paper, half mirrored, scaled": partial(scaled, of=partial(mirrored, of=paper, bent=1.0)),
        "calibrated λ1 g2": partial(calibrated, centring=1.0, gain=2.0),
        "calibrated λ1 g1": partial(calibrated, centring=1.0, gain=1.0),
        "calibrated λ0 g1": partial(calibrated, centring=0.0, gain=1.0),
        "calibrated λ.25 g1": partial(calibrated, centring=0.25, gain=1.0),
        "calibrated λ.75 g1": partial(calibrated, centring=0.75, gain=1.0),
        "paper, centred": paper_centred,
        "paper, half centred": partial(paper_centred, share=0.5),
        "attention centred": attention_centred,
        "one head around": partial(split_heads, around=1),
        "two heads around": partial(split_heads, around=2),
        "one head around, scaled": partial(scaled, of=partial(split_heads, around=1)),
        "one head around, first half": FIRST_HALF,
        "one head around, first half, scaled": partial(scaled, of=FIRST_HALF),
        "one head around, each fourth block, scaled": partial(scaled, of=EACH_FOURTH),
        "one head around, each second block, scaled": partial(scaled, of=EACH_SECOND),
        "one head around, each third block, scaled": partial(scaled, of=EACH_THIRD),
        "one head around, each sixth block, scaled": partial(scaled, of=EACH_SIXTH),
        "half mirrored, one head around, scaled": partial(
            scaled, of=partial(mirrored, of=partial(split_heads, around=1), bent=1.0)
        ),
        "CLS looks, rank 1": partial(class_token_looks, rank=1),
        "CLS looks, rank 8": partial(class_token_looks, rank=8),
        "CLS keeps a head": class_token_keeps_a_head,
        "softer with depth": partial(temperature_by_depth, last=0.25),
        "softer with depth, scaled": partial(scaled, of=partial(temperature_by_depth, last=0.25)),
        "sharper with depth": partial(temperature_by_depth, last=3.0),
    }
)
"""``skip`` alone has skip connections."""
