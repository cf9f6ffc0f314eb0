"""The orthogonal initialisation of residual-free transformers (The Quantization Benefits of Residual-Free Transformers,
sec. 4), a recipe for deep causal language models that is offered here for ViTs."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from dinoskip.init.assign import Assignments, attention_tensors, attentions_for, in_place, mlps_for, zeros
from dinoskip.init.config import Reading, ResidualFreeInit
from dinoskip.init.orthogonal import haar, haar_, scaled_uniform_orthogonal_
from dinoskip.models.attention_sites import write
from dinoskip.models.temperature import temperatures
from dinoskip.runtime.randomness import torch_rng


def residual_free_tensors(model: nn.Module, settings: ResidualFreeInit, seed: int) -> Assignments:
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
    reading = settings.reading
    power = 0.5 if reading == "product" else 1.0
    qk, vo, up, down = (
        alpha**power for alpha in (settings.alpha_qk, settings.alpha_vo, settings.alpha_u, settings.alpha_d)
    )
    present, parameters = attentions_for(model, "residual_free_", products=True), dict(model.named_parameters())
    taus = temperatures(len(present), settings.beta, first_layer=settings.first_layer, mode=settings.mode)
    for attention, tau in zip(present, taus, strict=True):
        name, dim, width = attention.name, attention.dim, attention.head_dim
        draws = [haar(dim, width, torch_rng(seed, "init", name, "query_key", head)) for head in range(attention.heads)]
        key = qk * torch.stack(draws)
        rotation = haar(dim, dim, torch_rng(seed, "init", name, "value_output"))
        yield from attention_tensors(attention, tau * key, key, vo * rotation, vo * rotation.T, parameters)
        yield from zeros(model, (*attention.input_biases, attention.output.bias))
    for mlp in mlps_for(model, "residual_free_"):
        for factor, gain in ((mlp.first, up), (mlp.last, down)):
            generator = torch_rng(seed, "init", factor.name.removesuffix(".weight"))
            yield from write({factor: gain * _mixing(factor.shape, reading, generator)}, parameters)
        yield from zeros(model, (mlp.first.bias, mlp.last.bias))


residual_free_ = in_place(
    residual_free_tensors, ResidualFreeInit, positional=("alpha_qk", "alpha_vo", "alpha_u", "alpha_d", "beta")
)


def _mixing(shape: tuple[int, int], reading: Reading, generator: Generator) -> Tensor:
    empty = torch.empty(shape, dtype=torch.float64)
    return (haar_ if reading == "product" else scaled_uniform_orthogonal_)(empty, generator)
