"""Conditioning of a network's Jacobian through the depth: eqs. 5, 8 and 9 of "Cutting the Skip", block by block.

J_l = ∂f/∂θ_l is the derivative of the last block's output, all tokens of one image, by the weight matrices of one
block's attention, through every block above it. Its formula is eq. 8 where these have skips, eq. 9 where they have
none; here the network itself is differentiated, with what skips, norms and LayerScale it has. As in the paper neither
the token embedding nor what follows the blocks (final norm, head) is part of f. Biases are no part of θ_l: that of the
keys has no gradient at all.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dinoskip.diagnostics.jacobian import LIMIT, Extremes, lanczos_extremes
from dinoskip.errors import ConfigError
from dinoskip.models import Backbone
from dinoskip.runtime.console import Progress
from dinoskip.runtime.randomness import torch_rng

NORM_DIRECTIONS = 2
"""Directions of every token that a LayerNorm takes: the mean of its channels, and, up to eps, its length."""
EXACT = 512
"""Outputs (tokens × width) up to which J_l is formed, outputs × weights: 0.5 GB of an MLP at width 128, in seconds."""
_CHUNK = 64
"""Outputs that are differentiated at once where all are: more take more memory and hardly less time."""


@dataclass(frozen=True)
class DepthRow:
    """One block's J_l. NaN stands for what is known of exact rows alone."""

    block: int
    """1..depth."""
    largest: float
    """Largest singular value of J_l of the block's attention."""
    largest_error: float
    """A singular value lies within this of ``largest``; 0 if exact."""
    smallest: float
    """The smallest of as many as f has outputs; an upper bound of it unless ``exact``."""
    kappa: float
    """κ(J_l), at most 4.5e15; a lower bound of it unless ``exact``."""
    kappa_seen: float
    """κ without the smallest two singular values a token (:data:`NORM_DIRECTIONS`): without skips the norms above a
    block take them, and κ(J_l) says only that. NaN unless ``exact``."""
    kappa_mlp: float
    """κ(Ĵ_l), by the matrices of the block's MLP; NaN unless ``exact``."""
    kappa_mlp_seen: float
    """As ``kappa_seen``."""
    exact: bool


@dataclass(frozen=True)
class NetworkJacobian:
    """J_l of every block, and κ of J = [J_1, Ĵ_1, ..., J_L, Ĵ_L] (eq. 5), for which eq. 6 has a bound."""

    rows: tuple[DepthRow, ...]
    kappa: float
    """NaN unless all rows are exact."""
    kappa_seen: float


def network_jacobian(
    backbone: Backbone, image: Tensor, *, steps: int = 24, exact_up_to: int = EXACT
) -> NetworkJacobian:
    """J_l at one image (1, 3, H, W), normalised, in float64, of a plain ViT; the backbone itself is not changed.

    Exact for up to ``exact_up_to`` outputs (tokens × width): every output is differentiated. Above, ``steps``
    Golub-Kahan-Lanczos steps a block, each a product with J_l and one with its transpose: the largest singular value
    with its error, the smallest as an upper bound, κ as a lower bound. Time grows with the square of the depth.
    Raises :class:`ConfigError` for a network that is not read block by block, ValueError for several images.
    """
    if len(image) != 1:
        raise ValueError(f"network_jacobian is of one image, not of {len(image)}")
    if not backbone.num_heads:
        raise ConfigError(f"{backbone.spec}: its Jacobian is not measured: it is no plain ViT")
    network = copy.deepcopy(backbone).to(backbone.device, torch.float64)
    network.model.requires_grad_(False)
    rows: list[DepthRow] = []
    factors: list[Tensor] = []
    title = f"{backbone.spec} Jacobian"
    # Products with J differentiate a derivative, which PyTorch has of attention written out alone.
    with sdpa_kernel(SDPBackend.MATH), Progress(title, backbone.depth, "blocks") as progress:
        with torch.no_grad():
            tokens, context = network.adapter.embed(image.to(network.device, torch.float64))
        for index in range(backbone.depth):
            if tokens.numel() <= exact_up_to:
                row, found = _exact(network, index, tokens, context)
                factors += found
            else:
                row = _bracketed(network, index, tokens, context, steps)
            rows.append(row)
            with torch.no_grad():
                tokens = network.adapter.run_block(index, tokens, context)
            progress.advance()
    if not factors:
        return NetworkJacobian(tuple(rows), math.nan, math.nan)
    whole = torch.linalg.svdvals(torch.cat(factors, 1))  # J Jᵀ is the sum of the blocks' J_l J_lᵀ
    return NetworkJacobian(tuple(rows), *_kappas(whole, tokens.shape[1]))


@torch.enable_grad()
def _output(
    network: Backbone, index: int, tokens: Tensor, context: Any, modules: Sequence[nn.Module]
) -> tuple[Tensor, list[nn.Parameter]]:
    """The last block's output (1, n, C) from the ``tokens`` that enter block ``index``, and ``modules``' matrices."""
    weights = [weight for module in modules for weight in module.parameters() if weight.ndim == 2]
    for weight in weights:
        weight.requires_grad_(True)
    for later in range(index, network.depth):
        tokens = network.adapter.run_block(later, tokens, context)
    return tokens, weights


def _sublayers(network: Backbone, index: int) -> tuple[nn.Module, nn.Module | None]:
    """Attention and MLP of a block; :class:`ConfigError` where it has no attention of its own."""
    attention = network.adapter.attention(index)
    if attention is None:
        raise ConfigError(f"{network.spec}: block {index + 1} has no attention of its own")
    return attention, getattr(network.adapter.blocks[index], "mlp", None)


def _exact(network: Backbone, index: int, tokens: Tensor, context: Any) -> tuple[DepthRow, list[Tensor]]:
    """A row from all singular values, and the triangular factors (outputs × outputs) of J_l and Ĵ_l."""
    factors = []
    for module in filter(None, _sublayers(network, index)):
        output, weights = _output(network, index, tokens, context, [module])
        rows = []
        for basis in torch.split(torch.eye(output.numel(), dtype=output.dtype, device=output.device), _CHUNK):
            given = torch.autograd.grad(
                output, weights, basis.view(-1, *output.shape), retain_graph=True, is_grads_batched=True
            )
            rows.append(torch.cat([part.flatten(1) for part in given], 1))
        factors.append(torch.linalg.qr(torch.cat(rows).T, mode="r")[1].T)
    values = [torch.linalg.svdvals(factor) for factor in factors]
    kappas = [_kappas(each, tokens.shape[1]) for each in values] + [(math.nan, math.nan)]  # a block without an MLP
    extremes = Extremes(float(values[0][0]), 0.0, float(values[0][-1]), True)
    row = DepthRow(index + 1, extremes.largest, 0.0, extremes.smallest, *kappas[0], *kappas[1], True)
    return row, factors


def _bracketed(network: Backbone, index: int, tokens: Tensor, context: Any, steps: int) -> DepthRow:
    """A row from ``steps`` products with J_l and its transpose each."""
    output, weights = _output(network, index, tokens, context, [_sublayers(network, index)[0]])
    direction = torch.zeros_like(output, requires_grad=True)  # Jᵀ u is linear in u: its derivative by u is J
    with torch.enable_grad():
        pulled = torch.autograd.grad(output, weights, direction, create_graph=True)

    def transposed(u: Tensor) -> Tensor:
        given = torch.autograd.grad(output, weights, u.view_as(output), retain_graph=True)
        return torch.cat([part.flatten() for part in given])

    def product(v: Tensor) -> Tensor:
        sizes = [weight.numel() for weight in weights]
        parts = [part.view_as(weight) for part, weight in zip(torch.split(v.flatten(), sizes), weights, strict=True)]
        return torch.autograd.grad(pulled, direction, parts, retain_graph=True)[0]

    start = torch.randn(output.shape, dtype=output.dtype, generator=torch_rng(0, "lanczos")).to(output.device)
    # of J_lᵀ, which has at least as many rows as columns: there are fewer outputs than weights
    found = lanczos_extremes(transposed, product, start, steps)
    nan = math.nan
    return DepthRow(
        index + 1, found.largest, found.largest_error, found.smallest, found.kappa, nan, nan, nan, found.exact
    )


def _kappas(values: Tensor, tokens: int) -> tuple[float, float]:
    """κ of all singular values, falling, and of all but the smallest two a token; cut at 4.5e15."""
    seen = values[: max(1, len(values) - NORM_DIRECTIONS * tokens)]
    cut = [
        LIMIT if largest >= smallest * LIMIT else largest / smallest
        for largest, smallest in ((float(part[0]), float(part[-1])) for part in (values, seen))
    ]
    return cut[0], cut[1]
