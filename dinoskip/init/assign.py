"""Initialisers yield (parameter name, float64 tensor); here they are laid into a model, each parameter at most once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from timm.layers import Mlp as TimmMlp
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.models.attention_sites import (
    Attention,
    Mlp,
    attentions,
    is_plain_attention,
    known_attention,
    mlps,
    write,
)
from dinoskip.settings.config import Config, RawConfig, validate

Assignments = Iterator[tuple[str, Tensor]]
LAYERS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


@torch.no_grad()
def assign(model: nn.Module, tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
    """Copy ``tensors`` into the parameters of those names (cast last) and return the names.

    A name that comes twice, is unknown or has another shape is a ValueError: an initialiser is wrong.
    """
    parameters = dict(model.named_parameters())
    done: set[str] = set()
    for name, tensor in tensors:
        if name in done or name not in parameters or parameters[name].shape != tensor.shape:
            raise ValueError(f"parameter {name} {tuple(tensor.shape)}: assigned twice, unknown or of another shape")
        parameters[name].copy_(tensor)
        done.add(name)
    return done


def in_place(
    tensors: Callable[..., Assignments],
    settings: type[Config],
    *,
    positional: Sequence[str] = (),
    needs: Sequence[str] = (),
    without: Sequence[str] = (),
    keeps_others: bool = False,
) -> Callable[..., nn.Module]:
    """The public function of an initialisation: ``function(model, *needs, *positional, *, ..., seed=0)``.

    Its other arguments are the fields of ``settings``, of the same defaults and ranges (:class:`ConfigError`); those of
    ``positional`` may be given without their name. It assigns what ``tensors(model, settings, seed, *needs)`` yields
    and returns the model. ``needs`` are arguments that are no settings, ``without`` settings that
    are no arguments; with ``keeps_others`` the present values of all parameters come after ``needs``.
    """
    name = tensors.__name__.removesuffix("tensors")
    fields = [field for field in settings.model_fields if field not in ("name", *needs, *without)]
    kind = inspect.Parameter
    parameters = [kind(name, kind.POSITIONAL_OR_KEYWORD) for name in ("model", *needs)]
    for field in [*positional, *(field for field in fields if field not in positional)]:
        how = kind.POSITIONAL_OR_KEYWORD if field in positional else kind.KEYWORD_ONLY
        parameters.append(kind(field, how, default=settings.model_fields[field].default))
    signature = inspect.Signature([*parameters, kind("seed", kind.KEYWORD_ONLY, default=0)])

    def function(*args: Any, **kwargs: Any) -> nn.Module:
        given = signature.bind(*args, **kwargs).arguments
        model, seed, needed = given.pop("model"), given.pop("seed", 0), [given.pop(name) for name in needs]
        chosen = validate(settings, RawConfig(given, {"": name}))
        if keeps_others:
            needed.append({key: parameter.detach().double().cpu() for key, parameter in model.named_parameters()})
        assign(model, tensors(model, chosen, seed, *needed))
        return model  # type: ignore[no-any-return]

    function.__name__ = function.__qualname__ = name
    function.__doc__, function.__module__ = tensors.__doc__, tensors.__module__
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True)
class PlainBlock:
    """The four linear layers of one block and the block's name."""

    prefix: str
    num_heads: int
    layers: dict[str, nn.Linear]
    """Keys attn.qkv, attn.proj, mlp.fc1, mlp.fc2."""
    skips_attention: float
    """Weight of the attention's skip connection; 0: there is none."""
    skips_mlp: float
    """The MLP's."""

    @property
    def dim(self) -> int:
        """Channels of the tokens that the block reads and writes."""
        return self.layers["attn.qkv"].in_features

    def zero_biases(self, *names: str) -> Assignments:
        """Zeros for the biases that the layers called ``names`` have."""
        for name in names:
            if self.layers[name].bias is not None:
                yield f"{self.prefix}.{name}.bias", torch.zeros(self.layers[name].bias.shape, dtype=torch.float64)


def attentions_for(model: nn.Module, method: str, *, products: bool, layer_scale: bool = False) -> list[Attention]:
    """The attentions of any network to which ``method`` applies as its paper states it.

    ``products``: the method sets W_Q W_Kᵀ of a head and W_V W_O, which must then be what the attention computes with:
    logits over tokens, without norms or gates, heads together as wide as the tokens. A method that sets the matrices
    one by one applies to them whatever comes after: norms of queries and keys stay where they are. Raises
    :class:`ConfigError` that names the first attention to which it does not apply, and why.
    """
    if products and isinstance(model, VisionTransformer):
        plain_blocks(model, method, layer_scale=layer_scale)
    present = attentions(model)
    if not present:
        raise ConfigError(f"{method} initialises attention, and a {type(model).__name__} has none that is known")
    for attention in present:
        if reason := _unsuited(attention) if products else _without_heads(attention):
            raise ConfigError(f"{method} cannot initialise {attention.name}, a {attention.kind}: {reason}")
    return present


def mlps_for(model: nn.Module, method: str) -> list[Mlp]:
    """The MLPs of any network to which ``method`` applies; :class:`ConfigError` for one with a gate."""
    present = mlps(model)
    for mlp in present:
        if mlp.gate is not None:
            raise ConfigError(f"{method} cannot initialise {mlp.name}, a {mlp.kind}: it has a gate")
    return present


def skip_weights(model: nn.Module, name: str) -> tuple[float, float]:
    """Weights of the skips around attention and MLP of the block that holds the module ``name``; 1 unless it says."""
    holder = model.get_submodule(name.rpartition(".")[0])
    attention, mlp = getattr(holder, "skip_weights", (1.0, 1.0))
    return float(attention), float(mlp)


def attention_tensors(
    attention: Attention, query: Tensor, key: Tensor, value: Tensor, output: Tensor, parameters: Mapping[str, Tensor]
) -> Assignments:
    """The papers' factors in an attention's parameters; row convention (``y = x W``).

    ``query`` and ``key`` are (heads, D, dh), ``value`` (D, A) and ``output`` (A, D), float64.
    """
    rows = {
        attention.query: query.mT.flatten(0, 1), attention.key: key.mT.flatten(0, 1), attention.value: value.T,
        attention.output: output.T,
    }  # fmt: skip
    yield from write(rows, parameters)


def zeros(model: nn.Module, names: Iterable[str | None]) -> Assignments:
    """Zeros for the parameters called ``names``; None is left out."""
    parameters = dict(model.named_parameters())
    for name in names:
        if name is not None:
            yield name, torch.zeros(parameters[name].shape, dtype=torch.float64)


def _without_heads(attention: Attention) -> str | None:
    """Return the reason why the rows of an attention's factors are no heads of one query and one key each, or None."""
    if "a difference of two softmaxes" in attention.additions:
        return "a head has two queries and two keys"
    return None


def _unsuited(attention: Attention) -> str | None:
    """Return why the attention does not compute with the products of its factors, or None if it does."""
    if attention.over != "tokens":
        return "its softmax is over channels, so W_Q W_Kᵀ forms no logits"
    if breaking := [addition for addition in attention.additions if addition != "mixing of heads"]:
        return f"it has {' and '.join(breaking)}"
    if attention.key_heads != attention.heads:
        return f"{attention.heads} query heads share {attention.key_heads} key heads, so W_V W_O is no square product"
    if not attention.square:
        return "its heads together are not as wide as the tokens"
    return None


def plain_blocks(model: nn.Module, method: str, *, layer_scale: bool = False) -> list[PlainBlock]:
    """The blocks of a ViT to which ``method`` applies as its paper states it; :class:`ConfigError` if any differs.

    ``layer_scale``: whether the method is of use in blocks with LayerScale, which only blocks with skips can have.
    """
    if not isinstance(model, VisionTransformer):
        raise ConfigError(f"{method} initialises timm VisionTransformers, not a {type(model).__name__}")
    plain = []
    for index, block in enumerate(model.blocks):
        reason = _oddity(block, layer_scale)
        if reason:
            raise ConfigError(f"{method} cannot initialise block {index + 1}: {reason}", "build the model without it")
        layers: dict[str, Any] = {name: block.get_submodule(name) for name in LAYERS}
        heads = int(block.get_submodule("attn").num_heads)  # type: ignore[arg-type]
        weights = getattr(block, "skip_weights", (1.0, 1.0))
        plain.append(PlainBlock(f"blocks.{index}", heads, layers, *weights))
    return plain


def _oddity(block: Any, layer_scale: bool) -> str | None:
    """Return why the block is not the papers' pre-norm block, or None if it is."""
    if not isinstance(block, TimmBlock):
        return f"it is a {type(block).__name__}, not a pre-norm block"
    if not is_plain_attention(block.attn, softmax=False):
        return "its attention is not plain (q/k norm, output norm, gate or another kind)"
    if not known_attention(block.attn).square:  # type: ignore[union-attr]  # a plain one is known
        return "its heads together are not as wide as the model"
    if not layer_scale and not (isinstance(block.ls1, nn.Identity) and isinstance(block.ls2, nn.Identity)):
        return "it has LayerScale (init_values)"
    if type(block.mlp) is not TimmMlp or not isinstance(getattr(block.mlp, "norm", nn.Identity()), nn.Identity):
        return "its MLP is not two plain linear layers"
    return None
