"""The first values of MAE's encoder (He et al. 2022; facebookresearch/mae, models_mae.py).

With branches of zero also those of *Decayed Identity Shortcuts* (xiao7199/decayed_Identity_shortcuts).
"""

from __future__ import annotations

import torch
from torch import nn

from dinoskip.init.assign import Assignments
from dinoskip.init.config import MaeInit
from dinoskip.runtime.randomness import torch_rng


def mae_tensors(model: nn.Module, settings: MaeInit, seed: int) -> Assignments:
    """Weights of linear layers and patch embedding, biases of linear layers, the CLS token."""
    for prefix, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            name = f"{prefix}.weight"
            matrix = torch.empty(module.weight.flatten(1).shape, dtype=torch.float64)
            if settings.zero_branches and name.endswith(("attn.proj.weight", "mlp.fc2.weight")):
                matrix.zero_()
            else:
                nn.init.xavier_uniform_(matrix, generator=torch_rng(seed, "init", name))
            yield name, matrix.view(module.weight.shape)
        if isinstance(module, nn.Linear) and module.bias is not None:
            yield f"{prefix}.bias", torch.zeros(module.bias.shape, dtype=torch.float64)
    token = getattr(model, "cls_token", None)
    if isinstance(token, nn.Parameter):
        drawn = torch.empty(token.shape, dtype=torch.float64)
        # models_mae.py, initialize_weights.
        yield "cls_token", drawn.normal_(0.0, 0.02, generator=torch_rng(seed, "init", "cls_token"))
