"""The DINO projection head, with plain tensors where the reference uses weight_norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.runtime.randomness import torch_rng


@torch.no_grad()
def draw_layers_(head: nn.Module, seed: int, place: str = "head", prefix: str = "") -> None:
    """Truncated normal (0.02) matrices and zero biases, in place, from ``seed`` and the names alone; norms stay.

    They are drawn in float32 whatever their dtype is. ``prefix`` stands before the names.
    """
    for name, parameter in head.named_parameters(prefix):
        if parameter.ndim > 1:
            drawn, rng = torch.empty(parameter.shape, dtype=torch.float32), torch_rng(seed, "init", place, name)
            parameter.copy_(nn.init.trunc_normal_(drawn, std=0.02, generator=rng))  # as DINOHead starts
        elif name.endswith("bias"):
            parameter.zero_()


class DINOHead(nn.Module):
    """Three-layer MLP, L2 normalisation and a weight-normalised prototype layer (facebookresearch/dino, DINOHead).

    in_dim → hidden → hidden → bottleneck → unit length → out_dim. The last layer is ``last_g · v/‖v‖`` with the
    direction ``last_v`` (out_dim, bottleneck_dim) and one gain ``last_g`` (out_dim, 1) a row: a buffer of ones when
    ``norm_last_layer``, a parameter otherwise. Weights depend on ``seed`` alone: truncated normal (0.02) and zero
    biases in the MLP, uniform ±1/√bottleneck_dim for the direction, as in the reference.
    """

    last_g: Tensor

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        norm_last_layer: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(in_dim, hidden_dim),
            nn.GELU(),
            nn.Linear(hidden_dim, hidden_dim),
            nn.GELU(),
            nn.Linear(hidden_dim, bottleneck_dim),
        )
        draw_layers_(self.mlp, seed, prefix="mlp")
        drawn, bound = torch.empty(out_dim, bottleneck_dim, dtype=torch.float32), bottleneck_dim**-0.5
        drawn.uniform_(-bound, bound, generator=torch_rng(seed, "init", "head", "last_v"))
        self.last_v = nn.Parameter(drawn.to(torch.get_default_dtype()))
        gain = torch.ones(out_dim, 1)
        if norm_last_layer:
            self.register_buffer("last_g", gain)
        else:
            self.last_g = nn.Parameter(gain)

    def forward(self, x: Tensor) -> Tensor:
        """Map features (B, in_dim) to logits (B, out_dim)."""
        unit = F.normalize(self.mlp(x), dim=-1)
        # What nn.utils.weight_norm calls: one kernel each way, four times as fast as norm and division by autograd.
        weight: Tensor = torch._weight_norm(self.last_v, self.last_g, 0)
        return F.linear(unit, weight.to(unit.dtype))

    def last_layer_parameters(self) -> list[nn.Parameter]:
        """Parameters that stay frozen in the first epochs: the direction, and the gain where it is trained."""
        return [self.last_v] + ([self.last_g] if isinstance(self.last_g, nn.Parameter) else [])
