"""From a model configuration and a seed to a model in which every parameter was assigned exactly once."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from dinoskip.config import Config
from dinoskip.errors import WeightsError
from dinoskip.init.assign import Assignments, assign
from dinoskip.init.conditioned import NEEDS_SKIP, NEEDS_SKIP_HINT, Values, conditioned_tensors
from dinoskip.init.default import default_tensors
from dinoskip.init.mimetic import mimetic_tensors
from dinoskip.init.orthogonal import Draw, Noise
from dinoskip.init.residual_free import Reading, TemperatureMode, residual_free_tensors
from dinoskip.init.skipless import Heads, MlpInit, skipless_tensors
from dinoskip.init.transfer import weight_selection_tensors
from dinoskip.models.backbones import load_backbone
from dinoskip.models.vit import VitConfig, from_config

Positive = Annotated[float, Field(gt=0)]


class TruncNormalInit(Config):
    """timm's and DINO's default, see :func:`dinoskip.init.trunc_normal_`."""

    name: Literal["trunc_normal"] = "trunc_normal"

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """Nothing beyond the default."""
        return iter(())


class SkiplessInit(Config):
    """See :func:`dinoskip.init.skipless_`."""

    name: Literal["skipless"] = "skipless"
    alpha: float = Field(1.8, ge=0)
    beta: float = 1.0
    c: Positive | tuple[Positive, Positive] = 3.0
    heads: Heads = "top"
    mlp: MlpInit = "suo"
    noise: Noise = "normal"
    draw: Draw = "haar"

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """What this method assigns."""
        options = {"heads": self.heads, "mlp": self.mlp, "noise": self.noise, "draw": self.draw}
        return skipless_tensors(model, self.alpha, self.beta, self.c, **options, seed=seed)  # type: ignore[arg-type]


class MimeticInit(Config):
    """See :func:`dinoskip.init.mimetic_`."""

    name: Literal["mimetic"] = "mimetic"
    alpha: float = Field(0.7, ge=0)
    beta: float = 0.7
    alpha_vo: float = Field(0.4, ge=0)
    beta_vo: float = 0.4

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """What this method assigns."""
        return mimetic_tensors(model, self.alpha, self.beta, self.alpha_vo, self.beta_vo, seed=seed)


class ConditionedInit(Config):
    """See :func:`dinoskip.init.conditioned_`."""

    name: Literal["conditioned"] = "conditioned"
    v: Values = "shared"

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """What this method assigns."""
        return conditioned_tensors(model, self.v, seed=seed)


class ResidualFreeInit(Config):
    """See :func:`dinoskip.init.residual_free_`."""

    name: Literal["residual_free"] = "residual_free"
    alpha_qk: Positive = 0.9
    alpha_vo: Positive = 3.0
    alpha_u: Positive = 1.5
    alpha_d: Positive = 1.5
    beta: float = Field(1.0, gt=0, description="base of the depth-aware temperature; the paper's is 1.1")
    reading: Reading = "product"
    first_layer: int = Field(1, ge=0)
    mode: TemperatureMode = "multiply"

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """What this method assigns."""
        alphas = (self.alpha_qk, self.alpha_vo, self.alpha_u, self.alpha_d)
        return residual_free_tensors(model, alphas, self.beta, self.reading, self.first_layer, self.mode, seed=seed)


class WeightSelectionInit(Config):
    """See :func:`dinoskip.init.weight_selection_`."""

    name: Literal["weight_selection"] = "weight_selection"
    teacher: str = Field(min_length=1, description="a backbone: weights:FILE, run:DIR, dino:FILE or timm:NAME")

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """What this method assigns; the seed has no part in it."""
        return weight_selection_tensors(model, load_backbone(self.teacher).model)


Init = TruncNormalInit | SkiplessInit | MimeticInit | ConditionedInit | ResidualFreeInit | WeightSelectionInit
InitConfig = Annotated[Init, Field(discriminator="name")]


class ModelConfig(VitConfig):
    """A model, how its weights start, and the student's drop path."""

    init: InitConfig = TruncNormalInit()
    drop_path: float = Field(0.1, ge=0, lt=1, description="largest drop-path rate of a student with skips")

    @model_validator(mode="after")
    def _values_of_all_heads(self) -> ModelConfig:
        if isinstance(self.init, ConditionedInit) and self.init.v == "shared" and self.skip in (False, "mlp"):
            raise ValueError(f"init conditioned: {NEEDS_SKIP}; {NEEDS_SKIP_HINT}")
        return self


def build_model(
    config: ModelConfig, seed: int, *, drop_path: float = 0.0, device: str | torch.device = "cpu"
) -> VisionTransformer:
    """Build a model and initialise it: float32, train mode, the same bits for the same ``config`` and ``seed``.

    Built without storage, filled with NaN, then every parameter assigned exactly once: by ``config.init`` what it
    speaks of, by the default (:func:`trunc_normal_`) the rest. ``drop_path`` is the last block's rate; it applies only
    where a skip is kept. Raises :class:`WeightsError` if anything was left unset, :class:`ConfigError` if the
    initialisation does not suit the model.
    """
    with torch.device("meta"):
        model = from_config(config, drop_path_rate=drop_path, weight_init="skip").float()
    model.to_empty(device=device)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.fill_(torch.nan)  # an integer buffer cannot hold NaN and would fail here rather than stay unset
    initialise(model, config.init, seed)
    return model


def initialise(model: nn.Module, init: Init, seed: int) -> None:
    """Assign every parameter once: ``init``'s own, then the default for all others. Nothing may stay NaN."""
    own = assign(model, init.tensors(model, seed))
    assign(model, default_tensors(model, seed, without=own))
    state = [*model.named_parameters(), *model.named_buffers()]
    unset = [name for name, tensor in state if not bool(tensor.isfinite().all())]
    if unset:
        raise WeightsError(f"initialisation {init.name} left {len(unset)} tensors unset or not finite: {unset[0]}, ...")
