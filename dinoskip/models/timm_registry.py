"""Our skipless models under timm's own factory: ``timm.create_model("skipless_vit_small_patch16_224")``.

As every timm entry point they have a 1000-class head unless ``num_classes=0``, and timm's default initialisation;
call :func:`dinoskip.init.skipless_` on the result. There are no published weights to download.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer

from dinoskip.models.vit import SHAPES, vit_arguments

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

# timm finds the configurations of a module's entry points by this name
default_cfgs = generate_default_cfgs({f"skipless_{name}_224": dict(_CFG) for name in SHAPES})


def _entry_point(name: str) -> Callable[..., VisionTransformer]:
    def build(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
        arguments = vit_arguments(name, skip=False) | {"img_size": 224} | kwargs
        features = {"out_indices": arguments.pop("out_indices", 3), "feature_cls": "getter"}
        model: VisionTransformer = build_model_with_cfg(
            VisionTransformer, build.__name__, pretrained, feature_cfg=features, **arguments
        )
        return model

    build.__name__ = build.__qualname__ = f"skipless_{name}_224"
    build.__doc__ = f"{name} without skip connections."
    return build


for _name in SHAPES:
    register_model(_entry_point(_name))
