"""All initialisations in one union; a model configuration and a seed give a model, each parameter assigned once."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field, model_validator
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dinoskip.config import Added
from dinoskip.console import log
from dinoskip.errors import ConfigError, WeightsError
from dinoskip.init.assign import Assignments, assign
from dinoskip.init.calibrated import CalibratedInit
from dinoskip.init.conditioned import NEEDS_SKIP, NEEDS_SKIP_HINT, ConditionedInit
from dinoskip.init.default import TruncNormalInit, default_tensors
from dinoskip.init.mae import MaeInit
from dinoskip.init.mimetic import MimeticInit
from dinoskip.init.reparametrise import NEEDS_NO_SKIP, Reparametrisation, reparametrise_
from dinoskip.init.residual_free import ResidualFreeInit
from dinoskip.init.skipless import SkiplessInit
from dinoskip.init.weight_selection import WeightSelectionInit
from dinoskip.models.build import VitConfig, from_config
from dinoskip.models.skip_weight import weigh_skips_
from dinoskip.models.vit import PositionResize

Init = (
    TruncNormalInit
    | SkiplessInit
    | MimeticInit
    | ConditionedInit
    | ResidualFreeInit
    | WeightSelectionInit
    | CalibratedInit
    | MaeInit
)  # fmt: skip
"""The table of initialisations."""


def _default_by_its_name(init: Any) -> Any:
    """``{name: default}`` is ``trunc_normal``."""
    return init | {"name": "trunc_normal"} if isinstance(init, dict) and init.get("name") == "default" else init


InitConfig = Annotated[Init, Field(discriminator="name"), BeforeValidator(_default_by_its_name)]


def paper_init(name: str) -> SkiplessInit:
    """The settings of Cutting the Skip for a skipless model of this name: ViT-S's, for ViT-B alpha 2 and beta 0.6."""
    return SkiplessInit(alpha=2.0, beta=0.6) if name.startswith("vit_base") else SkiplessInit()


class ModelConfig(VitConfig):
    """A model, how its weights start, and the student's drop path."""

    position_resize: PositionResize = Field(
        "dino", description="how positions are resized for crops of other sizes: as facebookresearch/dino or timm does"
    )
    init: InitConfig = TruncNormalInit()
    reparametrise: Annotated[Reparametrisation | None, Added()] = Field(
        None, description="scales moved into the weights of every block, for any init; the function stays the same"
    )
    drop_path: float = Field(0.1, ge=0, lt=1, description="largest drop-path rate of a student that keeps its skips")

    @model_validator(mode="after")
    def _values_of_all_heads(self) -> ModelConfig:
        if isinstance(self.init, ConditionedInit) and self.init.needs_skip and self.last.skip in (False, "mlp"):
            raise ValueError(f"init conditioned: {NEEDS_SKIP}; {NEEDS_SKIP_HINT}")
        return self

    @model_validator(mode="after")
    def _one_temperature(self) -> ModelConfig:
        if self.temperature is not None and isinstance(self.init, ResidualFreeInit) and self.init.beta != 1:
            raise ValueError("temperature: init.beta folds it into W^Q already: leave one of them out")
        return self

    @model_validator(mode="after")
    def _same_function(self) -> ModelConfig:
        if self.reparametrise is not None:
            for name, skip in (("c1", "attention"), ("c2", "mlp")):
                if getattr(self.reparametrise, name) != 1 and self.skip in (True, skip):
                    raise ValueError(f"reparametrise.{name}: {NEEDS_NO_SKIP}")
        return self

    @property
    def drop_path_in_training(self) -> float:
        """The rate that a student is trained with: ``drop_path``, or 0 where it lacks a skip to fall back on."""
        return self.drop_path if self.keeps_skips else 0.0


def init_for_skipless(config: ModelConfig) -> ModelConfig:
    """``config`` of a single run, with the paper's initialisation if it is skipless and says nothing of one.

    The default initialisation hardly trains without skips: logged in one line, a warning where it was asked for.
    """
    if config.last.skip is not False:
        return config
    setting = "model.skip=false" if config.skip_weight is None else "model.skip_weight.end=0"
    if "init" not in config.model_fields_set:
        chosen = paper_init(config.name)
        log.info(
            "%s without model.init: initialised as in the paper, alpha=%g beta=%g c=%g "
            "(model.init.name=default starts it by the default)", setting, chosen.alpha, chosen.beta, chosen.c,
        )  # fmt: skip
        return config.model_copy(update={"init": chosen})
    if isinstance(config.init, TruncNormalInit):
        log.warning("%s with the default initialisation: its tokens become alike and it hardly learns", setting)
    return config


def build_model(
    config: ModelConfig,
    seed: int,
    *,
    images: Tensor | None = None,
    drop_path: float = 0.0,
    device: str | torch.device = "cpu",
) -> VisionTransformer:
    """Build a model and initialise it: float32, train mode, the same bits for the same arguments.

    Built without storage, filled with NaN, then every parameter assigned exactly once: by ``config.init`` what it
    speaks of, by the default (:func:`dinoskip.init.trunc_normal_`) the rest; of skips that change in training the last
    weight counts, and the model has the first. ``images`` (B, 3, S, S), normalised, are
    for the initialisation that needs some (:func:`needs_images`). ``drop_path`` is the last block's rate; it applies
    only where a skip is kept. Raises :class:`WeightsError` if anything was left unset, :class:`ConfigError` if the
    initialisation does not suit the model, or lacks its images.
    """
    with torch.device("meta"):
        model = from_config(config.last, drop_path_rate=drop_path, weight_init="skip").float()
    model.to_empty(device=device)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.fill_(torch.nan)  # an integer buffer cannot hold NaN and would fail here rather than stay unset
    initialise(model, config.init, seed, images)
    if config.reparametrise is not None:
        reparametrise_(model, **config.reparametrise.model_dump())
    if config.skip_weight is not None:
        weigh_skips_(model, config.skip_weight.weights(config.skip_weight.first, config.blocks))
    return model


def needs_images(init: Init) -> bool:
    """Whether an initialisation is measured on images."""
    return isinstance(init, CalibratedInit)


def tensors_of(init: Init, model: nn.Module, seed: int, images: Tensor | None = None) -> Assignments:
    """What an initialisation assigns; :class:`ConfigError` if it needs images and there are none."""
    if not isinstance(init, CalibratedInit):
        return init.tensors(model, seed)
    if images is None:
        raise ConfigError(f"initialisation {init.name} is measured on images, and there are none")
    return init.tensors(model, seed, images)


def initialise(model: nn.Module, init: Init, seed: int, images: Tensor | None = None) -> None:
    """Assign every parameter once: ``init``'s own, then the default for all others. Nothing may stay NaN."""
    own = assign(model, tensors_of(init, model, seed, images))
    assign(model, default_tensors(model, seed, without=own))
    state = [*model.named_parameters(), *model.named_buffers()]
    unset = [name for name, tensor in state if not bool(tensor.isfinite().all())]
    if unset:
        raise WeightsError(f"initialisation {init.name} left {len(unset)} tensors unset or not finite: {unset[0]}, ...")
