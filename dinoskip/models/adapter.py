"""Interface by which :class:`dinoskip.models.Backbone` walks through a network block by block.

One subclass a library: timm (``from_timm``), the DINO authors' own modules (``from_hub``), transformers (``from_hf``).
Blocks are called one after the other, projections are applied by themselves. Values inside a block are read by hooks
that are registered only while it runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.errors import ConfigError

PARTS = {"query": 0, "key": 1, "value": 2}
BRANCHES = ("attn", "mlp", "hidden", "attn_scaled", "mlp_scaled")
_LAST_LINEAR = ("fc2", "w3", "down_proj")  # of an MLP: timm's and most; SwiGLU of the DINO authors; of transformers
_SCALES = {"attn": ("ls1", "layer_scale1", "gamma_1"), "mlp": ("ls2", "layer_scale2", "gamma_2")}


@dataclass(frozen=True)
class LoadedModel:
    """The network that a loader hands to ``load_backbone``, with facts about it that its weights do not hold.

    ``mean`` and ``std`` are the image statistics it was trained with, None where the network itself says or nothing
    is known; ``info`` is what a weights file of ours says of its training. ``size`` is the side in pixels of the images
    that a network with one size was built for, ``layers`` names the modules at which a network without equal blocks is
    read. ``positions`` is how its authors resize positions, None where the network itself or its spec says.
    ``read_as`` is what was concluded of a file that does not say it, ``why`` the source of the rule of its "positions"
    and of the mean of its "images".
    """

    model: nn.Module
    info: Mapping[str, Any] = field(default_factory=dict)
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    size: int | None = None
    layers: Sequence[str] | None = None
    positions: str | None = None
    read_as: str = ""
    why: Mapping[str, str] = field(default_factory=dict)


class VitAdapter(ABC):
    """A ViT taken apart: embedding, blocks, projections of their attention, last norm.

    ``blocks`` are in order of application; ``num_prefix_tokens`` precede the patches, the CLS token first of all where
    ``has_class_token``. ``context`` is what the blocks need besides the tokens, as ``embed`` returns it.
    """

    model: Any
    blocks: Sequence[nn.Module]
    patch_size: int
    dim: int
    num_heads: int
    num_prefix_tokens: int
    has_class_token: bool

    def __init__(self, model: nn.Module, spec: str) -> None:
        self.model = model
        self.spec = spec

    @staticmethod
    @abstractmethod
    def fits(model: nn.Module) -> bool:
        """Whether this class knows the network."""

    @abstractmethod
    def embed(self, images: Tensor) -> tuple[Tensor, Any]:
        """Tokens (B, N, C) as the first block receives them, from images (B, 3, H, W); and the context."""

    @abstractmethod
    def run_block(self, index: int, tokens: Tensor, context: Any) -> Tensor:
        """Output (B, N, C) of block ``index``, counted from 0."""

    @abstractmethod
    def project(self, index: int, tokens: Tensor, facet: str) -> Tensor:
        """Queries, keys or values (B, N, heads·dh) that block ``index`` makes of its input ``tokens``."""

    def attention(self, index: int) -> nn.Module | None:
        """The attention module of block ``index``, None where it has not one of its own."""
        return getattr(self.blocks[index], "attn", None)

    def run_block_seen(
        self, index: int, tokens: Tensor, context: Any, facets: Collection[str]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Output (B, N, C) of block ``index``, as :meth:`run_block`, and what ``facets`` of ``BRANCHES`` name in it.

        ``attn`` and ``mlp`` (B, N, C) are what the two modules return, before LayerScale, drop path and addition;
        ``attn_scaled`` and ``mlp_scaled`` after LayerScale, ``hidden`` (B, N, ratio·C) is the input of the MLP's last
        linear layer. Raises :class:`ConfigError` for blocks that have no such parts.
        """
        seen: dict[str, Tensor] = {}
        with ExitStack() as hooks:
            for name in dict.fromkeys(facet.removesuffix("_scaled") for facet in facets):
                hooks.callback(self._watch(index, name, seen).remove)
            out = self.run_block(index, tokens, context)
        for facet in facets:
            name = facet.removesuffix("_scaled")
            if name not in seen:
                raise self.no_facet(index, facet)
            if facet != name:
                seen[facet] = self._scaled(index, name, seen[name])
        return out, seen

    def _watch(self, index: int, name: str, seen: dict[str, Tensor]) -> Any:
        """Have ``attn``, ``mlp`` or ``hidden`` of a block put into ``seen`` when it is computed."""
        if name == "hidden":
            last = self._last_linear(index)
            return last.register_forward_pre_hook(lambda module, inputs: seen.update({name: inputs[0]}))
        module: Any = getattr(self.blocks[index], "mlp", None) if name == "mlp" else self.attention(index)
        if module is None:
            raise self.no_facet(index, name)
        return module.register_forward_hook(lambda module, inputs, out: seen.update({name: _tensor(out)}))

    def _last_linear(self, index: int) -> Any:
        mlp = getattr(self.blocks[index], "mlp", None)
        last = next((getattr(mlp, part) for part in _LAST_LINEAR if hasattr(mlp, part)), None)
        if last is None:
            raise self.no_facet(index, "hidden")
        return last

    def hidden_width(self) -> int:
        """Channels of facet ``hidden``, the same in every block."""
        return int(self._last_linear(0).weight.shape[1])

    def _scaled(self, index: int, name: str, branch: Tensor) -> Tensor:
        """A branch times its LayerScale, itself where the block has none."""
        block = self.blocks[index]
        scale = next((getattr(block, part) for part in _SCALES[name] if getattr(block, part, None) is not None), None)
        if scale is None:
            return branch
        scaled: Tensor = scale(branch) if isinstance(scale, nn.Module) else branch * scale
        return scaled

    def no_facet(self, index: int, facet: str) -> ConfigError:
        """The refusal of a facet that block ``index`` does not have."""
        kind = type(self.blocks[index]).__name__
        return ConfigError(f"{self.spec}: facet {facet}: a {kind} has none", "use facet out")

    @abstractmethod
    def final_norm(self, tokens: Tensor) -> Tensor | None:
        """The network's last norm of tokens (B, N, C); None if it has none."""

    def check_size(self, height: int, width: int) -> None:
        """ValueError for image sizes in whole patches that the network still cannot take."""
        return

    def image_statistics(self) -> tuple[Sequence[float], Sequence[float]] | None:
        """Image mean and standard deviation, where the network carries them."""
        return None


def _tensor(returned: Any) -> Tensor:
    """Tokens of what a module returns: some attentions return their weights beside them."""
    tokens: Tensor = returned[0] if isinstance(returned, tuple) else returned
    return tokens


def timm_statistics(model: nn.Module) -> tuple[Sequence[float], Sequence[float]] | None:
    """Image mean and standard deviation that a network of timm carries."""
    config = getattr(model, "pretrained_cfg", None) or {}
    return (tuple(config["mean"]), tuple(config["std"])) if "mean" in config and "std" in config else None


def square_patch_side(patch_size: Any, spec: str) -> int:
    """Side of square patches, given as one number or as (height, width); :class:`ConfigError` if not square."""
    height, width = patch_size if isinstance(patch_size, tuple | list) else (patch_size, patch_size)
    if height != width:
        raise ConfigError(f"{spec}: patches of {height}×{width} pixels are not square")
    return int(height)


def project_fused(projection: nn.Module, inputs: Tensor, facet: str, bias: Tensor | None = None) -> Tensor:
    """One third of a fused query-key-value projection (out = 3·A) of inputs (B, N, C): (B, N, A).

    A plain Linear is applied by the rows of that third alone; modules with a forward of their own (masked or quantised
    weights) are called whole. ``bias`` (3·A,) stands for a bias that the attention keeps outside of the projection.
    """
    if type(projection) is not nn.Linear:
        projected: Tensor = projection(inputs)
        return (projected if bias is None else projected + bias).tensor_split(3, dim=-1)[PARTS[facet]]
    width = projection.out_features // 3
    rows = slice(PARTS[facet] * width, (PARTS[facet] + 1) * width)
    bias = projection.bias if bias is None else bias
    return F.linear(inputs, projection.weight[rows], None if bias is None else bias[rows])


def apply_head_norm(norm: nn.Module, projected: Tensor, heads: int) -> Tensor:
    """Apply a norm of single heads to (B, N, heads·dh)."""
    if isinstance(norm, nn.Identity):
        return projected
    normed: Tensor = norm(projected.reshape(*projected.shape[:-1], heads, -1))
    return normed.flatten(-2)
