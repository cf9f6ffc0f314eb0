"""The ViTs of this project by name, and the settings that fix one's parameters and function."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
    model_validator,
)

from dinoskip.settings.config import Config, implementation

ModelName = Literal[
    "vit_mini_patch8",
    "vit_mini_patch14",
    "vit_mini_patch16",
    "vit_tiny_patch8",
    "vit_tiny_patch14",
    "vit_tiny_patch16",
    "vit_small_patch8",
    "vit_small_patch14",
    "vit_small_patch16",
    "vit_base_patch8",
    "vit_base_patch14",
    "vit_base_patch16",
    "vit_large_patch14",
    "vit_large_patch16",
    "vit_huge_patch14",
    "vit_giant_patch14",
]

TIMM = "timm:"
"""Begins the name of a network that timm builds."""


def _ours_or_timms(name: Any, ours: ValidatorFunctionWrapHandler) -> Any:
    named = isinstance(name, str) and name.startswith(TIMM)
    if named and not re.fullmatch(r"timm:[A-Za-z0-9_]+", name):
        raise ValueError("write timm:NAME, without a tag: the weights are those of the run")
    return name if named else ours(name)


@dataclass(frozen=True)
class NetworkFacts:
    """Facts about a network: pixels per cell and channels of its levels (blocks), and the ``multiple`` of image sides.

    ``features`` are the channels that its classifier would read, ``parameters`` the number of its weights.
    """

    strides: tuple[int, ...]
    widths: tuple[int, ...]
    multiple: int
    features: int
    parameters: int


NetworkName = Annotated[ModelName, WrapValidator(_ours_or_timms), PlainSerializer(str)]
"""A name of ours, or ``timm:NAME``."""

AttentionRows = Literal["softmax", "entmax15"]
# timm's sizes (ViT, table 1; DeiT, table 1; Scaling Vision Transformers, table 2); mini is ours, to train on a CPU.
WIDTHS = {"mini": 128, "tiny": 192, "small": 384, "base": 768, "large": 1024, "huge": 1280, "giant": 1408}
HEAD_DIM = 64  # of all sizes that LARGER does not name, as the next two
DEPTH = 12  # blocks
MLP_RATIO = 4
LARGER: dict[str, tuple[int, int, float]] = {"large": (24, 16, 4), "huge": (32, 16, 4), "giant": (40, 16, 48 / 11)}
"""Blocks, heads and MLP ratio of timm's larger sizes; all others have 12 blocks, heads of 64 channels, ratio 4."""
MAX_DEPTH = 1000  # blocks: what a damaged or hostile weights file may ask for at most
MAX_SIZE = 16_384  # pixels
PATCHES = (8, 14, 16)  # of published ViTs; smaller numbers in a name are those of Swin and its kin
SHAPES: dict[str, tuple[int, int]] = {
    name: (WIDTHS[name.split("_")[1]], int(name.rpartition("patch")[2])) for name in get_args(ModelName)
}
"""Width and patch size by name."""


def timm_name(name: str) -> str:
    """Return the name in timm's factory of the skipless network that is ``name`` here."""
    return f"skipless_{name}_224"


def layout_of(name: str) -> tuple[int, int, float]:
    """Blocks, heads and MLP ratio of one of our names."""
    return LARGER.get(name.split("_")[1]) or (DEPTH, SHAPES[name][0] // HEAD_DIM, MLP_RATIO)


PositionResize = Literal["timm", "dino"]
Skip = bool | Literal["attention", "mlp"]
Kind = Literal["svd", "dct"]


class GrayingConfig(Config):
    """Token Graying as a setting of a model: which transform, and the exponent ε of its values."""

    kind: Kind = Field("dct", description="transform of the patches: discrete cosine or singular values")
    epsilon: float = Field(0.95, gt=0, le=1, description="exponent of the amplified values; 1 changes nothing")


TemperatureMode = Literal["multiply", "divide"]


class TemperatureConfig(Config):
    """Logits of block l times τ_l, see :func:`temperatures`. It has no parameters."""

    beta: float = Field(1.1, gt=0, description="base of the depth-aware temperature; the paper's is 1.1")
    first_layer: int = Field(1, ge=0, description="number of the first block in the temperature")
    mode: TemperatureMode = Field("multiply", description="whether the temperature multiplies or divides")


Sublayers = Literal["constant", "linear"]
Shape = Literal["linear", "cosine"]
Weights = list[tuple[float, float]]
"""Of attention and MLP, block by block."""


class SkipWeight(Config):
    """Weight a of the skip connections; a number alone is the constant ``end``.

    At step s of a training run it is start + (end - start) u for s < n = round(fraction · steps), with u = s/n
    (``linear``) or (1 - cos(π s/n))/2 (``cosine``), then exactly ``end``. With ``sublayers: linear`` that is the last
    sublayer's, and sublayer k = 0..2L-1 (attention, MLP, attention, ...) of L blocks has 1 - k/(2L-1) (1 - a).
    A teacher has its student's weight at every step. First weights are drawn, and measured on images, as for ``end``.
    """

    end: float = Field(0.0, ge=0, le=1, description="weight of the skips; 1: a ViT's, 0: none; last, where it changes")
    sublayers: Sublayers = Field("constant", description="all sublayers alike, or falling from 1 to it with depth")
    start: float = Field(1.0, ge=0, le=1, description="weight at the first step, where it changes in training")
    fraction: float = Field(0.0, ge=0, le=1, description="share of training in which it goes from start to end")
    shape: Shape = Field("linear", description="how it goes from start to end")

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return {"end": value} if isinstance(value, int | float) and not isinstance(value, bool) else value

    @model_serializer(mode="wrap")
    def _without_what_says_nothing(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = dump(self)
        return written if self.fraction else {name: written[name] for name in ("end", "sublayers")}

    @property
    def first(self) -> float:
        """The weight that skips have before training."""
        return self.start if self.fraction else self.end

    def at(self, step: int, total: int) -> float:
        """The weight at step 0..total of a run of ``total`` optimizer steps."""
        steps = round(self.fraction * total)
        if step >= steps:
            return self.end
        share = step / steps if self.shape == "linear" else (1 - math.cos(math.pi * step / steps)) / 2
        return self.start + (self.end - self.start) * share

    def weights(self, value: float, depth: int) -> Weights:
        """Return the skip weights of the two sublayers of each of ``depth`` blocks where the weight is ``value``."""
        if self.sublayers == "constant":
            return [(value, value)] * depth
        last = 2 * depth - 1
        line = [1 - index / last * (1 - value) for index in range(last)] + [value]
        return list(zip(line[::2], line[1::2], strict=True))

    def product(self, depth: int) -> float:
        """Product of all last weights: the share of the embedding that skips alone carry to the end of the network."""
        return math.prod(math.prod(pair) for pair in self.weights(self.end, depth))


class VitConfig(Config):
    """Settings that determine a model's parameters and function: enough to rebuild it from a weights file."""

    name: NetworkName = Field(
        "vit_small_patch16", description="size and patch of the ViT, or timm:NAME for a network of timm"
    )
    skip: Skip = Field(True, description='true, false, or "attention" / "mlp" to keep only that skip')
    skip_weight: SkipWeight | None = Field(
        None, description="weight of the skips between 1 and 0, by depth, in training time, or both; null: as skip says"
    )
    attention: AttentionRows = Field(
        "softmax", description="what makes rows of attention of logits; entmax15: sparse, with exact zeros"
    )
    layer_scale: float | None = Field(
        None, gt=0, description="LayerScale: first gain of every branch, 1e-5 in DINOv2; needs all skips; null: none"
    )
    registers: int = Field(
        0, ge=0, le=64, description="trained tokens beside the CLS token, without a position (4 in DINOv2)"
    )
    cls_norms: bool = Field(
        False, description="the CLS token and registers have LayerNorms of their own, in every block and at the end"
    )
    depth: int | None = Field(
        None, gt=0, le=MAX_DEPTH, description="number of blocks; the name's when not given: 12 up to base"
    )
    img_size: int = Field(
        224, gt=0, le=MAX_SIZE, description="side of the square images that the position embedding is made for"
    )
    graying: GrayingConfig | None = Field(None, description="Token Graying of the images before the patch embedding")
    temperature: TemperatureConfig | None = Field(None, description="temperature of attention by depth; null: none")
    position_resize: PositionResize = Field(
        "timm", description="how positions are resized for other image sizes: as timm or facebookresearch/dino does"
    )

    @model_serializer(mode="wrap")
    def _as_before_these_settings(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out settings that are off, and timm's resizing in weights files: written as before these settings."""
        written: dict[str, Any] = dump(self)
        for name in ("graying", "temperature", "skip_weight", "layer_scale"):
            if getattr(self, name) is None:
                written.pop(name, None)
        for name, default in (("attention", "softmax"), ("registers", 0), ("cls_norms", False)):
            if getattr(self, name) == default:
                written.pop(name, None)
        if type(self) is VitConfig and self.position_resize == "timm":
            written.pop("position_resize", None)
        return written

    @model_validator(mode="after")
    def _of_timm(self) -> VitConfig:
        if self.timm_name is not None:
            off = {"attention": "softmax", "layer_scale": None, "registers": 0, "cls_norms": False, "depth": None}
            for name, value in {**off, "temperature": None}.items():
                if getattr(self, name) != value:
                    raise ValueError(f"{name}: is of networks of ours, not of {self.name}")
        return self

    @model_validator(mode="after")
    def _whole_patches(self) -> VitConfig:
        if (problem := self.refused_size(self.img_size)) is not None:
            raise ValueError(f"img_size {problem} of {self.name}")
        return self

    @model_validator(mode="after")
    def _all_skips(self) -> VitConfig:
        if self.skip_weight is not None and self.skip is not True:
            raise ValueError("skip_weight: it is the weight of skips that are there: leave it out, or take skip=true")
        if self.layer_scale is not None and not self.keeps_skips:
            raise ValueError("layer_scale: without a skip connection it erases the signal: leave it out")
        return self

    @property
    def keeps_skips(self) -> bool:
        """Whether all skips are there, whatever their weight, all through training."""
        weight = self.skip_weight
        return self.skip is True and (weight is None or min(weight.first, weight.end) > 0)

    def settled(self, value: float) -> Self:
        """The network where the weight of its skips is ``value``: 1 is one with skips, 0 in all sublayers one without.

        A network whose skips have no weight stays as it is.
        """
        if self.skip_weight is None:
            return self
        constant = self.skip_weight.sublayers == "constant"
        if value == 1 or (value == 0 and constant):
            return self.model_copy(update={"skip": value == 1, "skip_weight": None})
        return self.model_copy(update={"skip_weight": SkipWeight(end=value, sublayers=self.skip_weight.sublayers)})

    @property
    def first(self) -> Self:
        """The network as it is before training, with the first weight of its skips."""
        return self if self.skip_weight is None else self.settled(self.skip_weight.first)

    @property
    def last(self) -> Self:
        """The network as it is after training, with the last weight of its skips."""
        return self if self.skip_weight is None else self.settled(self.skip_weight.end)

    @property
    def has_all_skips(self) -> bool:
        """Whether it is an ordinary ViT in its skips: all are there, and have no weight."""
        return self.skip is True and self.skip_weight is None

    @property
    def computes_as_timm(self) -> bool:
        """Whether timm's ViT, and any other of its layout, computes the same of the same tensors."""
        added = (self.graying, self.temperature)
        plain = self.attention == "softmax" and not self.cls_norms
        return self.has_all_skips and plain and all(option is None for option in added)

    @property
    def timm_name(self) -> str | None:
        """Name of the network in timm; None for a network of dinoskip."""
        return self.name.removeprefix(TIMM) if self.name.startswith(TIMM) else None

    @property
    def facts(self) -> NetworkFacts:
        """Facts about a network of timm's; reading them imports torch."""
        read: Any = implementation("dinoskip.models.network_facts:facts_of")
        facts: NetworkFacts = read(self.timm_name, self.img_size)
        return facts

    def refused_size(self, side: int) -> str | None:
        """``SIDE is not a multiple of ...``: why images of ``side`` pixels cannot be taken; None if they can."""
        if side % self.patch_size:
            return f"{side} is not a multiple of the patch size {self.patch_size}"
        if self.timm_name is None:
            return None
        refused: Any = implementation("dinoskip.models.network_facts:refused_size")
        reason = refused(self.timm_name, self.img_size, side)
        return None if reason is None else f"{side} is refused by the network: {reason}"

    @property
    def blocks(self) -> int:
        """Number of blocks, whether given or the name's; of a network that is read level by level, of levels."""
        return len(self.facts.strides) if self.timm_name is not None else self.depth or layout_of(self.name)[0]

    @property
    def patch_size(self) -> int:
        """Side of a patch in pixels; of a network of timm's what sides of images are multiples of."""
        return self.facts.multiple if self.timm_name is not None else SHAPES[self.name][1]

    @property
    def width(self) -> int:
        """Channels that a classifier reads."""
        return self.facts.features if self.timm_name is not None else SHAPES[self.name][0]
