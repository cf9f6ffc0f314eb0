"""The ViTs of this project by name: their sizes, the settings that fix one, and how it is built."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dinoskip.config import Added, Config
from dinoskip.errors import ConfigError, did_you_mean
from dinoskip.models.entmax import EntmaxAttention
from dinoskip.models.graying import GrayingConfig, GrayingPatchEmbed
from dinoskip.models.skip_weight import SkipWeight, weigh_skips_
from dinoskip.models.temperature import TemperatureConfig, temper_
from dinoskip.models.vit import Block, PositionResize, Skip, Vit

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
AttentionRows = Literal["softmax", "entmax15"]
WIDTHS = {"mini": 128, "tiny": 192, "small": 384, "base": 768, "large": 1024, "huge": 1280, "giant": 1408}
HEAD_DIM = 64
DEPTH = 12
MLP_RATIO = 4
LARGER: dict[str, tuple[int, int, float]] = {"large": (24, 16, 4), "huge": (32, 16, 4), "giant": (40, 16, 48 / 11)}
"""Blocks, heads and MLP ratio of timm's larger sizes; all others have 12 blocks, heads of 64 channels, ratio 4."""
MAX_DEPTH = 1000  # blocks: what a damaged or hostile weights file may ask for at most
MAX_SIZE = 16_384  # pixels
PATCHES = (8, 14, 16)
SHAPES: dict[str, tuple[int, int]] = {
    name: (WIDTHS[name.split("_")[1]], int(name.rpartition("patch")[2])) for name in get_args(ModelName)
}
"""Width and patch size by name."""


def layout_of(name: str) -> tuple[int, int, float]:
    """Blocks, heads and MLP ratio of one of our names."""
    return LARGER.get(name.split("_")[1]) or (DEPTH, SHAPES[name][0] // HEAD_DIM, MLP_RATIO)


def list_models() -> tuple[str, ...]:
    """Names that :func:`create_model` knows."""
    return tuple(SHAPES)


class VitConfig(Config):
    """What fixes a model's parameters and function: enough to rebuild it from a weights file."""

    name: ModelName = Field("vit_small_patch16", description="size and patch of the ViT")
    skip: Skip = Field(True, description='true, false, or "attention" / "mlp" to keep only that skip')
    skip_weight: Annotated[SkipWeight | None, Added()] = Field(
        None, description="weight of the skips between 1 and 0, by depth, in training time, or both; null: as skip says"
    )
    attention: Annotated[AttentionRows, Added()] = Field(
        "softmax", description="what makes rows of attention of logits; entmax15: sparse, with exact zeros"
    )
    layer_scale: Annotated[float | None, Added()] = Field(
        None, gt=0, description="LayerScale: first gain of every branch, 1e-5 in DINOv2; needs all skips; null: none"
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
        """Where they are off, and in weights files resized as timm does, written as before they were settings."""
        written: dict[str, Any] = dump(self)
        for name in ("graying", "temperature", "skip_weight", "layer_scale"):
            if getattr(self, name) is None:
                written.pop(name, None)
        if self.attention == "softmax":
            written.pop("attention", None)
        if type(self) is VitConfig and self.position_resize == "timm":
            written.pop("position_resize", None)
        return written

    @model_validator(mode="after")
    def _whole_patches(self) -> VitConfig:
        patch = SHAPES[self.name][1]
        if self.img_size % patch:
            raise ValueError(f"img_size {self.img_size} is not a multiple of the patch size {patch} of {self.name}")
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
        """The network before training."""
        return self if self.skip_weight is None else self.settled(self.skip_weight.first)

    @property
    def last(self) -> Self:
        """The network after training."""
        return self if self.skip_weight is None else self.settled(self.skip_weight.end)

    @property
    def has_all_skips(self) -> bool:
        """Whether it is an ordinary ViT in its skips: all are there, and have no weight."""
        return self.skip is True and self.skip_weight is None

    @property
    def computes_as_timm(self) -> bool:
        """Whether timm's ViT, and any other of its layout, computes the same of the same tensors."""
        added = (self.graying, self.temperature)
        return self.has_all_skips and self.attention == "softmax" and all(one is None for one in added)

    @property
    def blocks(self) -> int:
        """Number of blocks, whether given or the name's."""
        return self.depth or layout_of(self.name)[0]

    @property
    def patch_size(self) -> int:
        """Side of a patch in pixels."""
        return SHAPES[self.name][1]


def vit_arguments(name: str, skip: Skip) -> dict[str, Any]:
    """Arguments of timm's VisionTransformer for one of our names; ConfigError with the nearest name if it is none."""
    if name not in SHAPES:
        hint = f"{did_you_mean(name, SHAPES) or ''} names: {', '.join(SHAPES)}".lstrip()
        raise ConfigError(f"model name {name!r} is unknown", hint)
    if not isinstance(skip, bool) and skip not in ("attention", "mlp"):
        raise ConfigError(f'skip={skip!r} is none of true, false, "attention", "mlp"')
    width, patch = SHAPES[name]
    depth, heads, mlp_ratio = layout_of(name)
    return {
        "patch_size": patch,
        "embed_dim": width,
        "num_heads": heads,
        "mlp_ratio": mlp_ratio,
        "depth": depth,
        "dynamic_img_size": True,
        "block_fn": partial(Block, skip=skip),
    }


def create_model(
    name: str,
    *,
    skip: Skip = True,
    skip_weight: SkipWeight | None = None,
    attention: AttentionRows = "softmax",
    layer_scale: float | None = None,
    depth: int | None = None,
    img_size: int = 224,
    graying: GrayingConfig | None = None,
    temperature: TemperatureConfig | None = None,
    position_resize: PositionResize = "timm",
    **timm_kwargs: Any,
) -> Vit:
    """Build a ViT with timm's layout, initialised by timm's default; :func:`dinoskip.init.build_model` seeds it.

    ``name`` is ``vit_{mini,tiny,small,base}_patch{8,14,16}``, ``vit_large_patch{14,16}`` or
    ``vit_{huge,giant}_patch14``; mini, 128 wide, is for studies on a CPU, the others are timm's. Any input
    whose sides are multiples of the patch size is accepted; the position embedding, made for ``img_size``, is resized
    (bicubic) as ``position_resize`` says, see :class:`Vit`. ``graying`` puts Token Graying before the patch embedding,
    ``temperature`` a factor on the logits of every block's attention, ``skip_weight`` the first weight of its skips;
    ``layer_scale`` is timm's ``init_values``; ``attention`` "entmax15" takes :func:`dinoskip.models.entmax.entmax15`.
    There is no classifier unless ``num_classes`` asks for one; every argument of timm's VisionTransformer may be given.
    Raises :class:`ConfigError` for an unknown name, a size that is not whole patches, LayerScale without skips.
    """
    arguments = vit_arguments(name, skip)
    patch = arguments["patch_size"]
    if img_size % patch:
        raise ConfigError(f"img_size={img_size} is not a multiple of the patch size {patch} of {name}")
    arguments |= {"img_size": img_size, "num_classes": 0, "position_resize": position_resize}
    if depth is not None:
        arguments["depth"] = depth
    if layer_scale is not None:
        arguments["init_values"] = layer_scale
    if attention == "entmax15":
        arguments["attn_layer"] = EntmaxAttention
    if graying is not None:
        arguments["embed_layer"] = partial(GrayingPatchEmbed, graying=graying)
    model = Vit(**(arguments | timm_kwargs))
    if temperature is not None:
        temper_(model.blocks, temperature)
    if skip_weight is not None:
        weigh_skips_(model, skip_weight.weights(skip_weight.first, len(model.blocks)))
    return model


def from_config(config: VitConfig, **timm_kwargs: Any) -> Vit:
    """:func:`create_model` for a configuration; with the weights that skips have before training."""
    config = config.first
    shape = {field: getattr(config, field) for field in VitConfig.model_fields if field != "name"}
    return create_model(config.name, **shape, **timm_kwargs)
