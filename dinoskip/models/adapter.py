"""What :class:`dinoskip.models.Backbone` must know of a network to walk through it block by block.

One subclass a library: timm (``from_timm``), the DINO authors' own modules (``from_hub``), transformers (``from_hf``).
Nothing is hooked: blocks are called one after the other, projections are applied by themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.errors import ConfigError

PARTS = {"query": 0, "key": 1, "value": 2}


@dataclass(frozen=True)
class LoadedModel:
    """What a loader hands to ``load_backbone``: the network, and what is known besides its weights.

    ``mean`` and ``std`` are the image statistics it was trained with, None where the network itself says or nothing
    is known; ``info`` is what a weights file of ours says of its training.
    """

    model: nn.Module
    info: Mapping[str, Any] = field(default_factory=dict)
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None


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

    @abstractmethod
    def final_norm(self, tokens: Tensor) -> Tensor | None:
        """The network's last norm of tokens (B, N, C); None if it has none."""

    def check_size(self, height: int, width: int) -> None:
        """ValueError for image sizes in whole patches that the network still cannot take."""
        return

    def image_statistics(self) -> tuple[Sequence[float], Sequence[float]] | None:
        """Image mean and standard deviation, where the network carries them."""
        return None


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
        whole: Tensor = projection(inputs)
        return (whole if bias is None else whole + bias).tensor_split(3, dim=-1)[PARTS[facet]]
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
