"""A checkpoint of any ViT by its path: the architecture is read from names and shapes, and timm's network built.

What shapes cannot tell is assumed and said: heads of 64 channels (``heads=N``), GELU (``act=quick_gelu``), LayerNorm's
epsilon (1e-6; CLIP 1e-5), and image statistics (ImageNet's; CLIP's own).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.data import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from timm.layers import LayerNorm, SwiGLUPacked
from torch import Tensor, nn

from dinoskip.console import log
from dinoskip.errors import ConfigError, WeightsError, first_line
from dinoskip.files import read_tensor_header
from dinoskip.models.adapter import LoadedModel
from dinoskip.models.export import build_from_weights, check_fit, model_shapes
from dinoskip.models.from_hf import load_hf
from dinoskip.models.from_timm import load_timm
from dinoskip.models.vit import Vit
from dinoskip.models.wrappings import Tower, find_tower, read_content
from dinoskip.specs import METADATA_KEY, checked_role
from dinoskip.vit_config import HEAD_DIM, MAX_DEPTH, SHAPES, WIDTHS, VitConfig, layout_of

NOT_BACKBONE = re.compile(
    r"(head|heads|head_dist|fc|classifier|pre_logits|attn_pool|projector|predictor|dino_head|ibot_head)\."
    r"|mask_token$|masked_embed$|decoder|local_cls_norm\.|proj$"
)
"""What files hold within the network's own prefix and no feature depends on."""
HEADS = {(1152, 27): 16, (1280, 32): 16, (1408, 40): 16, (1664, 48): 16}
"""Heads by width and depth of published ViTs whose heads have another width than 64 channels."""
LAYER_NORM_EPS = 1e-6
DINOV3 = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge_plus"}
_CLIP = (
    ("conv1.", "patch_embed.proj."),
    ("positional_embedding", "pos_embed"),
    ("class_embedding", "cls_token"),
    ("transformer.resblocks.", "blocks."),
    ("ln_pre.", "norm_pre."),
    ("ln_post.", "norm."),
    (".ln_", ".norm"),
    (".in_proj_", ".qkv."),
    (".out_proj.", ".proj."),
    (".c_fc.", ".fc1."),
    (".c_proj.", ".fc2."),
)
_PLAIN = (
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # DINOv2 trained in chunks of blocks
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"\.gamma_([12])$", r".ls\1.gamma"),  # DeiT III, BEiT
)


def timm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A ViT's tensors under the names of timm's VisionTransformer, parts that are not the backbone left out.

    CLIP's names, those of DINOv2 (registers, SwiGLU, chunks of blocks) and DeiT's (distillation token) become timm's.
    """
    named = {_timm_name(name): tensor for name, tensor in tensors.items()}
    named = {name: tensor for name, tensor in named.items() if not NOT_BACKBONE.match(name)}
    if "class_embedding" in tensors:
        named["cls_token"] = named["cls_token"].reshape(1, 1, -1)
        named["pos_embed"] = named["pos_embed"][None]
    if "register_tokens" in named and "pos_embed" in named:  # the CLS token has a position, registers have none
        named["reg_token"] = named.pop("register_tokens")
        named["cls_token"] = named["cls_token"] + named["pos_embed"][:, :1]
        named["pos_embed"] = named["pos_embed"][:, 1:]
    if "dist_token" in named:  # after CLS, with a position: what timm calls a register
        named["reg_token"] = named.pop("dist_token")
    return named


def _timm_name(name: str) -> str:
    if name.startswith(("conv1.", "positional_embedding", "class_embedding", "transformer.", "ln_p")):
        for old, new in _CLIP:
            name = name.replace(old, new)
        return name
    for pattern, new in _PLAIN:
        name = re.sub(pattern, new, name)
    return name


def architecture(state: Mapping[str, Tensor], where: str | Path, heads: int | None = None) -> dict[str, Any]:
    """Arguments of timm's VisionTransformer for the tensors of :func:`timm_names`, from their names and shapes.

    Raises :class:`WeightsError` that says what is missing, or what no ViT has.
    """
    needed = ("patch_embed.proj.weight", "pos_embed", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc2.weight")
    missing = [name for name in needed if name not in state]
    if missing:
        raise WeightsError(
            f"{where}: not a ViT that its tensors tell: no {', '.join(missing)}",
            "name its architecture: timm:NAME,file=FILE, or hf:FOLDER with its config.json",
        )
    patch, positions = state["patch_embed.proj.weight"], state["pos_embed"]
    if patch.ndim != 4 or patch.shape[1] != 3 or patch.shape[2] != patch.shape[3] or positions.ndim != 3:
        raise WeightsError(
            f"{where}: patch embedding {tuple(patch.shape)} and positions {tuple(positions.shape)} are not those of a "
            "ViT on RGB images with square patches"
        )
    width, side = int(patch.shape[0]), int(patch.shape[-1])
    last = state["blocks.0.mlp.fc2.weight"]
    if last.ndim != 2 or last.shape[0] != width or not side:
        raise WeightsError(f"{where}: not a ViT: blocks.0.mlp.fc2.weight is {tuple(last.shape)} at width {width}")
    hidden = int(state["blocks.0.mlp.fc2.weight"].shape[-1])
    gated = state.get("blocks.0.mlp.fc1.weight", patch).shape[0] == 2 * hidden
    depth = _depth(state, where)
    registers = int(state["reg_token"].shape[1]) if "reg_token" in state else 0
    prefix, grid = _grid(int(positions.shape[1]), int("cls_token" in state), registers, where)
    built: dict[str, Any] = {
        "patch_size": side,
        "img_size": grid * side,
        "embed_dim": width,
        "depth": depth,
        "num_heads": heads or _heads(state, width, depth, where),
        "mlp_ratio": (2 * hidden if gated else hidden) / width,
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
        "proj_bias": "blocks.0.attn.proj.bias" in state,
        "qk_norm": "blocks.0.attn.q_norm.weight" in state,
        "class_token": "cls_token" in state,
        "reg_tokens": registers,
        "no_embed_class": prefix == 0 and "cls_token" in state,
        "pre_norm": "norm_pre.weight" in state,
        "final_norm": "norm.weight" in state or "fc_norm.weight" in state,
        "fc_norm": "fc_norm.weight" in state,
        "global_pool": "token" if "cls_token" in state else "avg",
    }
    if width % built["num_heads"]:
        raise WeightsError(f"{where}: width {width} is not a multiple of {heads} heads")
    if "blocks.0.ls1.gamma" in state:
        built["init_values"] = 1e-5
    if gated:
        built |= {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU}
    return built


def architecture_of(path: Path, role: str | None, prefix: str | None) -> dict[str, Any]:
    """:func:`architecture` of the ViT in a torch file, from its shapes; no values are read.

    Raises :class:`WeightsError` for a file that is unreadable, has no ViT or one under transformers' names.
    """
    tower = find_tower(read_content(path, shapes_only=True), path, role, prefix)
    return architecture(timm_names(tower.tensors), path)


def _depth(state: Mapping[str, Tensor], where: str | Path) -> int:
    blocks = {int(match[1]) for name in state if (match := re.match(r"blocks\.(\d+)\.", name))}
    if len(blocks) > MAX_DEPTH or blocks != set(range(len(blocks))):
        raise WeightsError(f"{where}: not a ViT: its blocks are not numbered from 0 without gaps")
    return len(blocks)


def _grid(positions: int, class_tokens: int, registers: int, where: str | Path) -> tuple[int, int]:
    """How many of the positions are of tokens before the patches, and the side of the patches' grid."""
    for prefix in dict.fromkeys((0, class_tokens + registers)):
        side = math.isqrt(positions - prefix) if positions > prefix else 0
        if side and side * side == positions - prefix:
            return prefix, side
    raise WeightsError(f"{where}: {positions} positions are no square of patches, with or without a class token")


def _heads(state: Mapping[str, Tensor], width: int, depth: int, where: str | Path) -> int:
    """Number of heads: exact where queries are normalised by head, else of 64 channels or a published network's."""
    norm = state.get("blocks.0.attn.q_norm.weight")
    head = HEAD_DIM if norm is None else int(norm.shape[0])
    if norm is None and (width, depth) in HEADS:
        return HEADS[width, depth]
    if width % head:
        raise WeightsError(f"{where}: width {width} is no multiple of {head}: how many heads?", "add ,heads=N")
    return width // head


def _concluded(path: Path, tower: Tower, built: Mapping[str, Any], given: bool, positions: str) -> str:
    """One line: the network, where it was found, what was assumed and what was left out."""
    width, heads = built["embed_dim"], built["num_heads"]
    exact = given or built["qk_norm"]
    source = "" if exact else " (width / 64)" if width == heads * HEAD_DIM else " (as published ViTs of this size)"
    left = [name for name in tower.tensors if NOT_BACKBONE.match(_timm_name(name))]
    facts = [
        f"ViT of width {width}",
        f"{built['depth']} blocks",
        f"{heads} heads{source}",
        f"patches of {built['patch_size']}",
        f"{built['img_size']} pixels",
        "class token" if built["class_token"] else "no class token",
    ]
    facts += [f"{built['reg_tokens']} registers"] if built["reg_tokens"] else []
    facts += ["LayerScale"] if "init_values" in built else []
    facts += ["SwiGLU"] if "mlp_layer" in built else []
    facts += ["q/k norm"] if built["qk_norm"] else []
    facts.append(f"positions resized as {'DINO' if positions == 'dino' else 'timm'} does")
    text = f"{path.name}: {', '.join(facts)}"
    text += f"; found under {tower.taken}" if tower.taken else ""
    others = [*left, *tower.outside]
    names = dict.fromkeys(name.split(".")[0] for name in others)
    shown = ", ".join(list(names)[:4]) + (", ..." if len(names) > 4 else "")
    return text + (f"; {len(others)} tensors left out ({shown})" if others else "")


def load_vit_file(
    file: str,
    *,
    role: str | None = None,
    prefix: str | None = None,
    heads: int | None = None,
    act: str | None = None,
) -> LoadedModel:
    """Build the network of ``FILE`` (torch or safetensors) and say in one line what was concluded.

    ``role`` ("teacher" | "student"): which copy of the weights, where there are two; ``prefix``: of which tensors,
    where there are several networks. ``heads`` and ``act`` (a name of timm's activations) for what no shape tells.
    Raises :class:`WeightsError` for a file that is unreadable or not all of a ViT.
    """
    path = Path(file)
    if is_ours(path):
        model, info = build_from_weights(path)
        return LoadedModel(model, info)
    tower = find_tower(read_content(path), path, None if role is None else checked_role(role), prefix)
    if any(name.startswith("embeddings.") for name in tower.tensors):
        return _of_transformers(path)
    if "storage_tokens" in tower.tensors:
        return _dinov3(path, tower)
    try:
        state = timm_names(tower.tensors)
        built = architecture(state, path, heads)
    except (KeyError, IndexError, RuntimeError) as error:
        reason = first_line(error)
        raise WeightsError(f"{path}: not a ViT: a tensor is missing or has no ViT's shape: {reason}") from error
    clip = "class_embedding" in tower.tensors
    if act is not None:
        built["act_layer"] = act
    if clip:
        built["norm_layer"] = partial(LayerNorm, eps=1e-5)
    plain = built["class_token"] and not built["reg_tokens"] and not built["no_embed_class"]
    positions: Any = "dino" if plain else "timm"
    try:
        with torch.device("meta"):  # a damaged file takes no memory before it is refused
            model = Vit(**built, num_classes=0, dynamic_img_size=True, weight_init="skip", position_resize=positions)
    except (ValueError, TypeError, AssertionError, KeyError) as error:
        raise ConfigError(f"{path}: timm cannot build it: {error}", "check heads and act") from error
    check_fit(model.state_dict(), state, path)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, assign=True)
    text = _concluded(path, tower, built, heads is not None, positions)
    log.info("%s", text)
    mean, std = (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD) if clip else (None, None)
    return LoadedModel(model, {"read_as": text}, mean, std)


def is_ours(path: str | Path) -> bool:
    """Whether a file's header says what network of ours it is for."""
    path = Path(path)
    if path.suffix == ".safetensors":
        return METADATA_KEY in read_tensor_header(path).metadata
    if path.suffix:
        return False
    try:  # weights files of ours may have any name
        return METADATA_KEY in read_tensor_header(path).metadata
    except WeightsError:
        return False


def as_ours(model: Any, where: str | Path) -> VitConfig:
    """The configuration of ours whose tensors are the model's; :class:`ConfigError` where there is none."""
    refusal = ConfigError(f"{where}: none of the networks of `dinoskip models list`", "use the file as it is")
    if not isinstance(model, Vit):
        raise refusal
    sizes = {width: size for size, width in WIDTHS.items()}
    name: Any = f"vit_{sizes.get(model.embed_dim)}_patch{model.patch_embed.patch_size[0]}"
    if name not in SHAPES:
        raise refusal
    scaled = 1e-5 if "blocks.0.ls1.gamma" in model.state_dict() else None
    first: Any = model.blocks[0]
    config = VitConfig(
        name=name,
        depth=len(model.blocks),
        img_size=model.patch_embed.img_size[0],
        layer_scale=scaled,
        position_resize=model.position_resize,
    )
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    same = first.attn.num_heads == layout_of(name)[1] and isinstance(first.mlp.act, nn.GELU)
    if shapes != model_shapes(config) or not same or first.norm1.eps != LAYER_NORM_EPS:
        raise refusal
    return config


def _dinov3(path: Path, tower: Tower) -> LoadedModel:
    """Rotary positions: timm's Eva, by width; its own rules rename and check the tensors."""
    width = int(tower.tensors["cls_token"].shape[-1])
    if width not in DINOV3:
        raise WeightsError(f"{path}: a DINOv3 ViT of width {width} is not known here", "timm:NAME,file=FILE")
    name = f"vit_{DINOV3[width]}_patch16_dinov3_qkvb"
    log.info("%s: DINOv3, timm:%s", path.name, name)
    return load_timm(name, file=str(path), depth=_depth(timm_names(tower.tensors), path))


def _of_transformers(path: Path) -> LoadedModel:
    """transformers keeps heads and much else in config.json beside the weights."""
    if path.name != "model.safetensors" or not (path.parent / "config.json").is_file():
        raise WeightsError(
            f"{path}: names of Hugging Face transformers, whose architecture is in config.json",
            "keep both in one folder, the weights as model.safetensors, and write hf:./FOLDER",
        )
    return load_hf(str(path.parent.resolve()))
