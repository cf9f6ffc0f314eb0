"""Parts that the examples of this folder share: an embedded text, training, intervals over seeds, rounding.

The text is the reference of the Python language, as the standard library ships it for ``help()`` (PSF licence); it is
read, not copied. Models are transformers' own, of a size that one core trains in seconds.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pydoc_data import topics

import scipy.stats
import torch
from torch import Tensor, nn

from dinoskip.diagnostics.quantization import fake_quantise

Batch = dict[str, Tensor]


def text_bytes() -> tuple[Tensor, Tensor]:
    """The text as bytes, int64: the first nine tenths to train on, the last tenth to score."""
    pages = "\n".join(topics.topics[name] for name in sorted(topics.topics)).encode()
    whole = torch.frombuffer(bytearray(pages), dtype=torch.uint8).long()
    return whole[: len(whole) * 9 // 10], whole[len(whole) * 9 // 10 :]


def windows(text: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """Return (count, length) bytes from random places of a text."""
    starts = torch.randint(0, len(text) - length, (count, 1), generator=generator)
    return text[starts + torch.arange(length)]


MASK = 256


def masked(bytes_: Tensor, generator: torch.Generator) -> Batch:
    """BERT's task: 15 % of the bytes are replaced by :data:`MASK` and to be told; the others count nothing (-100)."""
    chosen = torch.rand(bytes_.shape, generator=generator) < 0.15
    return {"input_ids": bytes_.masked_fill(chosen, MASK), "labels": bytes_.masked_fill(~chosen, -100)}


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, batch: Callable[[int], Batch], warmup: int = 20
) -> float:
    """Train by a model's own ``loss``: a linear warm-up, then a cosine to 0. Returns the last ten losses' mean."""
    model.train()
    losses: list[float] = []
    warmup = min(warmup, steps // 4 + 1)
    half = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - warmup)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, half], [warmup])
    for step in range(steps):
        loss = model(**batch(step)).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return statistics.mean(losses[-10:])


@torch.no_grad()
def bits(model: nn.Module, batches: Sequence[Batch]) -> float:
    """Bits a byte: the mean loss over batches / ln 2."""
    model.eval()
    return statistics.mean(model(**batch).loss.item() for batch in batches) / 0.6931471805599453


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % t interval over seeds of training, ``2.51 [2.44, 2.58]``."""
    mean, n = statistics.mean(values), len(values)
    half = float(scipy.stats.t.ppf(0.975, n - 1)) * statistics.stdev(values) / n**0.5
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"


def table(rows: Mapping[str, Mapping[str, Sequence[float]]], against: str | None = None) -> str:
    """Lines of ``rows[name][column]``, a number a seed; with ``against`` also the paired difference to that row."""
    columns = list(next(iter(rows.values())))
    lines = []
    for name, own in rows.items():
        cells = [f"{column} {interval(own[column])}" for column in columns]
        if against is not None and name != against:
            apart = [a - b for a, b in zip(own[columns[0]], rows[against][columns[0]], strict=True)]
            cells.append(f"minus {against} {interval(apart)}")
        lines.append(f"{name:<28}" + "   ".join(cells))
    return "\n".join(lines)


def without_skips(model: nn.Module) -> nn.Module:
    """Take the skip connections out of every block of a GPT-2 of transformers, in place; returns the model."""

    def forward(
        block: nn.Module, hidden: Tensor, cache: object = None, mask: Tensor | None = None, *_: object, **kw: object
    ) -> Tensor:
        hidden = block.attn(block.ln_1(hidden), past_key_values=cache, attention_mask=mask)[0]
        return block.mlp(block.ln_2(hidden))

    for block in model.transformer.h:
        block.forward = partial(forward, block)
    return model


def quantised(model: nn.Module, weights: int, activations: int, calibration: Sequence[Batch]) -> nn.Module:
    """A copy of a GPT-2 in which weights and activations are rounded, as dinoskip.diagnostics.quantization does ViTs.

    Weights by output channel; activations by tensor, at what enters norms, attention and MLP, in the range that they
    have over ``calibration``. Nothing is clipped and no outlier treated. 32 bits: as they are.
    """
    model = copy.deepcopy(model).eval()
    for block in model.transformer.h if weights < 32 else ():
        for layer in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj):
            rows = layer.weight.data.T  # a Conv1D has (in, out)
            low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
            layer.weight.data.copy_(fake_quantise(rows, weights, low, high).T)
    if activations == 32:
        return model
    seen: dict[int, list[Tensor]] = {}
    for site in sites(model):
        site.register_forward_pre_hook(lambda at, inputs: seen.setdefault(id(at), []).append(inputs[0].detach()))
    bits(model, calibration)
    ends = {site: (torch.cat(seen[id(site)]).amin(), torch.cat(seen[id(site)]).amax()) for site in sites(model)}
    for site, (low, high) in ends.items():
        site._forward_pre_hooks.clear()
        site.register_forward_pre_hook(
            lambda _, inputs, low=low, high=high: (fake_quantise(inputs[0], activations, low, high), *inputs[1:])
        )
    return model


def sites(model: nn.Module) -> list[nn.Module]:
    """The norms, first matrices of attention, and MLPs of a GPT-2, whose inputs are rounded."""
    blocks = model.transformer.h
    return [one for block in blocks for one in (block.ln_1, block.attn.c_attn, block.ln_2, block.mlp)] + [
        model.transformer.ln_f
    ]


def kurtosis(model: nn.Module, batches: Sequence[Batch]) -> float:
    """Largest excess kurtosis of what enters a norm, over the blocks: 0 for Gaussian activations."""
    seen: dict[int, list[Tensor]] = {}
    norms = [one for block in model.transformer.h for one in (block.ln_1, block.ln_2)]
    hooks = [
        one.register_forward_pre_hook(
            lambda at, inputs: seen.setdefault(id(at), []).append(inputs[0].detach().flatten())
        )
        for one in norms[1:]
    ]
    bits(model, batches)
    for hook in hooks:
        hook.remove()
    return max(float(scipy.stats.kurtosis(torch.cat(own).double().numpy())) for own in seen.values())
