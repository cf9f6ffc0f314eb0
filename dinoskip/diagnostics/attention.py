"""Measures of attention matrices, recomputed from queries and keys, so that fused attention needs no change."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dinoskip.diagnostics.activations import BlockActivations
from dinoskip.models.entmax import attention_rows
from dinoskip.models.rank_collapse import condition_number


@dataclass(frozen=True)
class AttentionMeasures:
    """Attention of one block. All but the condition numbers are over every image and head given."""

    diagonal: float
    """Mean A_ii."""
    entropy: float
    """Mean entropy of a row over ln n: 1 is uniform, 0 is one token."""
    diagonal_wins: float
    """Share of rows whose largest entry is on the diagonal."""
    gap: float
    """Mean of a row's diagonal logit minus its largest other logit."""
    kappa: tuple[float, ...] = ()
    """Median κ(A) over images, one a head looked at; cut at 4.5e15."""
    rank_deficient: bool = False
    """Whether any κ met that limit."""

    @property
    def kappa_median(self) -> float:
        """Median over the heads looked at."""
        return float(torch.tensor(self.kappa, dtype=torch.float64).quantile(0.5)) if self.kappa else math.nan


def attention_of(block: BlockActivations) -> tuple[Tensor, Tensor] | None:
    """Logits and attention (B, heads, N, N) of a block in the pass's dtype; None without fused qkv."""
    pair, attention = block.query_key(), block.attention
    if pair is None or attention is None:
        return None
    logits = (pair[0] * attention.scale) @ pair[1].mT
    return logits, attention_rows(attention, logits)


@torch.no_grad()
def attention_measures(block: BlockActivations, *, images: int = 4, heads: int = 3) -> AttentionMeasures | None:
    """Measures of a block's attention; κ (O(n³)) of at most ``images`` images and of ``heads`` heads, evenly spaced.

    ``heads=0`` leaves κ out. None for blocks without fused qkv.
    """
    tensors = attention_tensors(block, images=images, heads=heads)
    return None if tensors is None else measures_of(*tensors)


@torch.no_grad()
def attention_tensors(block: BlockActivations, *, images: int, heads: int) -> tuple[Tensor, Tensor] | None:
    """Return the tensors that :func:`measures_of` reads of a block, on the block's device: nothing waits for a GPU.

    Four means float64 (4,), in the order of the fields, and the attention (images, heads, N, N) of which κ is taken.
    """
    computed = attention_of(block)
    if computed is None:
        return None
    logits, attention = computed
    count = attention.shape[-1]
    diagonal = attention.diagonal(dim1=-2, dim2=-1)
    others = logits.masked_fill(torch.eye(count, dtype=torch.bool, device=logits.device), -math.inf)
    self_logits = logits.diagonal(dim1=-2, dim2=-1)
    where = torch.arange(count, device=logits.device)
    means = (
        diagonal.double().mean(),
        torch.special.entr(attention.double()).sum(-1).mean(),
        (attention.argmax(-1) == where).double().mean(),
        (self_logits - others.amax(-1)).double().mean(),
    )
    picked = torch.linspace(0, attention.shape[1] - 1, min(heads, attention.shape[1])).round().long().tolist()
    chosen = [attention[:images, head] for head in picked]
    return torch.stack(means), torch.stack(chosen, 1) if chosen else attention[:images, :0]


def measures_of(means: Tensor, chosen: Tensor) -> AttentionMeasures:
    """Measures from the two tensors of :func:`attention_tensors`; κ is taken on the host: few and small matrices."""
    kappas: tuple[float, ...] = ()
    deficient = False
    if chosen.shape[1]:
        conditioning = condition_number(chosen.cpu())
        kappas = tuple(conditioning.kappa.quantile(0.5, dim=0).tolist())
        deficient = bool(conditioning.rank_deficient.any())
    diagonal, entropy, wins, gap = means.tolist()
    return AttentionMeasures(
        diagonal=diagonal,
        entropy=entropy / math.log(chosen.shape[-1]),
        diagonal_wins=wins,
        gap=gap,
        kappa=kappas,
        rank_deficient=deficient,
    )
