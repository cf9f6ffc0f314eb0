"""InfoNCE with its own gradient, against torch's cross-entropy of the whole matrix of scores, on one and more ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from dinoskip.io.files import load_tensors, save_tensors
from dinoskip.runtime.distributed import World
from dinoskip.training import info_nce as module
from dinoskip.training.info_nce import info_nce
from tests.helpers.ranks import on_ranks


def pairs(count: int, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """Unit queries and keys in float64, keys near their queries."""
    rng = torch.Generator().manual_seed(seed)
    queries = torch.randn(count, dim, generator=rng, dtype=torch.float64)
    keys = queries + torch.randn(count, dim, generator=rng, dtype=torch.float64)
    return F.normalize(queries, dim=-1).requires_grad_(), F.normalize(keys, dim=-1).requires_grad_()


def plain(queries: Tensor, keys: Tensor, temperature: float, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and accuracy from the matrix of all scores."""
    scores = queries @ torch.cat([keys, negatives]).T / temperature
    own = torch.arange(len(queries))
    return F.cross_entropy(scores, own), (scores.diagonal() >= scores.amax(1)).double().mean()


@settings(max_examples=50, deadline=None)
@given(
    count=st.integers(1, 20),
    dim=st.integers(1, 6),
    rows=st.integers(1, 9),
    queue=st.integers(0, 5),
    temperature=st.floats(0.05, 2),
    seed=st.integers(0, 10**6),
)
def test_loss_and_gradients_equal_those_of_the_whole_matrix(
    count: int, dim: int, rows: int, queue: int, temperature: float, seed: int
) -> None:
    queries, keys = pairs(count, dim, seed)
    negatives = pairs(queue, dim, seed + 1)[0].detach() if queue else torch.zeros(0, dim, dtype=torch.float64)
    held = torch.cat([torch.zeros(2, dim, dtype=torch.float64), negatives]) if queue else None  # a queue not yet full
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_CPU", rows * (count + queue))
        loss, accuracy = info_nce(queries, keys, temperature, room=count, negatives=held)
    ours = torch.autograd.grad(loss * 3, (queries, keys))
    expected, share = plain(queries, keys, temperature, negatives)
    theirs = torch.autograd.grad(expected * 3, (queries, keys))
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    assert float(accuracy) == pytest.approx(float(share))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_no_query_is_no_loss() -> None:
    queries, keys = (torch.zeros(0, 4, requires_grad=True) for _ in range(2))
    loss, accuracy = info_nce(queries, keys, 0.1, room=3)
    (gradient,) = torch.autograd.grad(loss, queries)
    assert (loss.item(), accuracy.item(), gradient.shape) == (0, 0, (0, 4))


def test_a_second_backward_pass_is_an_error() -> None:
    queries, keys = pairs(3, 2, 0)
    loss = info_nce(queries, keys, 0.1, room=3).loss
    torch.autograd.grad(loss, queries, retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        torch.autograd.grad(loss, queries)


SHARES = ((0, 5), (5, 5), (5, 12))  # of twelve pairs, on three ranks: one has none


def shared(here: World, out: str) -> None:
    """Loss and gradients on ranks that hold unequal parts."""
    queries, keys = (whole.detach()[slice(*SHARES[here.rank])].requires_grad_() for whole in pairs(12, 4, seed=3))
    negatives = pairs(3, 4, seed=4)[0].detach()
    loss, accuracy = info_nce(queries, keys, 0.2, room=8, negatives=negatives)
    gradients = torch.autograd.grad(loss, (queries, keys))
    names = ("loss", "accuracy", "queries", "keys")
    save_tensors(
        Path(f"{out}-{here.rank}"), dict(zip(names, (loss.detach()[None], accuracy[None], *gradients), strict=True))
    )


def test_ranks_together_have_the_loss_of_one(tmp_path: Path) -> None:
    """The mean over ranks is the loss, and, as ranks average gradients, each rank's are three times its part's."""
    on_ranks(3, tmp_path, shared, str(tmp_path / "out"))
    parts = [load_tensors(tmp_path / f"out-{rank}") for rank in range(3)]
    queries, keys = pairs(12, 4, seed=3)
    expected, share = plain(queries, keys, 0.2, pairs(3, 4, seed=4)[0].detach())
    gradients = torch.autograd.grad(expected, (queries, keys))
    torch.testing.assert_close(torch.stack([part["loss"] for part in parts]).mean(), expected.detach())
    torch.testing.assert_close(torch.stack([part["accuracy"] for part in parts]).mean(), share)
    for name, whole in zip(("queries", "keys"), gradients, strict=True):
        torch.testing.assert_close(torch.cat([part[name] for part in parts]) / 3, whole, rtol=1e-9, atol=1e-12)
