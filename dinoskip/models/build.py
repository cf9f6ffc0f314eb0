"""The ViTs of this project by name: their sizes, the settings that fix one, and how it is built."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from dinoskip.errors import ConfigError, did_you_mean
from dinoskip.models.entmax import EntmaxAttention
from dinoskip.models.graying import GrayingPatchEmbed
from dinoskip.models.skip_weight import weigh_skips_
from dinoskip.models.temperature import temper_
from dinoskip.models.timm_networks import network_of
from dinoskip.models.token_norms import TokenNorm
from dinoskip.models.vit import Block, Vit
from dinoskip.settings.vit_config import (
    SHAPES,
    AttentionRows,
    GrayingConfig,
    PositionResize,
    Skip,
    SkipWeight,
    TemperatureConfig,
    VitConfig,
    layout_of,
)


def list_models() -> tuple[str, ...]:
    """Names of the networks that :func:`create_model` builds."""
    return tuple(SHAPES)


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
    registers: int = 0,
    cls_norms: bool = False,
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
    ``registers`` are tokens without a position, ``cls_norms`` asks for :class:`dinoskip.models.token_norms.TokenNorm`,
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
    if registers:
        arguments |= {"reg_tokens": registers, "no_embed_class": True}
    if cls_norms:
        # eps of the LayerNorm in its place
        arguments["norm_layer"] = partial(TokenNorm, eps=1e-6, prefix=1 + registers)
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
    if config.timm_name is not None:  # whoever reads blocks of ours has refused the name before
        return cast(Vit, network_of(config, **timm_kwargs))
    shape = {field: getattr(config, field) for field in VitConfig.model_fields if field != "name"}
    return create_model(config.name, **shape, **timm_kwargs)
