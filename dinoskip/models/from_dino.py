"""Files of facebookresearch/dino, ``dino:``: full checkpoints and the plain state_dict of one of its ViTs."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dinoskip.errors import ConfigError, WeightsError
from dinoskip.files import load_torch_file
from dinoskip.models.adapter import LoadedModel
from dinoskip.models.build import PATCHES, SHAPES, WIDTHS, create_model
from dinoskip.models.export import load_strict, strip_prefixes


def checked_role(role: str) -> str:
    """``role`` itself, or :class:`ConfigError` if it is neither teacher nor student."""
    if role not in ("teacher", "student"):
        raise ConfigError(f"role {role!r} is none of teacher, student")
    return role


def read_dino_state(path: Path, role: str) -> dict[str, Tensor]:
    """The backbone's tensors of a DINO file under canonical names; projection-head tensors left out by rule."""
    # full checkpoints hold their command line as a Namespace: a plain container, but not on torch's own list
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = load_torch_file(path)
    state = content.get(role, content) if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping) or not state or not all(isinstance(v, Tensor) for v in state.values()):
        held = ", ".join(map(str, list(content)[:6])) if isinstance(content, Mapping) else type(content).__name__
        raise WeightsError(f"{path}: neither a DINO checkpoint with {role!r} nor a state_dict; it holds: {held}")
    tensors = strip_prefixes(state, path)
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}


def _architecture(state: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """Model name, depth and image size read from the shapes."""
    patch, position = state.get("patch_embed.proj.weight"), state.get("pos_embed")
    blocks = [int(match[1]) for name in state if (match := re.match(r"blocks\.(\d+)\.", name))]
    if patch is None or position is None or patch.ndim != 4 or position.ndim != 3 or not blocks:
        raise WeightsError(f"{path}: not a DINO ViT: no patch_embed.proj.weight, pos_embed or blocks among its tensors")
    width, side = patch.shape[0], patch.shape[-1]
    sizes = {width: size for size, width in WIDTHS.items()}
    grid = math.isqrt(position.shape[1] - 1)
    if set(blocks) != set(range(len(set(blocks)))):
        raise WeightsError(f"{path}: not a DINO ViT: its blocks are not numbered from 0 without gaps")
    name = f"vit_{sizes.get(width)}_patch{side}"
    if name not in SHAPES or grid * grid != position.shape[1] - 1:
        raise WeightsError(
            f"{path}: width {width}, patch {side}, {position.shape[1]} positions: not one of the ViTs known here",
            f"widths {', '.join(map(str, sizes))}; patches {', '.join(map(str, PATCHES))}; square position embedding",
        )
    return {"name": name, "depth": max(blocks) + 1, "img_size": grid * side}


def load_dino(file: str, *, role: str = "teacher") -> LoadedModel:
    """Build ``dino:FILE.pth``: a full checkpoint's ``role``, or a plain state_dict. Raises :class:`WeightsError`."""
    path = Path(file)
    state = read_dino_state(path, checked_role(role))
    model = create_model(**_architecture(state, path), position_resize="dino", weight_init="skip")
    load_strict(model, state, path)
    return LoadedModel(model)
