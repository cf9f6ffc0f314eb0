"""Our skipless models under timm's own factory: ``timm.create_model("skipless_vit_small_patch16_224")``.

As every timm entry point they have a 1000-class head unless ``num_classes=0``, and timm's default initialisation;
call :func:`dinoskip.init.skipless_` on the result. There are no published weights to download. Weights of ours become a
folder that ``timm.create_model("local-dir:FOLDER", pretrained=True)`` loads by :func:`save_timm_folder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import timm
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from dinoskip.errors import ConfigError
from dinoskip.io.files import write_json
from dinoskip.models.build import create_model
from dinoskip.models.export import save_weights
from dinoskip.settings.config import Config, dump
from dinoskip.settings.vit_config import (
    SHAPES,
    GrayingConfig,
    SkipWeight,
    TemperatureConfig,
    VitConfig,
    layout_of,
    timm_name,
)

# timm's _cfg of a ViT, but for mean and deviation: ours are trained with ImageNet's.
_CFG = {
    "num_classes": 1000,
    "input_size": (3, 224, 224),
    "pool_size": None,
    "crop_pct": 0.9,
    "interpolation": "bicubic",
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
    "first_conv": "patch_embed.proj",
    "classifier": "head",
    "license": "apache-2.0",
}

_SETTINGS: dict[str, type[Config]] = {
    "skip_weight": SkipWeight,
    "graying": GrayingConfig,
    "temperature": TemperatureConfig,
}
"""Arguments that are settings of ours; config.json has them as plain values."""

# timm finds the configurations of a module's entry points by this name
default_cfgs = generate_default_cfgs({timm_name(name): dict(_CFG) for name in SHAPES})


def _entry_point(name: str) -> Callable[..., VisionTransformer]:
    def build(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
        arguments = {"skip": False, "img_size": 224} | kwargs
        arguments |= {key: _SETTINGS[key].model_validate(arguments[key]) for key in _SETTINGS.keys() & arguments.keys()}
        features = {"out_indices": arguments.pop("out_indices", 3), "feature_cls": "getter"}
        model: VisionTransformer = build_model_with_cfg(
            partial(create_model, name), build.__name__, pretrained, feature_cfg=features, **arguments
        )
        return model

    build.__name__ = build.__qualname__ = timm_name(name)
    build.__doc__ = f"{name} without skip connections; other arguments as those of :func:`create_model`."
    return build


def _of_timm(config: VitConfig) -> dict[str, Any]:
    """Return timm's own description of a network that is as timm builds it for the size of its name."""
    pretrained = timm.get_pretrained_cfg(str(config.timm_name))
    size = [3, config.img_size, config.img_size]
    if not config.computes_as_timm or pretrained is None or list(pretrained.input_size) != size:
        raise ConfigError(
            f"a folder for timm: it builds no {config.name} of these skips, graying or image size",
            "write FILE.safetensors, which dinoskip reads, or a program",
        )
    statistics = {"mean": list(IMAGENET_DEFAULT_MEAN), "std": list(IMAGENET_DEFAULT_STD), "input_size": size}
    layers = {"first_conv": pretrained.first_conv, "classifier": pretrained.classifier}
    return {
        "architecture": config.timm_name,
        "num_classes": 0,
        "num_features": config.width,
        "pretrained_cfg": {"num_classes": 0, **statistics, **layers},
        "dinoskip": dump(config),
    }


def timm_config(config: VitConfig) -> dict[str, Any]:
    """Return the content of ``config.json`` from which timm's loader builds this model.

    A network with all skips is timm's own ViT. Any other has one of our registered names, which timm knows after
    ``import dinoskip.models`` and refuses as unknown before: it is never taken for a network with skips.
    """
    if config.timm_name is not None:
        return _of_timm(config)
    width, patch = SHAPES[config.name]
    arguments: dict[str, Any] = {"depth": config.blocks, "img_size": config.img_size, "dynamic_img_size": True}
    if config.layer_scale is not None:
        arguments["init_values"] = config.layer_scale
    if config.registers and config.computes_as_timm:
        arguments |= {"reg_tokens": config.registers, "no_embed_class": True}
    if config.computes_as_timm:
        architecture = "vit_base_patch16_224"
        _, heads, mlp_ratio = layout_of(config.name)
        arguments |= {"embed_dim": width, "num_heads": heads, "mlp_ratio": mlp_ratio, "patch_size": patch}
    else:
        architecture = timm_name(config.name)
        arguments |= {"skip": config.skip, "position_resize": config.position_resize}
        if config.attention != "softmax":
            arguments["attention"] = config.attention
        for name in ("registers", "cls_norms"):
            if getattr(config, name):
                arguments[name] = getattr(config, name)
        for name in ("skip_weight", "graying", "temperature"):
            setting = getattr(config, name)
            if setting is not None:
                arguments[name] = dump(setting)
    size = [3, config.img_size, config.img_size]
    statistics = {"mean": list(IMAGENET_DEFAULT_MEAN), "std": list(IMAGENET_DEFAULT_STD)}
    # crop_pct is that of timm's ViTs; mean and deviation are not, for ours are trained with ImageNet's.
    pretrained = {"input_size": size, "interpolation": "bicubic", "crop_pct": 0.9, "num_classes": 0, **statistics}
    layers = {"first_conv": "patch_embed.proj", "classifier": "head", "fixed_input_size": False}
    return {
        "architecture": architecture,
        "num_classes": 0,
        "num_features": width,
        "model_args": arguments,
        "pretrained_cfg": pretrained | layers,
        "dinoskip": dump(config),
    }


def save_timm_folder(
    folder: str | Path, state: Mapping[str, Tensor], config: VitConfig, info: Mapping[str, Any]
) -> None:
    """Write ``model.safetensors`` and ``config.json``, which timm's ``local-dir:`` (and a hub repository) loads.

    The weights file is one of ours, too: ``weights:FOLDER/model.safetensors``.
    """
    folder = Path(folder)
    save_weights(folder / "model.safetensors", state, config, info)
    write_json(folder / "config.json", timm_config(config))


for _name in SHAPES:
    register_model(_entry_point(_name))
