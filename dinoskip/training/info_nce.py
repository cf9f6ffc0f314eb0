"""InfoNCE (van den Oord et al. 2018, arXiv:1807.03748) over the keys of all ranks, a few rows of scores at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dinoskip.runtime.distributed import all_ranks, gather_rows

# Scores in work at a time: on a CPU what stays in its cache, on a GPU what fills it.
CHUNK_CPU, CHUNK_GPU = 1 << 20, 1 << 24


class Contrast(NamedTuple):
    """Scalars of at least float32, whose means over ranks are those of one rank that holds all queries."""

    loss: Tensor  # mean cross-entropy in nats, differentiable once in queries and keys; 0 without queries
    accuracy: Tensor  # share of queries of which no key is nearer than their own, 0..1


def info_nce(
    queries: Tensor, keys: Tensor, temperature: float, *, room: int, negatives: Tensor | None = None
) -> Contrast:
    """Cross-entropy of finding query i's key i among the keys of all queries of all ranks.

    Every rank must call it. Keys go to all ranks, and their gradients come back, so that the result does not depend
    on how many ranks share the queries. Call it outside autocast.

    Args:
        queries: (P, C), unit vectors; P may be 0, and another on each rank.
        keys: (P, C), unit vectors.
        temperature: by which inner products are divided.
        room: rows that every rank's P fits in.
        negatives: (Q, C), keys that are no query's; rows of zeros are left out. No gradient goes to them.
    """
    ranks = all_ranks()
    work = torch.promote_types(queries.dtype, torch.float32)
    queries, keys = queries.to(work), keys.to(work)
    valid, first = torch.ones(len(keys), dtype=torch.bool, device=keys.device), 0
    if ranks.size > 1:
        empty = (0, 0, 0, room - len(keys))
        keys = gather_rows(torch.nn.functional.pad(keys, empty))
        valid = gather_rows(torch.nn.functional.pad(valid, empty[2:]))
        first = ranks.rank * room
    share = ranks.size / valid.sum().clamp(min=1).to(work)
    if negatives is not None:
        keys = torch.cat([keys, negatives.to(work)])
        valid = torch.cat([valid, negatives.any(1)])
    loss, hits = _CrossEntropy.apply(queries, keys, valid, first, temperature)
    return Contrast(loss * share, hits * share)


class _CrossEntropy(torch.autograd.Function):
    """Sum over queries of the cross-entropy with key ``first + i``, with its gradient made in the same pass.

    Autograd on the plain formulation keeps several tensors of the size of all scores (P, K): of 64 images of 196
    patches 600 MB each. Here a few rows are taken at a time, and only the gradients are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, valid: Tensor, first: int, temperature: float
    ) -> tuple[Tensor, Tensor]:
        wanted = ctx.needs_input_grad
        query_gradient = torch.empty_like(queries) if wanted[0] else None
        key_gradient = torch.zeros_like(keys) if wanted[1] else None
        bias = torch.zeros_like(keys[:, 0]).masked_fill_(~valid, -torch.inf)
        loss, hits = queries.new_zeros(()), queries.new_zeros(())
        step = max(1, (CHUNK_CPU if queries.device.type == "cpu" else CHUNK_GPU) // max(1, len(keys)))
        for low in range(0, len(queries), step):
            part = queries[low : low + step]
            scores = torch.addmm(bias, part, keys.T, alpha=1 / temperature)
            diagonal = scores.diagonal(first + low)[: len(part)]  # of every query with its own key
            positive, highest = diagonal.clone(), scores.amax(1)
            total = scores.sub_(highest[:, None]).exp_().sum(1)
            loss += (total.log() + highest - positive).sum()
            hits += (positive >= highest).sum()
            scores.div_(total[:, None])  # the softmax
            diagonal.sub_(1)
            scores.mul_(1 / temperature)
            if query_gradient is not None:
                torch.mm(scores, keys, out=query_gradient[low : low + step])
            if key_gradient is not None:
                key_gradient.addmm_(scores.T, part)
        ctx.gradients = query_gradient, key_gradient
        ctx.mark_non_differentiable(hits)
        return loss, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        if ctx.gradients is None:
            raise RuntimeError("info_nce gives its gradient once; compute the loss anew for another backward pass")
        (query_gradient, key_gradient), ctx.gradients = ctx.gradients, None
        scaled = [None if gradient is None else gradient.mul_(grad_loss) for gradient in (query_gradient, key_gradient)]
        return scaled[0], scaled[1], None, None, None
