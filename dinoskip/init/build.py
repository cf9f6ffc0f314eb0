"""From a model configuration and a seed to a model in which every parameter was assigned exactly once."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from dinoskip.config import Config
from dinoskip.errors import WeightsError
from dinoskip.init.assign import Assignments, assign
from dinoskip.init.default import default_tensors
from dinoskip.init.mimetic import mimetic_tensors
from dinoskip.init.orthogonal import Noise
from dinoskip.init.skipless import Heads, MlpInit, skipless_tensors
from dinoskip.models.vit import VitConfig, from_config


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
    c: Annotated[float, Field(gt=0)] | tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = 3.0
    heads: Heads = "top"
    mlp: MlpInit = "suo"
    noise: Noise = "normal"

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """What this method assigns."""
        return skipless_tensors(
            model, self.alpha, self.beta, self.c, heads=self.heads, mlp=self.mlp, noise=self.noise, seed=seed
        )


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


InitConfig = Annotated[TruncNormalInit | SkiplessInit | MimeticInit, Field(discriminator="name")]


class ModelConfig(VitConfig):
    """A model, how its weights start, and the student's drop path."""

    init: InitConfig = TruncNormalInit()
    drop_path: float = Field(0.1, ge=0, lt=1, description="largest drop-path rate of a student with skips")


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


def initialise(model: nn.Module, init: TruncNormalInit | SkiplessInit | MimeticInit, seed: int) -> None:
    """Assign every parameter once: ``init``'s own, then the default for all others. Nothing may stay NaN."""
    own = assign(model, init.tensors(model, seed))
    assign(model, default_tensors(model, seed, without=own))
    state = [*model.named_parameters(), *model.named_buffers()]
    unset = [name for name, tensor in state if not bool(tensor.isfinite().all())]
    if unset:
        raise WeightsError(f"initialisation {init.name} left {len(unset)} tensors unset or not finite: {unset[0]}, ...")
