"""Mimetic initialisation (Trockman and Kolter, 2023): attention that looks like a trained one's."""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.init.assign import Assignments, attention_tensors, attentions_for, in_place, zeros
from dinoskip.init.config import MimeticInit
from dinoskip.init.orthogonal import noise_matrix, spectral_factors
from dinoskip.init.skipless import noisy_identity, query_key_factors
from dinoskip.models.positions import sincos_positions
from dinoskip.runtime.randomness import torch_rng


def mimetic_tensors(model: nn.Module, settings: MimeticInit, seed: int) -> Assignments:
    """Initialise attention and position embedding, in place; returns the model.

    Per head W^Q W^Kᵀ ≈ alpha·Z + beta·I (top dh singular triplets, Z of variance 1/D); per layer W^V W^O =
    alpha_vo·Z - beta_vo·I, both factors U S^½ and S^½ Vᵀ of full rank; zero attention biases; position embedding 2-D
    sine and cosine (CLS and registers zero). MLP, norms and the rest are left as they are. Raises
    :class:`ConfigError` for attention that is not plain and for a width not divisible by 4.
    """
    parameters = dict(model.named_parameters())
    for attention in attentions_for(model, "mimetic_", products=True, layer_scale=True):
        name, dim = attention.name, attention.dim
        noisy = noisy_identity(dim, settings.alpha, settings.beta, "normal", seed, name)
        query, key = query_key_factors(dim, attention.heads, noisy)
        noise = noise_matrix(dim, "normal", torch_rng(seed, "init", name, "value_output"))
        value, output = spectral_factors(
            settings.alpha_vo * noise - settings.beta_vo * torch.eye(dim, dtype=torch.float64)
        )
        yield from attention_tensors(attention, query, key, value, output.T, parameters)
        yield from zeros(model, (*attention.input_biases, attention.output.bias))
    if isinstance(model, VisionTransformer) and model.pos_embed is not None:
        yield "pos_embed", _sincos_position(model)


mimetic_ = in_place(mimetic_tensors, MimeticInit, positional=("alpha", "beta", "alpha_vo", "beta_vo"))


def _sincos_position(model: nn.Module) -> Tensor:
    """2-D sine-cosine positions (1, prefix + h·w, D) of a network."""
    position: Tensor = model.pos_embed  # type: ignore[assignment]
    rows, columns = (int(side) for side in model.patch_embed.grid_size)  # type: ignore[union-attr]
    dim, prefix = position.shape[-1], position.shape[1] - rows * columns
    if dim % 4:
        raise ConfigError(f"mimetic_: a sine-cosine position embedding needs a width divisible by 4, not {dim}")
    return sincos_positions((rows, columns), dim, prefix)
