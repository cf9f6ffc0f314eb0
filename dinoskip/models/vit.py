"""Skip and skipless ViTs: timm's VisionTransformer with a block whose two additions can be left out.

Shapes: images (B, 3, H, W), tokens (B, N, C) with the CLS token first and the patches in raster order.
The skipless block is ``x = attn(norm1(x)); x = mlp(norm2(x))`` (Cutting the Skip, sec. 3: pre-norm kept, only the
two ``x +`` removed). Parameter names and shapes are timm's, so weights move freely between the two.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from timm.layers import Attention
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.config import Config
from dinoskip.errors import ConfigError, did_you_mean
from dinoskip.models.graying import GrayingConfig, GrayingPatchEmbed

PositionResize = Literal["timm", "dino"]
Skip = bool | Literal["attention", "mlp"]
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
]
WIDTHS = {"mini": 128, "tiny": 192, "small": 384, "base": 768}
HEAD_DIM = 64
DEPTH = 12
MAX_DEPTH = 1000  # blocks: what a damaged or hostile weights file may ask for at most
MAX_SIZE = 16_384  # pixels
PATCHES = (8, 14, 16)
SHAPES: dict[str, tuple[int, int]] = {
    f"vit_{size}_patch{patch}": (width, patch) for size, width in WIDTHS.items() for patch in PATCHES
}


def list_models() -> tuple[str, ...]:
    """Names that :func:`create_model` knows."""
    return tuple(SHAPES)


class Block(TimmBlock):
    """timm's pre-norm block in which the attention's and the MLP's skip connection can each be left out.

    With both skips it computes exactly what timm's block does. Drop path needs a skip to fall back on, so it exists
    only where one is kept. LayerScale without a skip shrinks the tokens below LayerNorm's epsilon and is refused.
    """

    def __init__(self, *args: Any, skip: Skip = True, **kwargs: Any) -> None:
        init_values = kwargs.get("init_values")
        if init_values and skip is not True:
            raise ConfigError(
                f"init_values={init_values}: LayerScale without a skip connection erases the signal",
                "leave init_values out for skipless models",
            )
        super().__init__(*args, **kwargs)
        self.skip_attention = skip is True or skip == "attention"
        self.skip_mlp = skip is True or skip == "mlp"
        if not self.skip_attention:
            self.drop_path1 = nn.Identity()
        if not self.skip_mlp:
            self.drop_path2 = nn.Identity()

    def forward(self, x: Tensor, **masks: Any) -> Tensor:  # type: ignore[override]
        """Map tokens (B, N, C) to tokens (B, N, C); ``masks`` go to the attention unchanged."""
        attended: Tensor = self.drop_path1(self.ls1(self.attn(self.norm1(x), **masks)))
        x = x + attended if self.skip_attention else attended
        mixed: Tensor = self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
        return x + mixed if self.skip_mlp else mixed


class Vit(VisionTransformer):
    """timm's VisionTransformer with a choice of how positions are resized for other image sizes than its own.

    ``position_resize``: "timm" (antialiased bicubic) or "dino" (:func:`dino_positions`), which needs one CLS token and
    an embedding that covers it and the patches alone. Names and shapes of parameters are timm's.
    """

    def __init__(self, *args: Any, position_resize: PositionResize = "timm", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if position_resize == "dino" and not can_resize_as_dino(self):
            raise ConfigError("position_resize=dino needs positions of one CLS token and the patches alone")
        self.position_resize = position_resize

    def _pos_embed(self, x: Tensor) -> Tensor:
        return add_positions(self, x, self.position_resize)


def can_resize_as_dino(model: VisionTransformer) -> bool:
    """Whether a ViT's position embedding covers a CLS token and the patches alone, and sizes may vary."""
    plain = model.cls_token is not None and model.num_prefix_tokens == 1 and not model.no_embed_class
    return plain and model.pos_embed is not None and bool(model.dynamic_img_size)


def add_positions(model: VisionTransformer, patches: Tensor, position_resize: str) -> Tensor:
    """Tokens (B, N, C), prefix tokens first, from embedded patches (B, h, w, C) and a ViT's positions for h × w."""
    if position_resize == "timm":
        resized: Tensor = VisionTransformer._pos_embed(model, patches)
        return resized
    cls_token: Tensor = model.cls_token  # type: ignore[assignment]
    tokens = torch.cat((cls_token.expand(len(patches), -1, -1), patches.flatten(1, 2)), dim=1)
    dropped: Tensor = model.pos_drop(tokens + dino_positions(model.pos_embed, tuple(patches.shape[1:3])))  # type: ignore[arg-type]
    return dropped


class VitConfig(Config):
    """What fixes a model's parameters and function: enough to rebuild it from a weights file."""

    name: ModelName = Field("vit_small_patch16", description="size and patch of the ViT")
    skip: Skip = Field(True, description='true, false, or "attention" / "mlp" to keep only that skip')
    depth: int | None = Field(None, gt=0, le=MAX_DEPTH, description="number of blocks; 12 when not given")
    img_size: int = Field(
        224, gt=0, le=MAX_SIZE, description="side of the square images that the position embedding is made for"
    )
    graying: GrayingConfig | None = Field(None, description="Token Graying of the images before the patch embedding")

    position_resize: PositionResize = Field(
        "timm", description="how positions are resized for other image sizes: as timm or facebookresearch/dino does"
    )

    @model_serializer(mode="wrap")
    def _as_before_these_settings(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without Token Graying, and in weights files resized as timm does, written as before they were settings."""
        written: dict[str, Any] = dump(self)
        if self.graying is None:
            written.pop("graying", None)
        if type(self) is VitConfig and self.position_resize == "timm":
            written.pop("position_resize", None)
        return written

    @model_validator(mode="after")
    def _whole_patches(self) -> VitConfig:
        patch = SHAPES[self.name][1]
        if self.img_size % patch:
            raise ValueError(f"img_size {self.img_size} is not a multiple of the patch size {patch} of {self.name}")
        return self

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
    return {
        "patch_size": patch,
        "embed_dim": width,
        "num_heads": width // HEAD_DIM,
        "depth": DEPTH,
        "dynamic_img_size": True,
        "block_fn": partial(Block, skip=skip),
    }


def create_model(
    name: str,
    *,
    skip: Skip = True,
    depth: int | None = None,
    img_size: int = 224,
    graying: GrayingConfig | None = None,
    position_resize: PositionResize = "timm",
    **timm_kwargs: Any,
) -> Vit:
    """Build a ViT with timm's layout, initialised by timm's default; :func:`dinoskip.init.build_model` seeds it.

    ``name`` is ``vit_{mini,tiny,small,base}_patch{8,14,16}``; mini, 128 wide, is for studies on a CPU. Any input whose
    sides are multiples of the patch size is accepted; the position embedding, made for ``img_size``, is resized
    (bicubic) as ``position_resize`` says, see :class:`Vit`. ``graying`` puts Token Graying before the patch embedding.
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
    if graying is not None:
        arguments["embed_layer"] = partial(GrayingPatchEmbed, graying=graying)
    return Vit(**(arguments | timm_kwargs))


def from_config(config: VitConfig, **timm_kwargs: Any) -> Vit:
    """:func:`create_model` for a configuration."""
    shape = {field: getattr(config, field) for field in VitConfig.model_fields if field != "name"}
    return create_model(config.name, **shape, **timm_kwargs)


def embed(model: VisionTransformer, images: Tensor) -> Tensor:
    """Tokens (B, N, C) as the first block of any timm ViT receives them, from images (B, 3, H, W)."""
    tokens: Tensor = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
    return tokens


def dino_positions(positions: Tensor, grid: tuple[int, int]) -> Tensor:
    """Position embedding (1, 1 + N, C) for a grid (h, w), interpolated as facebookresearch/dino does: (1, 1 + h·w, C).

    Bicubic without antialiasing, by the scale factors (h + 0.1)/√N and (w + 0.1)/√N, which shifts every sample a
    little against resizing to (h, w); the stored embedding itself where the grid is the trained one. Computed in
    float32. Source: ``interpolate_pos_encoding`` of vision_transformer.py; DINOv2 without registers is the same.
    """
    count = positions.shape[1] - 1
    height, width = grid
    if count == height * width and height == width:
        return positions
    side = round(count**0.5)
    patches = positions[:, 1:].float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    scale = ((height + 0.1) / side, (width + 0.1) / side)
    resized = F.interpolate(patches, scale_factor=scale, mode="bicubic")
    flat = resized.permute(0, 2, 3, 1).flatten(1, 2).to(positions.dtype)
    return torch.cat((positions[:, :1], flat), dim=1)


def is_plain_attention(attention: nn.Module) -> bool:
    """Whether this is timm's fused-qkv softmax attention with nothing added: no q/k norm, output norm or gate."""
    if type(attention) is not Attention:
        return False
    extras = (attention.q_norm, attention.k_norm, getattr(attention, "norm", None))
    plain = all(extra is None or isinstance(extra, nn.Identity) for extra in extras)
    return plain and getattr(attention, "gate", None) is None


def attention_width(attention: nn.Module) -> int:
    """Summed width of the heads: rows of each of the query, key and value parts of the fused ``qkv`` weight."""
    weight = attention.get_submodule("qkv").get_parameter("weight")
    return int(weight.shape[0]) // 3


@torch.no_grad()
def head_factors(attention: nn.Module) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The papers' row-convention factors of a plain attention, in float64.

    Returns W^Q and W^K of shape (heads, C, dh), W^V (C, A) and W^O (A, C), where A = heads·dh, so that
    ``logits = x W^Q_i (x W^K_i)^T / sqrt(dh)`` and the attention's linear part is ``W^V W^O``.
    """
    weight = attention.get_submodule("qkv").get_parameter("weight").double()
    width, dim = attention_width(attention), weight.shape[1]
    heads = int(attention.num_heads)  # type: ignore[arg-type]
    query, key, value = weight.tensor_split(3)
    split = (heads, width // heads, dim)
    output = attention.get_submodule("proj").get_parameter("weight").double()
    return query.reshape(split).mT, key.reshape(split).mT, value.T, output.T
