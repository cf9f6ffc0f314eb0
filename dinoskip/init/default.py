"""The default of timm and DINO, drawn from a seed: what every parameter gets that no other method speaks of."""

from __future__ import annotations

from collections.abc import Collection

import torch
from timm.layers import LayerScale
from torch import Generator, Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.init.assign import Assignments, assign
from dinoskip.runtime.randomness import torch_rng

# cls_token as DINO has it, where timm has 1e-6; the others as timm.
_TOKEN_STD = {"pos_embed": 0.02, "cls_token": 0.02, "reg_token": 1e-6, "dist_token": 0.02}


def trunc_normal_(model: nn.Module, seed: int = 0) -> nn.Module:
    """Initialise every parameter of a timm ViT as timm and DINO do, in place; returns the model.

    Linear weights truncated normal (std 0.02), zero biases; norms 1 and 0; patch embedding as torch's Conv2d
    (uniform ±1/√fan_in); position embedding and CLS token truncated normal 0.02, the latter as in facebookresearch/dino
    (timm's is normal 1e-6); register tokens normal 1e-6; LayerScale its ``init_values``. Each parameter's draw depends
    on ``seed`` and its name alone. Raises :class:`ConfigError` for a parameter that no rule covers.
    """
    assign(model, default_tensors(model, seed))
    return model


def default_tensors(model: nn.Module, seed: int, without: Collection[str] = ()) -> Assignments:
    """The default of every parameter but those named in ``without``."""
    for prefix, module in model.named_modules():
        for local, parameter in module.named_parameters(recurse=False):
            name = f"{prefix}.{local}" if prefix else local
            if name not in without:
                yield name, _default(name, local, parameter, module, torch_rng(seed, "init", name))


def unset_tensors(model: nn.Module, seed: int) -> Assignments:
    """The default of every parameter that has no value yet (NaN); of a network with values nothing."""
    present = [name for name, parameter in model.named_parameters() if not bool(parameter.isnan().any())]
    return default_tensors(model, seed, without=present)


def _default(name: str, local: str, parameter: nn.Parameter, module: nn.Module, rng: Generator) -> Tensor:
    empty = torch.empty(parameter.shape, dtype=torch.float64)
    if isinstance(module, nn.Linear):
        # As timm's and DINO's ViTs.
        return empty.zero_() if local == "bias" else nn.init.trunc_normal_(empty, std=0.02, generator=rng)
    if isinstance(module, nn.Conv2d):
        bound = module.weight[0].numel() ** -0.5
        return empty.uniform_(-bound, bound, generator=rng)
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return empty.fill_(0.0 if local.endswith("bias") else 1.0)
    if isinstance(module, LayerScale):
        return empty.fill_(module.init_values)
    if local in ("pos_embed", "cls_token", "dist_token"):
        return nn.init.trunc_normal_(empty, std=_TOKEN_STD[local], generator=rng)
    if local in _TOKEN_STD:
        return empty.normal_(0.0, _TOKEN_STD[local], generator=rng)
    raise ConfigError(f"no initialisation is known for parameter {name} of a {type(module).__name__}")
