"""Work of a preconditioned optimizer on a network, computed without the network: parameters are on the meta device."""

from __future__ import annotations

import torch
from torch import nn

from dinoskip.models import create_model
from dinoskip.models.heads import DINOHead
from dinoskip.optim.build import build_optimizer
from dinoskip.optim.config import OptimizerConfig
from dinoskip.optim.preconditioned import PreconditionedOptimizer, Share
from dinoskip.settings.vit_config import VitConfig


def shares_on_paper(
    network: VitConfig, config: OptimizerConfig, ranks: int, head: tuple[int, int, int] | None = None
) -> list[Share]:
    """Return the share that each of ``ranks`` ranks would own; empty where the optimizer shares nothing out.

    ``head`` are the sizes of a DINO head: prototypes, hidden channels, bottleneck.
    """
    with torch.device("meta"):
        parts: list[nn.Module] = [create_model(network.name, depth=network.depth, img_size=network.img_size)]
        if head is not None:
            parts.append(DINOHead(network.width, head[0], hidden_dim=head[1], bottleneck_dim=head[2]))
        optimizer = build_optimizer(nn.ModuleList(parts), config)
    return optimizer.shares(ranks) if isinstance(optimizer, PreconditionedOptimizer) else []
