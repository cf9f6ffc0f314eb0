"""Our ViTs with all skips as a folder of Hugging Face transformers: the same tensors under ``ViTModel``'s names."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from dinoskip.errors import ConfigError, translate_write_errors
from dinoskip.io.files import write_json, write_text
from dinoskip.models.export import load_strict
from dinoskip.models.from_hf import transformers_library
from dinoskip.settings.vit_config import SHAPES, VitConfig, layout_of

LAYER_NORM_EPS = 1e-6  # timm's ViTs
_OUTSIDE = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
}
_IN_BLOCK = {
    "norm1": "layernorm_before",
    "attn.proj": "attention.o_proj",
    "norm2": "layernorm_after",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


_CARD = """---
library_name: transformers
pipeline_tag: image-feature-extraction
---
# {name}

A ViT of {blocks} blocks, trained at {size} × {size} pixels, for frozen features of images:

```python
from transformers import AutoImageProcessor, AutoModel

processor = AutoImageProcessor.from_pretrained("FOLDER")
model = AutoModel.from_pretrained("FOLDER")
features = model(**processor(image, return_tensors="pt"), output_hidden_states=True)
features.hidden_states[n]  # of block n: the CLS token, then the patches in raster order, before the last norm
features.pooler_output  # the CLS token after the last norm
```

The network was trained without a pooler. The one in this folder is the identity, so that transformers makes none at
random; `add_pooling_layer=False` leaves it out.
"""


def transformers_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of timm's ViT under the names of ``transformers.ViTModel``; qkv is split into its three."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        place, _, kind = name.rpartition(".")
        if name in _OUTSIDE:
            renamed[_OUTSIDE[name]] = tensor
        elif place in _OUTSIDE:
            renamed[f"{_OUTSIDE[place]}.{kind}"] = tensor
        else:
            _, index, layer = place.split(".", 2)
            if layer == "attn.qkv":
                for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                    renamed[f"layers.{index}.attention.{letter}_proj.{kind}"] = part
            else:
                renamed[f"layers.{index}.{_IN_BLOCK[layer]}.{kind}"] = tensor
    return renamed


def _identity_pooler(width: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """A pooler that returns the CLS token: transformers would make a missing one at random, new in every process."""
    return {"pooler.dense.weight": torch.eye(width, dtype=dtype), "pooler.dense.bias": torch.zeros(width, dtype=dtype)}


def save_transformers_folder(folder: str | Path, state: Mapping[str, Tensor], config: VitConfig) -> None:
    """Write what ``transformers.AutoModel.from_pretrained(FOLDER)`` loads, and the statistics of its images.

    At the size that it was trained for features equal ours; at others transformers resizes positions its own way.
    Raises :class:`ConfigError` for a network that transformers has no class for: without a skip, or with weights of
    skips, Token Graying or a temperature.
    """
    special = {name: getattr(config, name) for name in ("skip_weight", "layer_scale", "graying", "temperature")}
    lacking = [f"skip={config.skip}".lower()] if config.skip is not True else []
    lacking += [f"attention={config.attention}"] * (config.attention != "softmax")
    lacking += [name for name in ("registers", "cls_norms") if getattr(config, name)]
    lacking += [name for name, value in special.items() if value is not None]
    lacking += [f"name={config.name}"] if config.timm_name is not None else []
    if lacking:
        raise ConfigError(
            f"{folder}: transformers has no ViT with {', '.join(lacking)}", "write a folder for timm: --layout timm"
        )
    transformers = transformers_library(str(folder))
    width, patch = SHAPES[config.name]
    _, heads, mlp_ratio = layout_of(config.name)
    settings: dict[str, Any] = {
        "hidden_size": width, "num_hidden_layers": config.blocks, "num_attention_heads": heads,
        "intermediate_size": round(mlp_ratio * width), "image_size": config.img_size, "patch_size": patch,
        "layer_norm_eps": LAYER_NORM_EPS, "qkv_bias": True, "hidden_act": "gelu", "pooler_act": "linear",
    }  # fmt: skip
    model = transformers.ViTModel(transformers.ViTConfig(**settings))
    dtype = next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), torch.float32)
    load_strict(model.to(dtype), transformers_state(state) | _identity_pooler(width, dtype), folder)
    folder = Path(folder)
    with translate_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder, ignore_cleanup_errors=True) as scratch:
            model.save_pretrained(scratch)
            for path in sorted(Path(scratch).iterdir()):
                path.chmod(0o644)  # a weights file is made for its owner alone
                path.replace(folder / path.name)
    write_json(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": config.img_size, "width": config.img_size},
            "resample": 3,  # Pillow's bicubic
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(IMAGENET_DEFAULT_MEAN),
            "image_std": list(IMAGENET_DEFAULT_STD),
        },
    )
    write_text(folder / "README.md", _CARD.format(name=config.name, blocks=config.blocks, size=config.img_size))
