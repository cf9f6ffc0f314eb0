"""Activations of each block of a ViT: tokens, queries and keys, and the outputs of its sub-blocks, block by block.

Forward hooks of one pass; they are gone when it ends. Shapes: tokens (B, N, C) with prefix tokens first, queries and
keys (B, heads, N, dh).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from timm.layers import Attention
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dinoskip.models import Backbone
from dinoskip.models.attention_sites import attentions, mlps
from dinoskip.models.levels import inputs_and_outputs_of
from dinoskip.models.vit import embed

_PARTS = ("norm1", "attn", "ls1", "norm2", "ls2")


@dataclass(frozen=True)
class BlockActivations:
    """One block's pass. What a block does not have (another kind than pre-norm with fused qkv) is None."""

    number: int
    """1..depth."""
    block: nn.Module
    inputs: Tensor
    """Tokens that enter the block, before any norm."""
    output: Tensor
    """Tokens that leave it."""
    normed: Tensor | None = None
    """norm1's output: what attention sees."""
    attended: Tensor | None = None
    """Output of attention, LayerScale included, skip not."""
    middle: Tensor | None = None
    """norm2's input: attention's output, plus the skip where there is one."""
    mixed: Tensor | None = None
    """Output of the MLP, LayerScale included, skip not."""

    @property
    def attention(self) -> Attention | None:
        """The block's attention, if it is timm's with fused qkv."""
        attention = getattr(self.block, "attn", None)
        return attention if isinstance(attention, Attention) else None

    def query_key(self) -> tuple[Tensor, Tensor] | None:
        """Queries and keys (B, heads, N, dh) after q/k norm, unscaled; None without fused qkv."""
        attention = self.attention
        if attention is None or self.normed is None:
            return None
        batch, count, _ = self.normed.shape
        query, key, _ = attention.qkv(self.normed).reshape(batch, count, 3, attention.num_heads, -1).unbind(2)
        return attention.q_norm(query.transpose(1, 2)), attention.k_norm(key.transpose(1, 2))


def block_activations(network: VisionTransformer | Backbone, images: Tensor) -> Iterator[BlockActivations]:
    """Pass ``images`` (B, 3, H, W), normalised, of the weights' dtype and device, through a network, block by block.

    The network's mode is the caller's business. Gradients flow if they are enabled.
    """
    if isinstance(network, Backbone):
        adapter = network.adapter
        tokens, context = adapter.embed(images)
        for index, block in enumerate(adapter.blocks):
            passed = run_block(block, tokens, index + 1, lambda x, i=index: adapter.run_block(i, x, context))  # type: ignore[misc]
            yield passed
            tokens = passed.output
        return
    tokens = embed(network, images)
    for number, block in enumerate(network.blocks, 1):
        passed = run_block(block, tokens, number, block)
        yield passed
        tokens = passed.output


@torch.no_grad()
def site_activations(
    model: nn.Module, images: Tensor, others: Iterable[str] = ()
) -> tuple[list[BlockActivations], dict[str, Tensor]]:
    """One for each attention of any network, with the MLP that follows it, and the inputs of the modules ``others``.

    ``block`` is then the attention module; its tokens are those that it is given, (B, n, C) whatever their layout, as
    of windows or channels. Empty for a network without attention that is known.
    """
    present, following = attentions(model), mlps(model)
    names = [*(site.name for site in present), *(site.name for site in following), *others]
    sites = {name: model.get_submodule(name) for name in names if name}
    inputs, outputs = inputs_and_outputs_of(model, sites, images)
    found = []
    for number, attention in enumerate(present, 1):
        mlp = following[number - 1].name if number <= len(following) else attention.name
        tokens, attended, mixed = (
            as_tokens(tensor) for tensor in (inputs[attention.name], outputs[attention.name], outputs[mlp])
        )
        block = sites[attention.name]
        found.append(BlockActivations(number, block, tokens, mixed, tokens, attended, None, mixed))
    return found, inputs


def as_tokens(features: Tensor) -> Tensor:
    """Features (B, ..., C) as tokens (B, n, C)."""
    return features.flatten(1, -2)


def run_block(block: nn.Module, tokens: Tensor, number: int, forward: Callable[[Tensor], Tensor]) -> BlockActivations:
    """The activations of one block's forward pass; ``forward`` calls it."""
    if not isinstance(block, TimmBlock):
        return BlockActivations(number, block, tokens, forward(tokens))
    passes: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str) -> object:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            passes[name] = (inputs[0], output)

        return hook

    with ExitStack() as stack:
        for name in _PARTS:
            handle = block.get_submodule(name).register_forward_hook(keep(name))  # type: ignore[arg-type]
            stack.callback(handle.remove)
        output = forward(tokens)
    return BlockActivations(
        number, block, tokens, output,
        normed=passes["norm1"][1], attended=passes["ls1"][1], middle=passes["norm2"][0], mixed=passes["ls2"][1],
    )  # fmt: skip
