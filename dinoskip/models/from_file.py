"""A checkpoint of any ViT by its path: the architecture is read from names and shapes, and timm's network built.

What shapes cannot tell is assumed and said: heads of 64 channels (``heads=N``), GELU (``act=quick_gelu``), LayerNorm's
epsilon (1e-6; CLIP 1e-5), how positions are resized (``pos_embed``), and image statistics (``mean``, ``std``). A grid
of patches that is no square is asked for (``grid``). For networks that are no plain ViT see
:mod:`dinoskip.models.known_networks`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import LayerNorm, SwiGLUPacked
from torch import Tensor, nn

from dinoskip.errors import ConfigError, WeightsError, first_line
from dinoskip.io.files import read_tensor_header
from dinoskip.models.adapter import LoadedModel
from dinoskip.models.export import build_from_weights, check_network, model_shapes
from dinoskip.models.from_hf import load_hf
from dinoskip.models.from_timm import load_timm
from dinoskip.models.image_statistics import CLIP, HALF, Statistics, beside
from dinoskip.models.known_networks import load_known
from dinoskip.models.position_grids import Grid, Positions, checked_grid, grid_of
from dinoskip.models.vit import Vit
from dinoskip.models.wrappings import NotInFile, Tower, find_tower, found_under, read_content, refuse_unread
from dinoskip.results.rows import normalisation_of
from dinoskip.settings.specs import METADATA_KEY, authors_positions, checked_role, is_timm_folder
from dinoskip.settings.vit_config import HEAD_DIM, MAX_DEPTH, SHAPES, WIDTHS, VitConfig, layout_of

NOT_BACKBONE = re.compile(
    r"(head|heads|head_dist|fc|classifier|pre_logits|attn_pool|projector|predictor|dino_head|ibot_head)\."
    r"|mask_token$|masked_embed$|decoder|local_cls_norm\.|proj$"
)
"""Names in files, within the network's own prefix, of tensors that no feature depends on."""
HEADS = {(1152, 27): 16, (1280, 32): 16, (1408, 40): 16, (1664, 48): 16}
"""Heads by width and depth of published ViTs whose heads have another width than 64 channels."""
LAYER_NORM_EPS = 1e-6  # of timm's ViTs, so of ours: a file of another is none of ours
DINOV3 = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge_plus"}  # of timm's names
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


def architecture(
    state: Mapping[str, Tensor],
    where: str | Path,
    heads: int | None = None,
    grid: Grid | None = None,
    told: int | None = None,
) -> dict[str, Any]:
    """Arguments of timm's VisionTransformer for the tensors of :func:`timm_names`, from their names and shapes.

    ``grid`` (rows, columns) of its positions, where they are of no square; ``told``: of how many tokens before the
    patches they are, where the file's own names tell. Raises :class:`WeightsError` that says what is missing, what no
    ViT has, or that a grid must be given.
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
    hidden = int(last.shape[-1])
    gated = state.get("blocks.0.mlp.fc1.weight", patch).shape[0] == 2 * hidden
    depth = _depth(state, where)
    registers = int(state["reg_token"].shape[1]) if "reg_token" in state else 0
    before = int("cls_token" in state) + registers
    prefix, (rows, columns) = grid_of(Positions(int(positions.shape[1]), before, registers, told), where, grid)
    built: dict[str, Any] = {
        "patch_size": side,
        "img_size": rows * side if rows == columns else (rows * side, columns * side),
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
    built |= {"init_values": 1e-5} if "blocks.0.ls1.gamma" in state else {}  # any number: the file's gammas replace it
    return built | ({"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU} if gated else {})


def architecture_of(path: Path, role: str | None, prefix: str | None, grid: Any = None) -> dict[str, Any]:
    """:func:`architecture` of the ViT in a torch file, from its shapes; no values are read.

    Raises :class:`WeightsError` for a file that is unreadable, has no ViT or one under transformers' names.
    """
    tower = find_tower(read_content(path, shapes_only=True), path, role, prefix)
    return architecture(timm_names(tower.tensors), path, None, checked_grid(grid, path), _told(tower.tensors))


def _told(tensors: Mapping[str, Tensor]) -> int | None:
    """Of how many tokens before the patches positions are, by names: the DINO authors', DeiT's; None where none tells.

    The CLS token's position of DINOv2 with registers has been added to it (:func:`timm_names`). DeiT III, whose CLS
    token has none, shares its names with BEiT, whose has one: a square tells them apart.
    """
    if "register_tokens" in tensors:
        return 0
    if "dist_token" in tensors:
        return 2
    positions = tensors.get("pos_embed")
    deit3 = "blocks.0.gamma_1" in tensors and positions is not None and positions.ndim == 3
    return 0 if deit3 and positions is not None and int(positions.shape[1]) ** 0.5 % 1 == 0 else None


def _depth(state: Mapping[str, Tensor], where: str | Path) -> int:
    blocks = {int(match[1]) for name in state if (match := re.match(r"blocks\.(\d+)\.", name))}
    if len(blocks) > MAX_DEPTH or blocks != set(range(len(blocks))):
        raise WeightsError(f"{where}: not a ViT: its blocks are not numbered from 0 without gaps")
    return len(blocks)


def _heads(state: Mapping[str, Tensor], width: int, depth: int, where: str | Path) -> int:
    """Number of heads: exact where queries are normalised by head, else of 64 channels or a published network's."""
    norm = state.get("blocks.0.attn.q_norm.weight")
    head = HEAD_DIM if norm is None else int(norm.shape[0])
    if norm is None and (width, depth) in HEADS:
        return HEADS[width, depth]
    if width % head:
        raise WeightsError(f"{where}: width {width} is no multiple of {head}: how many heads?", "add ,heads=N")
    return width // head


def _concluded(path: Path, tower: Tower, built: Mapping[str, Any], given: bool) -> str:
    """One line: the network, where it was found, what was assumed and what was left out."""
    width, heads, side = built["embed_dim"], built["num_heads"], built["patch_size"]
    exact = given or built["qk_norm"]
    source = "" if exact else " (width / 64)" if width == heads * HEAD_DIM else " (as published ViTs of this size)"
    left = [name for name in tower.tensors if NOT_BACKBONE.match(_timm_name(name))]
    height, across = built["img_size"] if isinstance(built["img_size"], tuple) else (built["img_size"],) * 2
    facts = [
        f"ViT of width {width}",
        f"{built['depth']} blocks",
        f"{heads} heads{source}",
        f"patches of {side}",
        f"{height} pixels" if height == across else f"{height} × {across} pixels",
        f"{height // side} × {across // side} positions",
        "class token" if built["class_token"] else "no class token",
    ]
    facts += [f"{built['reg_tokens']} registers"] if built["reg_tokens"] else []
    facts += ["LayerScale"] if "init_values" in built else []
    facts += ["SwiGLU"] if "mlp_layer" in built else []
    facts += ["q/k norm"] if built["qk_norm"] else []
    text = f"{path.name}: {', '.join(facts)}"
    text += found_under(tower.taken)
    others = [*left, *tower.outside]
    names = dict.fromkeys(name.split(".")[0] for name in others)
    shown = ", ".join(list(names)[:4]) + (", ..." if len(names) > 4 else "")
    return text + (f"; {len(others)} tensors left out ({shown})" if others else "")


def _position_rule(tower: Tower, built: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the rule by which positions are resized, and its reason: whose file it is, as far as tensor names tell.

    Files of DINO, which has a rule of its own, and of most ViTs of timm have the same names. A classifier indicates
    timm: no file of DINO has one.
    """
    if "class_embedding" in tower.tensors or _has_scale(tower):
        return "timm", "as OpenCLIP does"
    if not built["class_token"] or built["reg_tokens"] or built["no_embed_class"]:
        return "timm", ""
    if any(name.startswith("decoder") for name in tower.tensors):
        return "bicubic", "as MAE does"
    if "head.weight" in tower.tensors or "fc_norm.weight" in tower.tensors:
        return "timm", "assumed of a classifier; ,pos_embed=dino for DINO's rule"
    return "dino", "assumed; ,pos_embed=timm for timm's rule"


def _has_scale(tower: Tower) -> bool:
    """Whether the file is of a network that compares images with text."""
    return any(name.rpartition(".")[2] == "logit_scale" for name in tower.outside)


def _statistics(path: Path, tower: Tower) -> tuple[Statistics | None, str]:
    """Image mean and deviation, None for what is assumed of all, and why they are taken."""
    if (written := beside(path)) is not None:
        return written, "as open_clip_config.json says"
    if any(name.startswith("attn_pool.") for name in tower.tensors) or "logit_bias" in tower.outside:
        return HALF, "SigLIP's"
    if "class_embedding" in tower.tensors or _has_scale(tower):
        return CLIP, "CLIP's"
    return None, "assumed; ,mean= and ,std= for others"


def load_vit_file(
    file: str,
    *,
    role: str | None = None,
    prefix: str | None = None,
    heads: int | None = None,
    act: str | None = None,
    grid: Any = None,
) -> LoadedModel:
    """Build the network of ``FILE`` (torch or safetensors), and what is to be said of what was concluded.

    ``role`` ("teacher" | "student"): which copy of the weights, where there are two; ``prefix``: of which tensors,
    where there are several networks. ``heads`` and ``act`` (a name of timm's activations) for what no shape tells,
    ``grid`` (``14x16``, rows x columns) for positions of patches that are no square. ``model.safetensors`` beside the
    ``config.json`` of timm is what that says, unless one of these is given.
    Raises :class:`WeightsError` for a file that is unreadable, not all of a ViT, or of none of the networks that are
    told by their tensors.
    """
    path = Path(file).expanduser()
    if is_ours(path):
        model, info = build_from_weights(path)
        return LoadedModel(model, info)
    given = checked_grid(grid, path)
    if (role, prefix, heads, act, given) == (None,) * 5 and is_timm_folder(path.parent, path.name):
        name, text = f"local-dir:{path.parent.resolve()}", f"{path.name}: as the config.json beside it says"
        return replace(load_timm(name), read_as=text, positions=authors_positions("timm", name))
    role = None if role is None else checked_role(role)
    content = read_content(path)
    refuse_unread(content, path)
    try:
        tower = find_tower(content, path, role, prefix)
    except NotInFile as error:
        return load_known(content, path, role, prefix, error)
    if any(name.startswith("embeddings.") for name in tower.tensors):
        return _of_transformers(path)
    if "storage_tokens" in tower.tensors:
        return _dinov3(path, tower)
    try:
        return _build(path, tower, heads, act, given)
    except WeightsError as error:
        plain = "blocks.0.norm1.weight" in tower.tensors or "positional_embedding" in tower.tensors
        if plain and not any(name.startswith("patch_embed.backbone.") for name in tower.tensors):
            raise
        return load_known(content, path, role, prefix, error)  # Swin and hybrid ViTs have a patch embedding, too


def _build(path: Path, tower: Tower, heads: int | None, act: str | None, grid: Grid | None) -> LoadedModel:
    """timm's VisionTransformer with the tensors of a plain ViT; :class:`WeightsError` unless they are all of one."""
    try:
        state = timm_names(tower.tensors)
        built = architecture(state, path, heads, grid, _told(tower.tensors))
    except (KeyError, IndexError, RuntimeError) as error:
        reason = first_line(error)
        raise WeightsError(f"{path}: not a ViT: a tensor is missing or has no ViT's shape: {reason}") from error
    if act is not None:
        built["act_layer"] = act
    if "class_embedding" in tower.tensors:
        built["norm_layer"] = partial(LayerNorm, eps=1e-5)  # torch's default, with which CLIP was trained
    positions, why = _position_rule(tower, built)
    try:
        with torch.device("meta"):  # a damaged file takes no memory before it is refused
            model = Vit(**built, num_classes=0, dynamic_img_size=True, weight_init="skip", position_resize=positions)
    except (ValueError, TypeError, AssertionError, KeyError) as error:
        raise ConfigError(f"{path}: timm cannot build it: {error}", "check heads and act") from error
    check_network(model.state_dict(), state, path)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, assign=True)
    known, source = _statistics(path, tower)
    mean, std = known or (None, None)
    text, said = _concluded(path, tower, built, heads is not None), {"positions": why, "images": source}
    return LoadedModel(model, mean=mean, std=std, read_as=text, why=said)


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


OUR_STATISTICS = normalisation_of(IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
"""Mean and std of images with which every weights file of ours is read."""


def as_ours(loaded: LoadedModel, where: str | Path) -> VitConfig:
    """The configuration of ours whose tensors are the model's.

    Raises :class:`ConfigError` where there is none, or for images of other statistics than ImageNet's, which every
    weights file of ours is read with.
    """
    model: Any = loaded.model
    statistics = normalisation_of(loaded.mean or IMAGENET_DEFAULT_MEAN, loaded.std or IMAGENET_DEFAULT_STD)
    if statistics != OUR_STATISTICS:
        raise ConfigError(f"{where}: images of mean and std {statistics}, not ImageNet's", "use the file as it is")
    refusal = ConfigError(f"{where}: none of the networks of `dinoskip models list`", "use the file as it is")
    if not isinstance(model, Vit) or model.patch_embed.grid_size[0] != model.patch_embed.grid_size[1]:
        raise refusal
    sizes = {width: size for size, width in WIDTHS.items()}
    name: Any = f"vit_{sizes.get(model.embed_dim)}_patch{model.patch_embed.patch_size[0]}"
    if name not in SHAPES:
        raise refusal
    scaled = 1e-5 if "blocks.0.ls1.gamma" in model.state_dict() else None  # any number: the file's gammas replace it
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
    loaded = load_timm(name, file=str(path), depth=_depth(timm_names(tower.tensors), path))
    return replace(loaded, read_as=f"{path.name}: DINOv3, timm:{name}")


def _of_transformers(path: Path) -> LoadedModel:
    """transformers keeps heads and much else in config.json beside the weights."""
    if path.name != "model.safetensors" or not (path.parent / "config.json").is_file():
        raise WeightsError(
            f"{path}: names of Hugging Face transformers, whose architecture is in config.json",
            "keep both in one folder, the weights as model.safetensors, and write hf:./FOLDER",
        )
    return load_hf(str(path.parent.resolve()))
