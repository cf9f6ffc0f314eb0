"""Where backbones come from: ``load_backbone`` turns a spec into a :class:`Backbone`.

``run:DIR``                    newest checkpoint of a run, its teacher, or student where it has none (or ``role=...``)
``weights:FILE.safetensors``   a weights file of ours
``dino:FILE.pth``              a facebookresearch/dino checkpoint, or the plain state_dict of one of its ViTs
``timm:NAME[,key=value...]``   any plain timm ViT; ``pretrained=false`` needs no network
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from dinoskip.errors import ConfigError, WeightsError, did_you_mean
from dinoskip.files import load_torch_file
from dinoskip.models.backbone import Backbone, LayerFeatures
from dinoskip.models.export import (
    build_from_weights,
    exported_weights,
    load_strict,
    newest_checkpoint,
    strip_prefixes,
)
from dinoskip.models.vit import PATCHES, WIDTHS, create_model
from dinoskip.randomness import derive

__all__ = ["Backbone", "LayerFeatures", "load_backbone"]


def load_backbone(
    spec: str, *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, **kw: Any
) -> Backbone:
    """Load a frozen backbone, see the module's docstring for ``spec``.

    ``kw``: ``role`` ("teacher" | "student") for ``run:`` and ``dino:``; arguments of timm's factory, and ``seed`` of
    the random weights when ``pretrained`` is false, for ``timm:`` (those written in the spec win).
    Raises :class:`ConfigError` for a spec or model that is not understood and :class:`WeightsError` for weights that
    are missing, damaged, do not fit or cannot be downloaded.
    """
    kind, colon, rest = spec.partition(":")
    loaders: dict[str, Callable[..., tuple[VisionTransformer, dict[str, Any]]]] = {
        "run": _from_run,
        "weights": build_from_weights,
        "dino": _from_dino,
        "timm": _from_timm,
    }
    if not colon or kind not in loaders or not rest:
        near = did_you_mean(kind, loaders, after=":...")
        hint = f"{near or ''} write run:DIR, weights:FILE.safetensors, dino:FILE.pth or timm:NAME".lstrip()
        raise ConfigError(f"backbone {spec!r} is not understood", hint)
    model, info = loaders[kind](rest, **kw)
    return Backbone(model, spec, info).to(device, dtype)


def _checked_role(role: str) -> str:
    if role not in ("teacher", "student"):
        raise ConfigError(f"role {role!r} is none of teacher, student")
    return role


def _from_run(folder: str, *, role: str | None = None) -> tuple[VisionTransformer, dict[str, Any]]:
    checkpoint = newest_checkpoint(folder)
    if role is not None:
        return build_from_weights(checkpoint / f"{_checked_role(role)}.safetensors")
    return build_from_weights(exported_weights(checkpoint))


# --- timm --------------------------------------------------------------------------------------------


def _value(text: str) -> Any:
    """An option's value: true/false/null in any case, a number, else the text itself."""
    lowered = text.lower()
    try:
        return json.loads("null" if lowered == "none" else lowered)
    except ValueError:
        return text


def _parse_options(text: str) -> tuple[str, dict[str, Any]]:
    name, *options = text.split(",")
    parsed = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"timm:{text}: option {option!r} is not key=value")
        parsed[key.strip()] = _value(value.strip())
    return name.strip(), parsed


def _from_timm(text: str, **kw: Any) -> tuple[VisionTransformer, dict[str, Any]]:
    name, options = _parse_options(text)
    options = {"pretrained": True, "num_classes": 0, "dynamic_img_size": True} | kw | options
    seed = int(options.pop("seed", 0))
    architecture = name.split("/")[-1].split(".")[0]
    if "/" not in name and not timm.is_model(architecture):
        raise ConfigError(f"timm has no model {architecture!r}", did_you_mean(architecture, timm.list_models()))
    try:
        with torch.random.fork_rng(devices=[]):  # random weights are the same in every process
            torch.manual_seed(derive(seed, "timm", architecture))
            model: Any = timm.create_model(name, **options)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        wrong = isinstance(error, TypeError | AssertionError) or reason.startswith(("Unknown model", "Invalid pretr"))
        if wrong or not options["pretrained"]:
            hint = "check the name, its tag and the options; only timm's plain vision transformers are supported"
            raise ConfigError(f"timm:{text}: timm cannot build it: {reason}", hint) from error
        raise WeightsError(
            f"timm:{text}: pretrained weights cannot be loaded: {reason}",
            "they are downloaded once, which needs network; or add ,pretrained=false for random weights",
        ) from error
    return model, {}


# --- facebookresearch/dino ---------------------------------------------------------------------------


def _dino_state(path: Path, role: str) -> dict[str, Tensor]:
    """The backbone's tensors of a DINO file under canonical names; projection-head tensors left out by rule."""
    # full checkpoints hold their command line as a Namespace: a plain container, but not on torch's own list
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = load_torch_file(path)
    state = content.get(role, content) if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping) or not state or not all(isinstance(v, Tensor) for v in state.values()):
        found = ", ".join(map(str, list(content)[:6])) if isinstance(content, Mapping) else type(content).__name__
        raise WeightsError(f"{path}: neither a DINO checkpoint with {role!r} nor a state_dict; it holds: {found}")
    tensors = strip_prefixes(state, path)
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}


def _dino_architecture(state: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """Model name, depth and image size read from the shapes."""
    patch, position = state.get("patch_embed.proj.weight"), state.get("pos_embed")
    blocks = [int(found[1]) for name in state if (found := re.match(r"blocks\.(\d+)\.", name))]
    if patch is None or position is None or patch.ndim != 4 or position.ndim != 3 or not blocks:
        raise WeightsError(f"{path}: not a DINO ViT: no patch_embed.proj.weight, pos_embed or blocks among its tensors")
    width, side = patch.shape[0], patch.shape[-1]
    sizes = {width: size for size, width in WIDTHS.items()}
    grid = math.isqrt(position.shape[1] - 1)
    if width not in sizes or side not in PATCHES or grid * grid != position.shape[1] - 1:
        raise WeightsError(
            f"{path}: width {width}, patch {side}, {position.shape[1]} positions: not one of the ViTs known here",
            f"widths {', '.join(map(str, sizes))}; patches {', '.join(map(str, PATCHES))}; square position embedding",
        )
    return {"name": f"vit_{sizes[width]}_patch{side}", "depth": max(blocks) + 1, "img_size": grid * side}


def _from_dino(file: str, *, role: str = "teacher") -> tuple[VisionTransformer, dict[str, Any]]:
    path = Path(file)
    state = _dino_state(path, _checked_role(role))
    model = create_model(**_dino_architecture(state, path), weight_init="skip")
    load_strict(model, state, path)
    return model, {}
