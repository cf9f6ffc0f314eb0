"""Optimizers by configuration, and how a step's learning rate and weight decay reach them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import nn

from dinoskip.config import Config
from dinoskip.optim.groups import NamedParameters, param_groups, split_groups
from dinoskip.optim.muon import MuonAdamW, is_hidden_matrix
from dinoskip.optim.shampoo import KLShampoo
from dinoskip.optim.soap import SOAP

Beta = Annotated[float, Field(ge=0, lt=1)]


class Scheduled(Config):
    """What every optimizer has: DINO's schedules of learning rate and weight decay (docs/protocols.md)."""

    lr: float = Field(5e-4, gt=0, description="peak learning rate per 256 images; scaled by global batch / 256")
    min_lr: float = Field(1e-6, ge=0, description="learning rate at the end of the cosine (not scaled)")
    weight_decay: float = Field(0.04, ge=0, description="at the first step")
    weight_decay_end: float = Field(0.4, ge=0, description="at the end of its cosine")


class AdamWConfig(Scheduled):
    """AdamW with DINO's schedules (docs/protocols.md). ``lr`` is per 256 images of the global batch."""

    name: Literal["adamw"] = "adamw"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over ``groups`` of :func:`param_groups`."""
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)


class Preconditioned(Scheduled):
    """What the optimizers with factors and bases share."""

    shampoo_beta: float = Field(-1, lt=1, description="average of the factors; negative: betas[1]")
    eps: float = Field(1e-8, gt=0)
    precondition_frequency: int = Field(10, ge=1, description="steps between two refreshes of the bases")
    max_precond_dim: int = Field(10000, ge=1, description="a larger dimension has no basis")
    normalize_grads: bool = Field(False, description="scale every update to a mean square of 1")
    split_qkv: bool = Field(False, description="take a fused qkv as three matrices instead of one")

    def blocks(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Give qkv weights groups of their own with ``blocks=3``, if they are to be split."""
        if not self.split_qkv:
            return groups
        qkv, rest = split_groups(groups, lambda name, _: name.endswith("qkv.weight"))
        return [*rest, *({**group, "blocks": 3} for group in qkv)]


class SoapConfig(Preconditioned):
    """SOAP with DINO's schedules. The papers leave the learning rate open; this is AdamW's, to be tuned.

    Patch embeddings are taken as (dim, 3 * patch * patch) matrices; ``as_matrix: false`` gives each of a kernel's
    four dimensions a basis, as the reference does.
    """

    name: Literal["soap"] = "soap"
    betas: tuple[Beta, Beta] = (0.95, 0.95)
    as_matrix: bool = True
    merge_dims: bool = False
    precondition_1d: bool = False
    correct_bias: bool = True

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over ``groups`` of :func:`param_groups`."""
        settings = self.model_dump(exclude={"name", "split_qkv", *(set(Scheduled.model_fields) - {"lr"})})
        return SOAP(self.blocks(groups), **settings)


class EcsConfig(Scheduled):
    """Eigenvalue-corrected Shampoo, with the settings of public code by the first author of *Cutting the Skip*."""

    name: Literal["ecs"] = "ecs"
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.05, ge=0, description="at the first step")
    weight_decay_end: float = Field(0.05, ge=0, description="at the end of its cosine")
    precondition_frequency: int = Field(100, ge=1, description="steps between two refreshes; Adam until the first")
    max_precond_dim: int = Field(8192, ge=1, description="larger matrices are cut into blocks of this side")

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over ``groups`` of :func:`param_groups`."""
        settings = self.model_dump(include={"lr", "betas", "eps", "precondition_frequency", "max_precond_dim"})
        return SOAP(groups, variant="ecs", **settings)


class KLShampooConfig(Preconditioned):
    """KL-Shampoo, or KL-SOAP with ``klsoap``. The learning rate is to be tuned."""

    name: Literal["klshampoo"] = "klshampoo"
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    klsoap: bool = Field(False, description="KL-SOAP: Adam in KL-Shampoo's basis")
    init_factor: float = Field(0.1, gt=0, description="first eigenvalue of every factor")
    damping: bool = Field(False, description="add eps in the estimates of the factors")
    max_clamp_value: float | None = Field(4000, gt=0, description="bound of 1/sqrt(eigenvalue); null: none")

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over ``groups`` of :func:`param_groups`."""
        plain = {"lr", "betas", "shampoo_beta", "eps", "precondition_frequency", "max_precond_dim", "normalize_grads"}
        return KLShampoo(
            self.blocks(groups),
            using_klsoap=self.klsoap,
            using_damping=self.damping,
            using_clamping=self.max_clamp_value is not None,
            max_clamp_value=self.max_clamp_value or 0,
            init_factor=self.init_factor,
            **self.model_dump(include=plain),
        )


class MuonConfig(Scheduled):
    """Muon for hidden matrices, its updates scaled to AdamW's size, and AdamW for everything else."""

    name: Literal["muon"] = "muon"
    momentum: Beta = 0.95
    nesterov: bool = True
    ns_steps: int = Field(5, ge=1, lt=100, description="Newton-Schulz iterations")
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="of AdamW")
    eps: float = Field(1e-8, gt=0, description="of AdamW")

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over ``groups`` of :func:`param_groups`."""
        matrices, others = split_groups(groups, is_hidden_matrix)
        settings = self.model_dump(include={"lr", "momentum", "nesterov", "ns_steps", "betas", "eps"})
        return MuonAdamW(matrices, others, **settings)


def _named(value: Any) -> Any:
    """Settings without a name are AdamW's."""
    return {"name": "adamw", **value} if isinstance(value, dict) else value


OptimizerConfig = Annotated[
    AdamWConfig | SoapConfig | EcsConfig | KLShampooConfig | MuonConfig,
    Field(discriminator="name"),
    BeforeValidator(_named),
]
"""The type of an ``optimizer`` key, told apart by ``name``."""


def build_optimizer(model: nn.Module | NamedParameters, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build the optimizer over the trainable parameters of ``model`` (or named parameters), in decay groups.

    Learning rate and decay start at the configuration's base values; :func:`set_rates` sets them per step.
    """
    groups = param_groups(model)
    for group in groups:
        group["weight_decay"] = config.weight_decay if group["decayed"] else 0.0
    return config.build(groups)


def set_rates(optimizer: torch.optim.Optimizer, lr: float, weight_decay: float) -> None:
    """Set this step's learning rate (times a group's ``lr_scale``, if it has one) and the decayed groups' decay."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
        group["weight_decay"] = weight_decay if group["decayed"] else 0.0
