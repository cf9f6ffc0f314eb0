"""The DINO authors' own networks through torch.hub, ``hub:``.

torch.hub imports and runs the code of the repository that it loads. Hence only the repositories of ``TRUSTED`` are
fetched, and any other must be a folder on this machine that the user names by its path.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dinoskip.errors import ConfigError, WeightsError, first_line
from dinoskip.models.adapter import LoadedModel, VitAdapter, project_fused, square_patch_side
from dinoskip.models.export import load_strict
from dinoskip.models.wrappings import read_tower
from dinoskip.runtime.randomness import derive

GITHUB = "https://api.github.com"
_LONGEST_ANSWER = 2**24  # bytes: GitHub lists 300 files at most
_CLONE = "clone it, read it, and name its folder: hub:./FOLDER:NAME"
TRUSTED = ("facebookresearch/dino", "facebookresearch/dinov2", "facebookresearch/dinov3")


class DinoAuthorsAdapter(VitAdapter):
    """VisionTransformer of DINO and DinoVisionTransformer of DINOv2 and DINOv3, or modules of the same interface.

    Their own ``prepare_tokens`` or ``prepare_tokens_with_masks`` embeds the image, and with it their positions.
    """

    def __init__(self, model: nn.Module, spec: str) -> None:
        super().__init__(model, spec)
        self.patch_size = square_patch_side(self.model.patch_embed.patch_size, spec)
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
        prepare = getattr(self.model, "prepare_tokens_with_masks", None) or self.model.prepare_tokens
        prepared = prepare(images)
        if not isinstance(prepared, tuple):
            return prepared, ()
        tokens, (height, width) = prepared
        rope = getattr(self.model, "rope_embed", None)
        return tokens, () if rope is None else (rope(H=height, W=width),)

    def run_block(self, index: int, tokens: Tensor, context: Any) -> Tensor:
        stepped: Tensor = self.blocks[index](tokens, *context)
        return stepped

    def project(self, index: int, tokens: Tensor, facet: str) -> Tensor:
        block: Any = self.blocks[index]
        return project_fused(block.attn.qkv, block.norm1(tokens), facet)

    def final_norm(self, tokens: Tensor) -> Tensor | None:
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
        _CLONE,
    )


def _check_commit(repository: str, spec: str) -> None:
    """:class:`ConfigError` for a commit that is not in the history of the repository's own branch.

    GitHub keeps a repository and its forks in one store: a fork's commit is found under the parent's name, too. Code
    that was fetched before is not asked about again, so that it needs no network.
    """
    place, _, commit = repository.partition(":")
    if (Path(torch.hub.get_dir()) / f"{place.replace('/', '_')}_{commit}").is_dir():
        return
    address = f"{GITHUB}/repos/{place}/compare/HEAD...{commit}"
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            status = json.loads(answer.read(_LONGEST_ANSWER)).get("status")
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise WeightsError(f"{spec}: {address}: {error}", "try again later, or clone it") from error
        status = "unknown"
    except (OSError, ValueError, AttributeError) as error:
        raise WeightsError(f"{spec}: whose commit this is cannot be asked: {first_line(error)}", _CLONE) from error
    if status not in {"behind", "identical"}:  # the commit, seen from the branch's head
        raise ConfigError(
            f"{spec}: commit {commit} is not in the history of {place}: it may be a fork's, and torch.hub would run it",
            _CLONE,
        )


def load_hub(text: str, **options: Any) -> LoadedModel:
    """Build ``hub:REPO:NAME`` by the repository's own ``hubconf.py``.

    REPO is one of ``TRUSTED``, with ``:BRANCH`` or ``:COMMIT`` if wanted, or a folder here, written as a path
    (``./dino``). Options: ``pretrained`` (true), ``file`` (the authors' weights, a local .pth in their layout),
    ``seed`` of random weights; others go to the entry point. Raises :class:`ConfigError` and :class:`WeightsError`.
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
    if source == "github" and re.fullmatch(r"[^:]+:[0-9a-f]{40}", repository):
        _check_commit(repository, spec)
        trust["skip_validation"] = True  # torch.hub's own knows heads of branches and tags alone
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(seed, "hub", name))
            model = load(where, name, source=source, **trust, **options)
    except Exception as error:
        reason = first_line(error)
        if source == "local" and not options["pretrained"]:
            raise ConfigError(f"{spec}: {repository} cannot build it: {reason}") from error
        hint = "code and weights are downloaded once, which needs network; with a clone and a weights file write "
        raise WeightsError(
            f"{spec}: it cannot be loaded: {reason}", f"{hint}hub:./CLONE:{name},file=FILE.pth"
        ) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{spec}: it makes a {type(model).__name__}, not a network")
    if file is not None:
        tensors = read_tower(Path(file)).tensors
        load_strict(model, {name: t for name, t in tensors.items() if not name.startswith("head.")}, file)
    return LoadedModel(model)
