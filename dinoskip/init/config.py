"""Settings of every initialisation, their table, and the settings of a model. Nothing here imports torch on its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dinoskip.plugins import ByName
from dinoskip.runtime.console import log
from dinoskip.settings.config import Config, Positive, implementation, no_duplicates
from dinoskip.settings.vit_config import PositionResize, TemperatureMode, VitConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dinoskip.init.assign import Assignments


class MethodConfig(Config):
    """Settings of a method; ``place`` is the generator of what it assigns, of a model, these settings and a seed."""

    place: ClassVar[str]

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """Names and values of the tensors that this method assigns; the default assigns all others."""
        generator: Callable[..., Assignments] = implementation(self.place)
        return generator(model, self, seed)


Noise = Literal["normal", "uniform"]
Draw = Literal["svd", "haar"]
Heads = Literal["top", "split"]
Scale = Literal["head", "none", "width"]
SCALES: tuple[Scale, ...] = get_args(Scale)
MlpInit = Literal["suo", "orthogonal", "default"]


class TruncNormalInit(Config):
    """timm's and DINO's default, see :func:`dinoskip.init.trunc_normal_`; MLPs may start as those of ``skipless``."""

    name: Literal["trunc_normal"] = "trunc_normal"
    mlp: MlpInit = Field(
        "default", description="weights of fc1, fc2; suo: scaled uniform orthogonal, orthogonal: unscaled"
    )

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """The MLPs that do not start by the default; it fills what a method leaves, here all else."""
        if self.mlp == "default":
            return iter(())
        generator: Callable[..., Assignments] = implementation("dinoskip.init.skipless:mlp_tensors")
        return generator(model, self.mlp, seed, "trunc_normal")


class SkiplessInit(MethodConfig):
    """Scaled orthogonal matrices with noise, for networks without skips; see :func:`dinoskip.init.skipless_`."""

    place = "dinoskip.init.skipless:skipless_tensors"
    name: Literal["skipless"] = "skipless"
    alpha: float = Field(1.8, ge=0, description="weight of the noise in W^Q W^K of each head")
    beta: float = Field(1.0, description="weight of the identity in W^Q W^K of each head")
    beta_width: int | None = Field(
        None, ge=1, description="width that beta is for: at another D it is beta (beta_width / D)^0.737; null: at any"
    )
    c: Positive | tuple[Positive, Positive] = Field(3.0, description="scale of W^V and of W^O; a pair: one for each")
    heads: Heads = Field("top", description="top: each head has a matrix of its own; split: one a layer, dealt out")
    mlp: MlpInit = Field("suo", description="weights of fc1, fc2; suo: scaled uniform orthogonal, orthogonal: unscaled")
    noise: Noise = Field("normal", description="distribution of the noise")
    scale: Scale = Field(
        "head", description="factor on Q K^T initially; head: 1/sqrt(width/heads), none: 1, width: 1/sqrt(width)"
    )
    draw: Draw = Field("haar", description="how orthogonal matrices are drawn")


class MimeticInit(MethodConfig):
    """Products of attention's weights near the identity, as after training; see :func:`dinoskip.init.mimetic_`."""

    place = "dinoskip.init.mimetic:mimetic_tensors"
    name: Literal["mimetic"] = "mimetic"
    alpha: float = Field(0.7, ge=0, description="weight of the noise in W^Q W^K of each head")
    beta: float = Field(0.7, description="weight of the identity in W^Q W^K of each head")
    alpha_vo: float = Field(0.4, ge=0, description="weight of the noise in W^V W^O")
    beta_vo: float = Field(0.4, description="weight of minus the identity in W^V W^O")


Values = Literal["shared", "blocked"]
Part = Literal["query", "key", "value"]
PARTS: tuple[Part, ...] = get_args(Part)
NEEDS_SKIP = 'v="shared" needs the attention\'s skip connection: its W^V has the rank of one head'
NEEDS_SKIP_HINT = 'keep the skip, or v="blocked" (not the paper\'s), or skipless_'


class ConditionedInit(Config):
    """Well-conditioned query, key and value matrices; see :func:`dinoskip.init.conditioned_`."""

    name: Literal["conditioned"] = "conditioned"
    v: Values = Field("shared", description="W^V of a head: the first coordinates for every head, or blocks of its own")
    parts: Annotated[tuple[Part, ...], Field(min_length=1), AfterValidator(no_duplicates)] = Field(
        ("query", "key", "value"), description="matrices that are conditioned; the others keep the default"
    )

    @property
    def needs_skip(self) -> bool:
        """Whether the attention must keep its skip connection."""
        return self.v == "shared" and "value" in self.parts

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """Names and values of the tensors of ``parts``, and of what is left of the same matrices."""
        generator: Callable[..., Assignments] = implementation("dinoskip.init.conditioned:conditioned_tensors")
        unset_tensors: Callable[..., Assignments] = implementation("dinoskip.init.default:unset_tensors")
        others = {} if set(self.parts) == set(PARTS) else dict(unset_tensors(model, seed))
        return generator(model, self, seed, others)


Reading = Literal["product", "factor"]


class ResidualFreeInit(MethodConfig):
    """Orthogonal factors of given scales, with a temperature by depth; see :func:`dinoskip.init.residual_free_`."""

    place = "dinoskip.init.residual_free:residual_free_tensors"
    name: Literal["residual_free"] = "residual_free"
    alpha_qk: Positive = Field(0.9, description="scale of W^Q W^K")
    alpha_vo: Positive = Field(3.0, description="scale of W^V W^O")
    alpha_u: Positive = Field(1.5, description="scale of fc1")
    alpha_d: Positive = Field(1.5, description="scale of fc2")
    beta: float = Field(1.0, gt=0, description="base of the temperature folded into W^Q; model.temperature is a module")
    reading: Reading = Field("product", description="what the scales are of: products, such as W^Q W^K, or each factor")
    first_layer: int = Field(1, ge=0, description="number of the first block in the temperature")
    mode: TemperatureMode = Field("multiply", description="whether the temperature multiplies or divides")


class WeightSelectionInit(Config):
    """Weights selected from a larger trained network; see :func:`dinoskip.init.weight_selection_`."""

    name: Literal["weight_selection"] = "weight_selection"
    teacher: str = Field(min_length=1, description="a backbone: a checkpoint's path, run:DIR or timm:NAME")

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """Return names and values of the tensors assigned by this method; the seed is not used."""
        generator: Callable[..., Assignments] = implementation(
            "dinoskip.init.weight_selection:weight_selection_tensors"
        )
        load_backbone: Callable[..., Any] = implementation("dinoskip.models.load:load_backbone")
        return generator(model, load_backbone(self.teacher).model)


Mlp = Literal["orthogonal", "mirrored"]


class CalibratedInit(Config):
    """Weights fitted block by block to the activations of images; see :func:`dinoskip.init.calibrated_`."""

    name: Literal["calibrated"] = "calibrated"
    images: str | None = Field(
        None, min_length=1, description="data set of the study that it is calibrated on; null: the one trained on"
    )
    count: int = Field(32, ge=2, description="training images, evenly spread over the set, as centre crops of img_size")
    centring: float = Field(0.5, ge=0, le=1, description="share of each mean that the biases subtract")
    gain: Positive = Field(1.0, description="singular values of fc1")
    diagonal: float = Field(0.5, gt=0, lt=1, description="median attention of a patch to itself that is aimed at")
    max_scale: float = Field(4.0, gt=0, description="largest singular value of a head's W^Q W^K^T")
    c: Positive = Field(3.0, description="singular values of W^V and W^O")
    mlp: Mlp = Field(
        "orthogonal", description="weights of the MLPs; mirrored: half of the hidden units add up to a rotation"
    )
    mixing_heads: int = Field(
        0, ge=0, description="heads that initially average over all tokens, in every mixing_every-th block"
    )
    mixing_every: int = Field(4, ge=1, description="blocks from one with mixing_heads to the next")

    def tensors(self, model: nn.Module, seed: int, images: Tensor) -> Assignments:
        """Return names and values of the tensors assigned by this method, given ``images`` (B, 3, S, S), normalised."""
        generator: Callable[..., Assignments] = implementation("dinoskip.init.calibrated:calibrated_tensors")
        drawn_by_default: Callable[..., Any] = implementation("dinoskip.init.calibrated:drawn_by_default")
        return generator(model, self, seed, images, drawn_by_default(model, seed))


class MaeInit(MethodConfig):
    """Xavier uniform matrices, the patch embedding's and the fused qkv's each as one; zero biases; CLS normal 0.02."""

    place = "dinoskip.init.mae:mae_tensors"
    name: Literal["mae"] = "mae"
    zero_branches: bool = Field(
        False, description="initialise attn.proj and mlp.fc2 with zero, so that a block only applies its skip weights"
    )


NEEDS_NO_SKIP = "changes the function where the skip connection around it is kept"


class Reparametrisation(Config):
    """Factors on the weights of every block; see :func:`dinoskip.init.reparametrise_`."""

    k1: Positive = Field(1.0, description="factor on qkv's weight; norm1's weight and bias are divided by it")
    k2: Positive = Field(1.0, description="factor on fc1's weight; norm2's weight and bias are divided by it")
    c1: Positive = Field(1.0, description="factor on proj's weight and bias; only without the attention's skip")
    c2: Positive = Field(1.0, description="factor on fc2's weight and bias; only without the MLP's skip")


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
    """The settings, with the name ``default`` written as ``trunc_normal``."""
    return init | {"name": "trunc_normal"} if isinstance(init, dict) and init.get("name") == "default" else init


InitConfig = Annotated[
    Init, Field(discriminator="name"), ByName("initialisations", Config, "name"), BeforeValidator(_default_by_its_name)
]


def paper_init(name: str) -> SkiplessInit:
    """The settings of Cutting the Skip for a skipless model of this name: ViT-S's, for ViT-B alpha 2 and beta 0.6."""
    return SkiplessInit(alpha=2.0, beta=0.6) if name.startswith("vit_base") else SkiplessInit()


class ModelConfig(VitConfig):
    """A model, how its weights start, and the student's drop path."""

    position_resize: PositionResize = Field(
        "dino", description="how positions are resized for crops of other sizes: as facebookresearch/dino or timm does"
    )
    init: InitConfig = TruncNormalInit()
    reparametrise: Reparametrisation | None = Field(
        None, description="scales moved into the weights of every block, for any init; the function stays the same"
    )
    drop_path: float = Field(0.1, ge=0, lt=1, description="largest drop-path rate of a student that keeps its skips")

    @model_validator(mode="after")
    def _values_of_all_heads(self) -> ModelConfig:
        if isinstance(self.init, ConditionedInit) and self.init.needs_skip and self.last.skip in (False, "mlp"):
            raise ValueError(f"init conditioned: {NEEDS_SKIP}; {NEEDS_SKIP_HINT}")
        return self

    @model_validator(mode="after")
    def _temperature_stands_once(self) -> ModelConfig:
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
    if "init" not in config.model_fields_set and config.timm_name is None:
        chosen = paper_init(config.name)
        log.info(
            "%s without model.init: initialised as in the paper, alpha=%g beta=%g c=%g "
            "(model.init.name=default gives the default initialisation)", setting, chosen.alpha, chosen.beta, chosen.c,
        )  # fmt: skip
        return config.model_copy(update={"init": chosen})
    if isinstance(config.init, TruncNormalInit):
        log.warning("%s with the default initialisation: its tokens become alike and it hardly learns", setting)
    return config


def needs_images(init: Init) -> bool:
    """Whether an initialisation is measured on images."""
    return isinstance(init, CalibratedInit)
