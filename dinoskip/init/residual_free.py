"""The orthogonal initialisation of residual-free transformers (The Quantization Benefits of Residual-Free Transformers,
sec. 4), a recipe for deep causal language models that is offered here for ViTs."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from pydantic import Field
from torch import Generator, Tensor, nn

from dinoskip.config import Config, Positive
from dinoskip.errors import ConfigError
from dinoskip.init.assign import LAYERS, Assignments, assign, plain_blocks
from dinoskip.init.orthogonal import haar, haar_, scaled_uniform_orthogonal_
from dinoskip.init.skipless import fused_qkv
from dinoskip.models.temperature import TemperatureMode, temperatures
from dinoskip.randomness import torch_rng

Reading = Literal["product", "factor"]


class ResidualFreeInit(Config):
    """See :func:`dinoskip.init.residual_free_`."""

    name: Literal["residual_free"] = "residual_free"
    alpha_qk: Positive = Field(0.9, description="scale of W^Q W^K")
    alpha_vo: Positive = Field(3.0, description="scale of W^V W^O")
    alpha_u: Positive = Field(1.5, description="scale of fc1")
    alpha_d: Positive = Field(1.5, description="scale of fc2")
    beta: float = Field(1.0, gt=0, description="base of the temperature folded into W^Q; model.temperature is a module")
    reading: Reading = Field("product", description="what the scales are of: products, such as W^Q W^K, or each factor")
    first_layer: int = Field(1, ge=0, description="number of the first block in the temperature")
    mode: TemperatureMode = Field("multiply", description="whether the temperature multiplies or divides")

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """What this method assigns."""
        alphas = (self.alpha_qk, self.alpha_vo, self.alpha_u, self.alpha_d)
        return residual_free_tensors(model, alphas, self.beta, self.reading, self.first_layer, self.mode, seed=seed)


def residual_free_(
    model: nn.Module,
    alpha_qk: float = 0.9,
    alpha_vo: float = 3.0,
    alpha_u: float = 1.5,
    alpha_d: float = 1.5,
    beta: float = 1.0,
    *,
    reading: Reading = "product",
    first_layer: int = 1,
    mode: TemperatureMode = "multiply",
    seed: int = 0,
) -> nn.Module:
    """Initialise attention and MLP of every block, in place; returns the model.

    Row convention (``y = x W``), P_i a Haar semi-orthogonal D × dh matrix per head, O a Haar orthogonal one per layer:

    * ``reading="product"``: W^Q_i = W^K_i = √alpha_qk·P_i, so W^Q_i W^K_iᵀ is alpha_qk times a projection of rank dh;
      W^V = √alpha_vo·O and W^O = √alpha_vo·Oᵀ, so W^V W^O = alpha_vo·I; fc1 and fc2 have all singular values
      √alpha_u and √alpha_d.
    * ``reading="factor"``: each α multiplies the factors themselves, and the MLP's are scale-corrected (DKS):
      singular values alpha_qk, alpha_vo, 2·alpha_u and alpha_d.

    Query and key start equal and are not tied afterwards. The temperature τ_l = beta^-l of :func:`temperatures` is
    multiplied into W^Q of layer l (layers count from ``first_layer``), which holds in fused attention too; as a module
    of its own (``temperature`` of the model) it trains differently, see docs/initialisations.md. The paper
    uses beta = 1.1; the default of 1 leaves it out, because softer attention in deeper blocks collapses the tokens of
    a ViT, whose attention is not causal, sooner. All biases of the four layers become zero, the rest is left as it is.
    Drawn in float64 on the CPU from ``seed`` and the layers' names, cast last.

    Raises :class:`ConfigError` for blocks outside the papers: LayerScale, q/k norm, gates, other attention or MLP.
    """
    if reading not in get_args(Reading):
        raise ConfigError(f"residual_free_: reading={reading!r} is none of {', '.join(get_args(Reading))}")
    if min(alpha_qk, alpha_vo, alpha_u, alpha_d) <= 0:
        raise ConfigError("residual_free_: alpha_qk, alpha_vo, alpha_u and alpha_d must be above 0")
    alphas = (alpha_qk, alpha_vo, alpha_u, alpha_d)
    assign(model, residual_free_tensors(model, alphas, beta, reading, first_layer, mode, seed=seed))
    return model


def residual_free_tensors(
    model: nn.Module,
    alphas: tuple[float, float, float, float],
    beta: float,
    reading: Reading,
    first_layer: int,
    mode: TemperatureMode,
    *,
    seed: int,
) -> Assignments:
    """What :func:`residual_free_` assigns, parameter by parameter; ``alphas`` are those of QK, VO, U and D."""
    power = 0.5 if reading == "product" else 1.0
    qk, vo, up, down = (alpha**power for alpha in alphas)
    blocks = plain_blocks(model, "residual_free_")
    for block, tau in zip(blocks, temperatures(len(blocks), beta, first_layer=first_layer, mode=mode), strict=True):
        name, dim, heads = f"{block.prefix}.attn", block.dim, block.num_heads
        draws = [haar(dim, dim // heads, torch_rng(seed, "init", name, "query_key", head)) for head in range(heads)]
        key = qk * torch.stack(draws)
        rotation = haar(dim, dim, torch_rng(seed, "init", name, "value_output"))
        yield f"{name}.qkv.weight", fused_qkv(tau * key, key, vo * rotation)
        yield f"{name}.proj.weight", vo * rotation  # (Oᵀ)ᵀ
        for part, gain in (("mlp.fc1", up), ("mlp.fc2", down)):
            mixing = _mixing(block.layers[part], reading, torch_rng(seed, "init", f"{block.prefix}.{part}"))
            yield f"{block.prefix}.{part}.weight", gain * mixing
        yield from block.zero_biases(*LAYERS)


def _mixing(layer: nn.Linear, reading: Reading, generator: Generator) -> Tensor:
    empty = torch.empty(layer.weight.shape, dtype=torch.float64)
    return (haar_ if reading == "product" else scaled_uniform_orthogonal_)(empty, generator)
