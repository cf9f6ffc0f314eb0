"""Every attention and every MLP of a network, whoever wrote it: where its factors W_Q, W_K, W_V, W_O lie.

Libraries keep the same matrices under other names, fused or apart, transposed or not. Here a module is known by the
names of its projections (``_ATTENTIONS``, ``_MLPS``), never by its class, so that a new family is a row of a table.
A :class:`Factor` is read and written in one layout, that of ``nn.Linear``: (out, in).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.models.entmax import EntmaxAttention
from dinoskip.models.temperature import Temperature

Assignments = Iterator[tuple[str, Tensor]]


@dataclass(frozen=True)
class Factor:
    """One matrix of a network: rows ``start:stop`` of the (out, in) matrix that parameter ``name`` holds.

    ``transposed``: the parameter is kept as (in, out), as GPT-2's Conv1D does. ``bias`` is the parameter of its bias,
    the same rows of it; None without one.
    """

    name: str
    start: int
    stop: int
    columns: int
    transposed: bool = False
    bias: str | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs of the matrix."""
        return self.stop - self.start, self.columns

    def read(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """The matrix (out, in) in float64, where the parameter lies."""
        matrix = parameters[self.name].detach().double()
        return (matrix.T if self.transposed else matrix)[self.start : self.stop]


@dataclass(frozen=True)
class Attention:
    """An attention of a network.

    ``name`` is its module's. ``heads`` share the rows of each factor evenly; ``key_heads`` are fewer with grouped
    queries. ``over`` says what the softmax is over: tokens, or channels (cross-covariance attention). ``additions``
    name what the attention has beyond the papers' softmax(Q Kᵀ / √dh) V: norms of queries and keys, gates, mixing of
    heads. ``input_biases`` are the parameters that are biases of queries, keys and values. ``temperature`` is a
    constant factor on its logits.
    """

    name: str
    kind: str
    query: Factor
    key: Factor
    value: Factor
    output: Factor
    heads: int
    key_heads: int
    over: str = "tokens"
    additions: tuple[str, ...] = ()
    input_biases: tuple[str, ...] = ()
    temperature: float = 1.0

    @property
    def dim(self) -> int:
        """Width D of the tokens that queries are made of."""
        return self.query.columns

    @property
    def head_dim(self) -> int:
        """Width dh of one head."""
        return self.query.shape[0] // self.heads

    @property
    def square(self) -> bool:
        """Whether the heads together are as wide as the tokens, so that W_V W_O is D × D, and none are grouped."""
        square = (self.dim, self.dim)
        return all(f.shape == square for f in (self.query, self.key, self.value)) and self.output.shape == square

    @property
    def plain(self) -> bool:
        """Whether it is the papers' attention: logits x W_Q W_Kᵀ xᵀ over tokens, no head shared, nothing added."""
        return self.over == "tokens" and not self.additions and self.key_heads == self.heads

    def factors(self, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """W_Q and W_K (heads, D, dh), W_V (D, A) and W_O (A, D) of the row convention, float64, where they lie.

        ``logits = x W_Q_i (x W_K_i)ᵀ / √dh``, the temperature being in W_Q. Key and value heads that several query
        heads share are repeated.
        """
        shared = self.heads // self.key_heads
        query = self.temperature * self.query.read(parameters).reshape(self.heads, -1, self.dim)
        key = self.key.read(parameters).reshape(self.key_heads, -1, self.key.columns).repeat_interleave(shared, 0)
        value = self.value.read(parameters).reshape(self.key_heads, -1, self.value.columns)
        value = value.repeat_interleave(shared, 0).flatten(0, 1)
        return query.mT, key.mT, value.T, self.output.read(parameters).T

    def products(self, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """W_Q W_Kᵀ of every head (heads, D, D) and W_V W_O (D, D) of all together, of :meth:`factors`.

        Raises :class:`ConfigError` where keys are made of inputs of another width than queries.
        """
        if self.key.columns != self.dim:
            raise ConfigError(f"{self.name}: queries are made of {self.dim} channels, keys of {self.key.columns}")
        query, key, value, output = self.factors(parameters)
        return query @ key.mT, value @ output


@dataclass(frozen=True)
class Mlp:
    """An MLP of a network: its first and last matrix, and that of the gate where it has one."""

    name: str
    kind: str
    first: Factor
    last: Factor
    gate: Factor | None = None


_ATTENTIONS: tuple[tuple[tuple[str, str, str], tuple[str, ...]], ...] = (
    (("qkv", "qkv", "qkv"), ("proj", "out_proj")),  # timm; the DINO authors
    (("q", "kv", "kv"), ("proj",)),  # PVT v2
    (("q", "k", "v"), ("proj",)),  # class attention of CaiT and XCiT
    (("q_proj", "k_proj", "v_proj"), ("o_proj", "out_proj", "proj")),  # transformers; EVA of timm
    (("self.query", "self.key", "self.value"), ("output.dense",)),  # BERT, Nyströmformer
    (("c_attn", "c_attn", "c_attn"), ("c_proj",)),  # GPT-2
)
"""Names of the projections to queries, keys, values, and of the output projection; equal names are fused."""

_MLPS: tuple[tuple[str, str, str | None], ...] = (
    ("fc1", "fc2", None),
    ("fc1_x", "fc2", "fc1_g"),  # SwiGLU of timm
    ("w12", "w3", None),  # SwiGLU of the DINO authors
    ("up_proj", "down_proj", "gate_proj"),
    ("up_proj", "down_proj", None),
    ("c_fc", "c_proj", None),
    ("intermediate.dense", "output.dense", None),
)
"""Names of the first and last matrix, and of the gate's; a first matrix of twice the width has the gate in its first
half, as in timm's packed SwiGLU."""

_HEADS = ("num_heads", "num_attention_heads")
_ADDITIONS = {
    "q_norm": "q/k norm",
    "k_norm": "q/k norm",
    "gate": "a gate",
    "proj_l": "mixing of heads",
    "proj_w": "mixing of heads",
    "logit_scale": "cosine logits",
    "norm": "a norm of what it mixes",
    "lambda_q1": "a difference of two softmaxes",
}
_SEPARATE_BIASES = ("q_bias", "k_bias", "v_bias")  # of BEiT, EVA-02 and Swin V2, beside a qkv without one
_OVER_CHANNELS = ("XCA", "ChannelAttention", "ChannelAttentionV2")


def attentions(model: nn.Module) -> list[Attention]:
    """Every attention of the network, in the order of its modules. Empty where there is none."""
    known = (_attention(name, module) for name, module in model.named_modules())
    return [attention for attention in known if attention is not None]


def known_attention(module: nn.Module | None) -> Attention | None:
    """The attention that a module is; None if it is none that is known, or no module."""
    return None if module is None else _attention("", module)


def is_plain_attention(module: nn.Module | None, *, softmax: bool = True) -> bool:
    """Whether a module is the papers' attention (:attr:`Attention.plain`); without ``softmax`` 1.5-entmax is, too."""
    attention = known_attention(module)
    return attention is not None and attention.plain and not (softmax and isinstance(module, EntmaxAttention))


def head_factors(module: nn.Module) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """:meth:`Attention.factors` of a module that is an attention; :class:`ConfigError` if it is none."""
    attention = known_attention(module)
    if attention is None:
        raise ConfigError(f"a {type(module).__name__} is no attention that is known")
    return attention.factors(dict(module.named_parameters()))


def mlps(model: nn.Module) -> list[Mlp]:
    """Every MLP of the network, in the order of its modules."""
    inside = tuple(f"{attention.name}." for attention in attentions(model))
    known = (_mlp(name, module) for name, module in model.named_modules() if not f"{name}.".startswith(inside))
    return [mlp for mlp in known if mlp is not None]


def write(factors: Mapping[Factor, Tensor], parameters: Mapping[str, Tensor]) -> Assignments:
    """Parameters in which ``factors`` have these values (out, in), float64; other rows as in ``parameters``."""
    by_parameter: dict[str, list[Factor]] = {}
    for factor, value in factors.items():
        if tuple(value.shape) != factor.shape:
            raise ValueError(f"{factor.name}: {tuple(value.shape)} is not {factor.shape}")
        by_parameter.setdefault(factor.name, []).append(factor)
    for name, parts in by_parameter.items():
        old = parameters[name]
        matrix = torch.empty(old.shape[::-1] if parts[0].transposed else old.shape, dtype=torch.float64)
        if sum(part.stop - part.start for part in parts) < len(matrix):
            matrix.copy_((old.T if parts[0].transposed else old).detach().double().cpu())
        for part in parts:
            matrix[part.start : part.stop] = factors[part]
        yield name, matrix.T.contiguous() if parts[0].transposed else matrix


def _mlp(name: str, module: nn.Module) -> Mlp | None:
    for first, last, gate in _MLPS:
        parts = {part: _layer(module, part) for part in (first, last, gate) if part is not None}
        if any(layer is None for layer in parts.values()):
            continue
        factors = {part: _part(f"{name}.{part}" if name else part, layer) for part, layer in parts.items()}
        up, kind = factors[first], type(module).__name__
        if gate is None and up.shape[0] == 2 * factors[last].columns:
            half = up.shape[0] // 2
            return Mlp(name, kind, replace(up, start=half), factors[last], replace(up, stop=half))
        return Mlp(name, kind, up, factors[last], factors[gate] if gate is not None else None)
    return None


def _attention(name: str, module: nn.Module) -> Attention | None:
    for inputs, outputs in _ATTENTIONS:
        layers = [_layer(module, part) for part in inputs]
        output = next((part for part in outputs if _layer(module, part) is not None), None)
        if output is None or any(layer is None for layer in layers):
            continue
        query, key, value = (
            _part(f"{name}.{part}" if name else part, layer, inputs.count(part), inputs[:at].count(part))
            for at, (part, layer) in enumerate(zip(inputs, layers, strict=True))
        )
        heads = _heads(module)
        if not heads or query.shape[0] % heads:
            continue
        kind = type(module).__name__
        return Attention(
            name=name,
            kind=kind,
            query=query,
            key=key,
            value=value,
            output=_part(f"{name}.{output}" if name else output, _layer(module, output)),
            heads=heads,
            key_heads=max(1, key.shape[0] * heads // query.shape[0]),
            over="channels" if kind in _OVER_CHANNELS else "tokens",
            additions=_additions(module),
            input_biases=_input_biases(name, module, (query, key, value)),
            temperature=getattr(getattr(module, "q_norm", None), "factor", 1.0),
        )
    return None


def _layer(module: nn.Module, name: str) -> nn.Module | None:
    """A submodule by its dotted name if it is a linear layer, of transformers' Conv1D, too."""
    for part in name.split("."):
        module = module._modules.get(part)  # type: ignore[assignment]
        if module is None:
            return None
    weight = getattr(module, "weight", None)
    linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    return module if linear and weight is not None and weight.ndim == 2 else None


def _part(name: str, layer: Any, parts: int = 1, at: int = 0) -> Factor:
    """Part ``at`` of a layer whose rows hold ``parts`` factors, one after the other."""
    transposed = type(layer).__name__ == "Conv1D"
    rows, columns = layer.weight.shape[::-1] if transposed else layer.weight.shape
    step = rows // parts
    bias = f"{name}.bias" if layer.bias is not None else None
    return Factor(f"{name}.weight", at * step, (at + 1) * step, columns, transposed, bias)


def _heads(module: nn.Module) -> int:
    """Number of heads: of the module, of the part that holds its projections, or of its configuration."""
    for holder in (module, getattr(module, "self", None), getattr(module, "config", None)):
        for name in _HEADS:
            heads = getattr(holder, name, None)
            if isinstance(heads, int):
                return heads
    return 0


def _additions(module: nn.Module) -> tuple[str, ...]:
    present = [
        addition for part, addition in _ADDITIONS.items()
        if getattr(module, part, None) is not None
        and not isinstance(getattr(module, part), nn.Identity | Temperature | bool)
        and not (part == "norm" and hasattr(module, "sr"))  # PVT v2's: of the keys' and values' inputs
    ]  # fmt: skip
    return tuple(dict.fromkeys(present))


def _input_biases(name: str, module: nn.Module, inputs: tuple[Factor, ...]) -> tuple[str, ...]:
    biases = [bias for bias in _SEPARATE_BIASES if isinstance(getattr(module, bias, None), nn.Parameter)]
    apart = [f"{name}.{bias}" if name else bias for bias in biases]
    return tuple(dict.fromkeys([*(factor.bias for factor in inputs if factor.bias is not None), *apart]))
