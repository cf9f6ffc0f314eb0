"""Settings of every optimizer, and their table. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field

from dinoskip.optim.schedules import Beta, Scheduled
from dinoskip.plugins import ByName
from dinoskip.settings.config import implementation

if TYPE_CHECKING:
    import torch


class AdamWConfig(Scheduled):
    """AdamW with DINO's schedules (docs/protocols.md). ``lr`` is per 256 images of the global batch."""

    title = "AdamW"
    name: Literal["adamw"] = "adamw"
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="averages of gradient and squared gradient")
    eps: float = Field(1e-8, gt=0, description="added to the denominator")
    layer_decay: float = Field(1.0, gt=0, le=1, description="rate of a block over the next's")

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over ``groups`` of :func:`param_groups`."""
        import torch  # as all of these, where one is built

        from dinoskip.optim.groups import by_layer

        groups = by_layer(groups, self.layer_decay)
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)


class RefreshConfig(Scheduled):
    """Settings of optimizers with factors and bases: when bases are refreshed, and the precision of products."""

    state_bytes: ClassVar[float] = 38.5  # factors and bases of a ViT-S's matrices, and moments

    stagger: bool = Field(False, description="refresh each shape's bases at a step of its own")
    tf32: bool = Field(False, description="on a GPU, into the bases and back in TF32; factors and bases stay float32")


class PreconditionedConfig(RefreshConfig):
    """Settings shared by SOAP and KL-Shampoo."""

    shampoo_beta: float = Field(-1, lt=1, description="average of the factors; negative: betas[1]")
    eps: float = Field(1e-8, gt=0, description="added to the denominator")
    precondition_frequency: int = Field(10, ge=1, description="steps between two refreshes of the bases")
    max_precond_dim: int = Field(10000, ge=1, description="a larger dimension has no basis")
    normalize_grads: bool = Field(False, description="scale every update to a mean square of 1")
    split_qkv: bool = Field(False, description="take a fused qkv as three matrices instead of one")

    def blocks(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Give qkv weights groups of their own with ``blocks=3``, if they are to be split."""
        if not self.split_qkv:
            return groups
        from dinoskip.optim.groups import split_groups  # torch

        qkv, rest = split_groups(groups, lambda name, _: name.endswith("qkv.weight"))
        return [*rest, *({**group, "blocks": 3} for group in qkv)]


class SoapConfig(PreconditionedConfig):
    """SOAP with DINO's schedules. The papers leave the learning rate open; this is AdamW's, to be tuned.

    Patch embeddings are taken as (dim, 3 * patch * patch) matrices; ``as_matrix: false`` gives each of a kernel's
    four dimensions a basis, as the reference does.
    """

    title = "SOAP"
    name: Literal["soap"] = "soap"
    betas: tuple[Beta, Beta] = Field((0.95, 0.95), description="averages of gradient and of its square in the basis")
    as_matrix: bool = Field(True, description="take a kernel as one matrix; false: a basis for each of its dimensions")
    merge_dims: bool = Field(False, description="merge small dimensions")
    precondition_1d: bool = Field(False, description="a basis for vectors, too")
    correct_bias: bool = Field(True, description="correct the averages for their start at 0, as Adam")

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over ``groups`` of :func:`dinoskip.optim.groups.param_groups`."""
        optimizer: Callable[..., torch.optim.Optimizer] = implementation("dinoskip.optim.soap:SOAP")
        settings = self.model_dump(exclude={"name", "split_qkv", *(set(Scheduled.model_fields) - {"lr"})})
        return optimizer(self.blocks(groups), **settings)


class EcsConfig(RefreshConfig):
    """Eigenvalue-corrected Shampoo, with the settings of public code by the first author of *Cutting the Skip*."""

    name: Literal["ecs"] = "ecs"
    betas: tuple[Beta, Beta] = Field((0.9, 0.95), description="averages of gradient and of its square in the basis")
    eps: float = Field(1e-8, gt=0, description="added to the denominator")
    weight_decay: float = Field(0.05, ge=0, description="at the first step")
    weight_decay_end: float = Field(0.05, ge=0, description="at the end of its cosine")
    precondition_frequency: int = Field(100, ge=1, description="steps between two refreshes; Adam until the first")
    max_precond_dim: int = Field(8192, ge=1, description="larger matrices are cut into blocks of this side")

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over ``groups`` of :func:`dinoskip.optim.groups.param_groups`."""
        optimizer: Callable[..., torch.optim.Optimizer] = implementation("dinoskip.optim.soap:SOAP")
        settings = self.model_dump(exclude={"name", *(set(Scheduled.model_fields) - {"lr"})})
        return optimizer(groups, variant="ecs", **settings)


class KLShampooConfig(PreconditionedConfig):
    """KL-Shampoo, or KL-SOAP with ``klsoap``. The learning rate is to be tuned."""

    title = "KL-Shampoo"
    name: Literal["klshampoo"] = "klshampoo"
    betas: tuple[Beta, Beta] = Field((0.9, 0.98), description="averages of gradient and factors")
    klsoap: bool = Field(False, description="KL-SOAP: Adam in KL-Shampoo's basis")
    init_factor: float = Field(0.1, gt=0, description="first eigenvalue of every factor")
    damping: bool = Field(False, description="add eps in the estimates of the factors")
    max_clamp_value: float | None = Field(4000, gt=0, description="bound of 1/sqrt(eigenvalue); null: none")

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over ``groups`` of :func:`dinoskip.optim.groups.param_groups`."""
        optimizer: Callable[..., torch.optim.Optimizer] = implementation("dinoskip.optim.kl_shampoo:KLShampoo")
        plain = {"lr", "betas", "shampoo_beta", "eps", "precondition_frequency", "max_precond_dim", "normalize_grads"}
        plain |= {"stagger", "tf32"}
        return optimizer(
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

    state_bytes: ClassVar[float] = 4.0
    title = "Muon"
    name: Literal["muon"] = "muon"
    momentum: Beta = Field(0.95, description="average of the gradient")
    nesterov: bool = Field(True, description="look ahead by one average")
    ns_steps: int = Field(5, ge=1, lt=100, description="Newton-Schulz iterations")
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="of AdamW")
    eps: float = Field(1e-8, gt=0, description="of AdamW")

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over ``groups`` of :func:`dinoskip.optim.groups.param_groups`."""
        from dinoskip.optim.groups import split_groups  # torch

        optimizer: Callable[..., torch.optim.Optimizer] = implementation("dinoskip.optim.muon:MuonAdamW")
        is_hidden_matrix: Callable[..., Any] = implementation("dinoskip.optim.muon:is_hidden_matrix")

        matrices, others = split_groups(groups, is_hidden_matrix)
        settings = self.model_dump(include={"lr", "momentum", "nesterov", "ns_steps", "betas", "eps"})
        return optimizer(matrices, others, **settings)


def _named(value: Any) -> Any:
    """Settings without a name are AdamW's."""
    return {"name": "adamw", **value} if isinstance(value, dict) else value


AnyOptimizer = (
    AdamWConfig
    | SoapConfig
    | EcsConfig
    | KLShampooConfig
    | MuonConfig
)  # fmt: skip
"""The table of optimizers."""
_ADDED = ByName("optimizers", Scheduled, "name")
OptimizerConfig = Annotated[AnyOptimizer, Field(discriminator="name"), _ADDED, BeforeValidator(_named)]


def printed(name: str) -> str:
    """Return the title of the optimizer ``name`` in figures."""
    classes: list[Any] = [*get_args(AnyOptimizer), *_ADDED.classes()]
    return next((one.title for one in classes if one.model_fields["name"].default == name and one.title), name)
