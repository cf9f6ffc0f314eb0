"""Initialisation of skipless ViTs (Cutting the Skip, sec. 5.1): well-conditioned attention without skip connections."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from dinoskip.init.assign import (
    Assignments,
    attention_tensors,
    attentions_for,
    in_place,
    mlps_for,
    skip_weights,
    zeros,
)
from dinoskip.init.config import Draw, MlpInit, Noise, Scale, SkiplessInit
from dinoskip.init.orthogonal import haar, haar_, noise_matrix, scaled_uniform_orthogonal_, spectral_factors
from dinoskip.models.attention_sites import write
from dinoskip.runtime.console import log
from dinoskip.runtime.randomness import torch_rng

BETA_EXPONENT = math.log2(1 / 0.6)
"""Of beta's fall with width, such that 1 at ViT-S (384) is the paper's 0.6 at ViT-B (768)."""


def skipless_tensors(model: nn.Module, settings: SkiplessInit, seed: int) -> Assignments:
    """Initialise attention and MLP of every block for a network without skips, in place; returns the model.

    Row convention (``y = x W``), per layer:

    * W^Q_i, W^K_i: M = alpha·Z + beta·I with Z_ij of variance 1/D, drawn anew for each head; the balanced factors
      of its top dh singular triplets (eq. 11). ``heads="split"``: one M a layer, its triplets dealt out in order.
      ``beta_width`` is the width that ``beta`` is for: at width D it is beta (beta_width / D)^log₂(1/0.6), which makes
      ViT-S's 1 ViT-B's 0.6, and 2.25 at width 128. That narrower networks need more of it is **ours**: their logits
      are smaller, and with beta 1 the late tokens of a fresh network of width 128 are alike.
    * ``scale`` is the factor on Q Kᵀ in the fresh network: "head", the 1/√dh of every attention module; "none", the 1
      of the paper's equations (3, 11, 14 to 20); "width", the 1/√D that the quantisation paper prints. Attention
      divides by √dh in every case: the quotient, :func:`folded_scale`, is a factor on W^Q and W^K, so that the module,
      fused attention, exports and foreign readers of the weights compute the same function.
    * W^V = c·U, W^O = c·Vᵀ with U, V Haar-orthogonal, one draw a layer over all heads, so W^V W^O is c² times an
      orthogonal matrix: condition number 1. ``draw="svd"``, to the letter, takes U and V from the singular vectors of
      one Gaussian matrix: the same distribution of U Vᵀ, at twice the time. ``c`` may be a pair (c_v, c_o).
    * MLP: scale-corrected uniform orthogonal ("suo"), the same without the factor ("orthogonal"), or weights left as
      they are ("default").

    That ``scale`` is folded is not neutral in training. With g its factor on W^Q and W^K (2.83 for "none", .64 for
    "width" at dh 64, D 384) the gradient of W^Q is 1/g of that with the factor in the attention. A step of Adam, SOAP
    or Muon, which does not depend on the gradient's size, moves the logits by 1/g as much, and one of SGD by 1/g².
    Decoupled weight decay shrinks logits by the same share either way, but at the size where decay and steps of such an
    optimizer balance they have the factor 1/√dh again. "none" is thus the paper's equations at the start, not a
    network that keeps the factor 1. The authors' public code divides by √dh.

    All biases of these four layers become zero; everything else is left as it is. Drawn in float64 on the CPU from
    ``seed`` and the layers' names, cast last. Defaults are the paper's for ViT-S; ViT-B: alpha 2, beta 0.6.
    Raises :class:`ConfigError` for settings out of range and blocks outside the papers: LayerScale, q/k norm,
    gates, other attention or MLP.
    """
    alpha, beta, c = settings.alpha, settings.beta, settings.c
    c_v, c_o = c if isinstance(c, tuple) else (c, c)
    present, parameters = attentions_for(model, "skipless_", products=True), dict(model.named_parameters())
    if all(all(skip_weights(model, attention.name)) for attention in present):
        log.warning("skipless_: this network has all its skip connections, which the initialisation is not made for")
    for attention in present:
        name, dim, heads = attention.name, attention.dim, attention.heads
        share = 1.0 if settings.beta_width is None else (settings.beta_width / dim) ** BETA_EXPONENT
        noisy = noisy_identity(dim, alpha, beta * share, settings.noise, seed, name)
        query, key = query_key_factors(dim, heads, noisy, split=settings.heads == "split")
        value, output = _rotations(dim, settings.draw, seed, name)
        fold = folded_scale(settings.scale, dim, heads)
        yield from attention_tensors(attention, fold * query, fold * key, c_v * value, c_o * output, parameters)
        yield from zeros(model, (*attention.input_biases, attention.output.bias))
    yield from mlp_tensors(model, settings.mlp, seed, "skipless_")


skipless_ = in_place(skipless_tensors, SkiplessInit, positional=("alpha", "beta", "c"))


def folded_scale(scale: Scale, dim: int, num_heads: int) -> float:
    """Factor on W^Q and on W^K that makes attention's 1/√dh (dh = ``dim`` / ``num_heads``) the factor ``scale``.

    Its square is the quotient of the two: 1 for "head", √dh for "none", √(dh/D) for "width".
    """
    head_dim = dim // num_heads
    squares = {"head": 1.0, "none": math.sqrt(head_dim), "width": math.sqrt(head_dim / dim)}
    return math.sqrt(squares[scale])


def noisy_identity(
    dim: int, alpha: float, beta: float, noise: Noise, seed: int, name: str
) -> Callable[[int | str], Tensor]:
    """Draws alpha·Z + beta·I, float64 (D, D), for a head (or "all") of the layer called ``name``."""
    identity = beta * torch.eye(dim, dtype=torch.float64)
    return lambda head: alpha * noise_matrix(dim, noise, torch_rng(seed, "init", name, "query_key", head)) + identity


def query_key_factors(
    dim: int, num_heads: int, noisy: Callable[[int | str], Tensor], *, split: bool = False
) -> tuple[Tensor, Tensor]:
    """W^Q and W^K, float64 (heads, D, dh) each: factors of ``noisy(head)``, or of one ``noisy("all")`` dealt out."""
    width = dim // num_heads
    if split:
        query, key = spectral_factors(noisy("all"))
        by_head = (dim, num_heads, width)
        return query.reshape(by_head).transpose(0, 1), key.reshape(by_head).transpose(0, 1)
    with threadpool_limits(1, "blas"):  # LAPACK gains little from threads here, and waits for busy cores with them
        factors = [spectral_factors(noisy(head), width) for head in range(num_heads)]
    return torch.stack([query for query, _ in factors]), torch.stack([key for _, key in factors])


def fused_qkv(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """timm's ``qkv.weight`` (3D, D) from W^Q, W^K (heads, D, dh) and W^V (D, D) of the row convention."""
    return torch.cat([query.mT.flatten(0, 1), key.mT.flatten(0, 1), value.T])


def _rotations(dim: int, draw: Draw, seed: int, name: str) -> tuple[Tensor, Tensor]:
    """U and Vᵀ, float64 orthogonal (D, D), of the layer called ``name``."""
    if draw == "haar":
        first, second = (haar(dim, dim, torch_rng(seed, "init", name, part)) for part in ("value", "output"))
        return first, second
    gaussian = torch.randn(dim, dim, dtype=torch.float64, generator=torch_rng(seed, "init", name, "value_output"))
    u, _, vh = torch.linalg.svd(gaussian)
    return u, vh


def mlp_tensors(model: nn.Module, how: MlpInit, seed: int, method: str) -> Assignments:
    """fc1 and fc2 of every MLP, which ``how`` = "default" leaves out, and zeros for their biases.

    :class:`ConfigError` that names ``method`` for an MLP with a gate.
    """
    parameters, fill = dict(model.named_parameters()), scaled_uniform_orthogonal_ if how == "suo" else haar_
    for mlp in mlps_for(model, method):
        for factor in (mlp.first, mlp.last) if how != "default" else ():
            weight = torch.empty(factor.shape, dtype=torch.float64)
            fill(weight, torch_rng(seed, "init", factor.name.removesuffix(".weight")))
            yield from write({factor: weight}, parameters)
        yield from zeros(model, (mlp.first.bias, mlp.last.bias))
