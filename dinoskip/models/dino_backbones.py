"""Networks of the DINO authors: ``dino:`` checkpoint files, and their own code through torch.hub, ``hub:``.

torch.hub imports and runs the code of the repository that it loads. Hence only the repositories of ``TRUSTED`` are
fetched, and any other must be a folder on this machine that the user names by its path.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dinoskip.errors import ConfigError, WeightsError
from dinoskip.files import load_torch_file
from dinoskip.models.anatomy import Anatomy, Loaded, part_of_fused, side_of
from dinoskip.models.export import load_strict, strip_prefixes
from dinoskip.models.vit import PATCHES, WIDTHS, create_model
from dinoskip.randomness import derive

TRUSTED = ("facebookresearch/dino", "facebookresearch/dinov2", "facebookresearch/dinov3")


def checked_role(role: str) -> str:
    """``role`` itself, or :class:`ConfigError` if it is neither teacher nor student."""
    if role not in ("teacher", "student"):
        raise ConfigError(f"role {role!r} is none of teacher, student")
    return role


# --- files of facebookresearch/dino ------------------------------------------------------------------


def _state(path: Path, role: str) -> dict[str, Tensor]:
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


def _architecture(state: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
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


def load_dino(file: str, *, role: str = "teacher") -> Loaded:
    """Build ``dino:FILE.pth``: a full checkpoint's ``role``, or a plain state_dict. Raises :class:`WeightsError`."""
    path = Path(file)
    state = _state(path, checked_role(role))
    model = create_model(**_architecture(state, path), weight_init="skip")
    load_strict(model, state, path)
    return Loaded(model)


# --- the authors' own modules ------------------------------------------------------------------------


class AuthorsVit(Anatomy):
    """VisionTransformer of DINO and DinoVisionTransformer of DINOv2 and DINOv3, or modules of the same interface.

    Their own ``prepare_tokens`` or ``prepare_tokens_with_masks`` embeds the image, and with it their positions.
    """

    def __init__(self, model: nn.Module, spec: str) -> None:
        super().__init__(model, spec)
        self.patch_size = side_of(self.model.patch_embed.patch_size, spec)
        self.blocks = self._unpacked()
        first: Any = self.blocks[0] if self.blocks else None
        if not all(hasattr(first, name) for name in ("norm1", "attn")) or not hasattr(first.attn, "qkv"):
            raise ConfigError(f"{spec}: its blocks have no norm1 and attn.qkv")
        self.num_heads = int(first.attn.num_heads)
        self.dim = int(self.model.embed_dim)
        registers = getattr(model, "n_storage_tokens", getattr(model, "num_register_tokens", 0))
        self.num_prefix_tokens = 1 + int(registers)
        self.has_class_token = True

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether this class knows the network."""
        prepares = any(hasattr(model, name) for name in ("prepare_tokens", "prepare_tokens_with_masks"))
        return prepares and all(hasattr(model, name) for name in ("patch_embed", "blocks", "norm", "embed_dim"))

    def _unpacked(self) -> list[nn.Module]:
        """The blocks one by one, where DINOv2 keeps them in chunks that are padded with Identity."""
        unpacked = []
        for block in self.model.blocks:
            inner = list(block) if isinstance(block, nn.ModuleList) else [block]
            unpacked += [module for module in inner if not isinstance(module, nn.Identity)]
        return unpacked

    def embed(self, images: Tensor) -> tuple[Tensor, Any]:
        """As :meth:`Anatomy.embed`."""
        prepare = getattr(self.model, "prepare_tokens_with_masks", None) or self.model.prepare_tokens
        prepared = prepare(images)
        if not isinstance(prepared, tuple):
            return prepared, ()
        tokens, (height, width) = prepared
        rope = getattr(self.model, "rope_embed", None)
        return tokens, () if rope is None else (rope(H=height, W=width),)

    def step(self, index: int, tokens: Tensor, context: Any) -> Tensor:
        """As :meth:`Anatomy.step`."""
        stepped: Tensor = self.blocks[index](tokens, *context)
        return stepped

    def project(self, index: int, tokens: Tensor, facet: str) -> Tensor:
        """As :meth:`Anatomy.project`."""
        block: Any = self.blocks[index]
        return part_of_fused(block.attn.qkv, block.norm1(tokens), facet)

    def final(self, tokens: Tensor) -> Tensor | None:
        """As :meth:`Anatomy.final`."""
        normed: Tensor = self.model.norm(tokens)
        apart = getattr(self.model, "cls_norm", None)  # DINOv3 may keep a norm of its own for CLS and registers
        if apart is not None:
            prefix = self.num_prefix_tokens
            normed = torch.cat((apart(tokens[:, :prefix]), normed[:, prefix:]), dim=1)
        return normed


def _source(repository: str, spec: str) -> str:
    """ "local" or "github"; :class:`ConfigError` for a repository that is neither a path here nor trusted."""
    if repository.startswith(("/", "./", "../", "~")):
        if not (Path(repository).expanduser() / "hubconf.py").is_file():
            raise ConfigError(f"{spec}: {repository} is no folder with a hubconf.py")
        return "local"
    if repository.split(":")[0] in TRUSTED:
        return "github"
    raise ConfigError(
        f"{spec}: torch.hub runs the code of a repository, and {repository!r} is not one of {', '.join(TRUSTED)}",
        "clone it, read it, and name its folder: hub:./FOLDER:NAME",
    )


def load_hub(text: str, **options: Any) -> Loaded:
    """Build ``hub:REPO:NAME`` by the repository's own ``hubconf.py``.

    REPO is one of ``TRUSTED``, with ``:BRANCH`` if wanted, or a folder here, written as a path (``./dino``). Options:
    ``pretrained`` (true), ``file`` (the authors' weights, a local .pth in their layout), ``seed`` of random weights;
    others go to the entry point. Raises :class:`ConfigError` and :class:`WeightsError`.
    """
    spec = f"hub:{text}"
    repository, _, name = text.rpartition(":")
    if not repository or not name:
        raise ConfigError(f"{spec}: write hub:REPO:NAME", "hub:facebookresearch/dino:dino_vits16")
    source = _source(repository, spec)
    file, seed = options.pop("file", None), int(options.pop("seed", 0))
    options["pretrained"] = bool(options.get("pretrained", True)) and file is None
    where = str(Path(repository).expanduser()) if source == "local" else repository
    load: Any = torch.hub.load
    trust = {} if source == "local" else {"trust_repo": True}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "hub", name))
            model = load(where, name, source=source, **trust, **options)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if source == "local" and not options["pretrained"]:
            raise ConfigError(f"{spec}: {repository} cannot build it: {reason}") from error
        hint = "code and weights are downloaded once, which needs network; with a clone and a weights file write "
        raise WeightsError(
            f"{spec}: it cannot be loaded: {reason}", f"{hint}hub:./CLONE:{name},file=FILE.pth"
        ) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{spec}: it makes a {type(model).__name__}, not a network")
    if file is not None:
        load_strict(model, _state(Path(file), "teacher"), file)
    return Loaded(model)
