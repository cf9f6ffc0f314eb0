"""The stacked optimizers against one matrix at a time in float64, written here from the definitions."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dinoskip.optim import SOAP, KLShampoo
from dinoskip.optim.preconditioned import Incidents
from dinoskip.optim.soap import (
    Solve,
    cholesky_q,
    eigenvectors,
    merge_from_left,
    merge_from_right,
    orthonormal,
    power_iteration,
    repair_,
    sorted_eigenvectors,
    sorted_power_iteration,
    tiles,
)
from tests.helpers.devices import DEVICES


class Oracle:
    """SOAP for one parameter in float64. ``bases`` are set from outside after the first gradient."""

    def __init__(self, value: Tensor, sided: list[bool], settings: dict[str, Any]) -> None:
        self.value, self.sided, self.s = value.double().clone(), sided, settings
        self.m = torch.zeros_like(self.value)
        self.v = torch.zeros_like(self.value)
        self.factors: list[Tensor | None] = [
            torch.zeros(n, n, dtype=torch.float64) if on else None for n, on in zip(value.shape, sided, strict=True)
        ]
        self.bases: list[Tensor | None] = []
        self.step = 0

    def turn(self, tensor: Tensor, back: bool = False) -> Tensor:
        for at, basis in enumerate(self.bases):
            if basis is not None:
                tensor = torch.movedim(
                    torch.tensordot(basis if back else basis.T, tensor, dims=[[1], [at]]), 0, at
                )  # fmt: skip
        return tensor

    def learn(self, gradient: Tensor) -> None:
        beta = self.s["shampoo_beta"] if self.s["shampoo_beta"] >= 0 else self.s["betas"][1]
        for at, factor in enumerate(self.factors):
            if factor is not None:
                rows = gradient.movedim(at, 0).reshape(len(factor), -1)
                self.factors[at] = beta * factor + (1 - beta) * rows @ rows.T

    def update(self, gradient: Tensor) -> None:
        s, (beta1, beta2) = self.s, self.s["betas"]
        self.step += 1
        rotated = self.turn(gradient)
        # The first moment is kept in the original space here: that is what a rotated one must be equal to.
        self.m = beta1 * self.m + (1 - beta1) * gradient
        self.v = beta2 * self.v + (1 - beta2) * rotated**2
        update = self.turn(self.turn(self.m) / (self.v.sqrt() + s["eps"]), back=True)
        if s["normalize_grads"]:
            update = update / (1e-30 + update.square().mean().sqrt())
        size = s["lr"]
        if s["correct_bias"]:
            size *= (1 - beta2**self.step) ** 0.5 / (1 - beta1**self.step)
        self.value = (self.value - size * update) * (1 - s["lr"] * s["weight_decay"])
        self.learn(gradient)
        if self.step % s["precondition_frequency"] == 0:
            for at, (factor, basis) in enumerate(zip(self.factors, self.bases, strict=True)):
                if factor is not None and basis is not None:
                    order = torch.diag(basis.T @ factor @ basis).argsort(descending=True)
                    self.v = self.v.index_select(at, order)
                    self.bases[at] = torch.linalg.qr(factor @ basis[:, order]).Q


hyperparameters = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([1e-3, 3e-3]),
        "betas": st.sampled_from([(0.9, 0.95), (0.95, 0.95), (0.8, 0.99)]),
        "shampoo_beta": st.sampled_from([-1, 0.8]),
        "eps": st.sampled_from([1e-8, 1e-4]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
        "precondition_frequency": st.integers(4, 7),
        "normalize_grads": st.booleans(),
        "correct_bias": st.booleans(),
        "max_precond_dim": st.sampled_from([3, 10000]),
    }
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(2, 5), min_size=2, max_size=3).map(tuple), st.integers(1, 4), hyperparameters)
def test_stacked_is_one_matrix_at_a_time(shape: tuple[int, ...], count: int, chosen: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(hash((shape, count)) % 1000)
    own = [nn.Parameter(torch.randn(shape, generator=generator)) for _ in range(count)]
    optimizer = SOAP(own, **chosen)
    sided = [size <= chosen["max_precond_dim"] for size in shape]
    oracles = [Oracle(p.detach(), sided, chosen) for p in own]
    for step in range(9):
        late = step == 0 and count > 1
        for p in own:
            p.grad = torch.randn(shape, generator=generator)
        if late:
            own[-1].grad = None
        optimizer.step()
        for p, oracle in zip(own, oracles, strict=True):
            if p.grad is None:
                continue
            if not oracle.bases:
                oracle.learn(p.grad.double())
                oracle.bases = [None if one is None else one.double().clone() for one in optimizer.bases(p)]
            else:
                oracle.update(p.grad.double())
            torch.testing.assert_close(p.detach().double(), oracle.value, rtol=0, atol=1e-4)


def test_the_first_basis_diagonalises_the_first_factor() -> None:
    p = nn.Parameter(torch.zeros(4, 6))
    p.grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    optimizer = SOAP([p])
    optimizer.step()
    assert not p.detach().any(), "the first gradient changes no parameter"
    for gram, basis in zip((p.grad @ p.grad.T, p.grad.T @ p.grad), optimizer.bases(p), strict=True):
        assert basis is not None
        values = torch.linalg.eigvalsh(gram).flip(0)
        torch.testing.assert_close(basis.T @ gram @ basis, torch.diag(values), rtol=0, atol=1e-4)


def test_blocks_step_as_matrices_of_their_own() -> None:
    whole = nn.Parameter(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)))
    parts = [nn.Parameter(part.clone()) for part in whole.detach().chunk(3)]
    for make in (SOAP, KLShampoo):
        one = make([{"params": [whole], "blocks": 3}], precondition_frequency=3)
        three = make(parts, precondition_frequency=3)
        for step in range(7):
            whole.grad = torch.randn(12, 4, generator=torch.Generator().manual_seed(step))
            for part, gradient in zip(parts, whole.grad.chunk(3), strict=True):
                part.grad = gradient.clone()
            one.step()
            three.step()
        torch.testing.assert_close(whole.detach(), torch.cat([part.detach() for part in parts]), rtol=0, atol=1e-6)
        assert len(one.bases(whole)) == 6


def test_bases_are_set_and_refused() -> None:
    p, other = nn.Parameter(torch.zeros(1, 3, 4)), nn.Parameter(torch.zeros(5))
    optimizer = SOAP([p, other])
    with pytest.raises(ValueError, match="no gradient yet"):
        optimizer.bases(p)
    with pytest.raises(ValueError, match="no parameter of the optimizer"):
        optimizer.bases(nn.Parameter(torch.zeros(1)))
    for step in range(4):
        p.grad = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(step))
        other.grad = torch.ones(5)
        optimizer.step()
    assert optimizer.bases(other) == [None]
    old = [one.clone() for one in optimizer.bases(p) if one is not None]
    assert [tuple(one.shape) for one in old] == [(1, 1), (3, 3), (4, 4)]
    mean = old[1] @ optimizer.state[p]["exp_avg"][0] @ old[2].T
    optimizer.set_bases(p, [[[1.0]], torch.eye(3), torch.eye(4).numpy()])
    torch.testing.assert_close(optimizer.state[p]["exp_avg"][0], mean)  # in the original space it is what it was
    for wrong in ([None] * 3, [torch.eye(1), torch.eye(3)], [torch.eye(1), torch.eye(4), torch.eye(3)]):
        with pytest.raises(ValueError, match=r"\(3, 3\), \(4, 4\)"):
            optimizer.set_bases(p, wrong)


def test_what_cannot_be_is_refused() -> None:
    p = [nn.Parameter(torch.zeros(4, 4))]
    for wrong in ({"betas": (1.0, 0.9)}, {"lr": -1.0}, {"precondition_frequency": 0}, {"shampoo_beta": 1.0}):
        for make in (SOAP, KLShampoo):
            with pytest.raises(ValueError, match="must"):
                make(p, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="none of soap, ecs"):
        SOAP(p, variant="other")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a: a parameter of shape"):
        SOAP([{"params": p, "names": ["a"], "blocks": 3}])
    with pytest.raises(ValueError, match="complex"):
        SOAP([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])


def test_overflowing_factors_are_survived_and_counted() -> None:
    """Gradients near the end of float32: the first products overflow, and no NaN reaches the parameters."""
    for make, size in ((SOAP, 2e18), (KLShampoo, 2e18), (SOAP, 1e25)):
        p = nn.Parameter(torch.zeros(6, 6))
        optimizer = make([p], precondition_frequency=1, lr=1e-3)
        for step in range(4):
            p.grad = torch.randn(6, 6, generator=torch.Generator().manual_seed(step)).clamp(-1, 1) * size
            optimizer.step()
            assert all(torch.isfinite(one).all() for one in optimizer.bases(p) if one is not None)
        if size > 1e20:
            assert optimizer.incidents.kept > 0


def test_saved_state_of_other_settings_is_refused() -> None:
    def taken(**settings: Any) -> SOAP:
        p = nn.Parameter(torch.zeros(4, 6))
        p.grad = torch.ones(4, 6)
        optimizer = SOAP([{"params": [p], "names": ["w"]}], **settings)
        optimizer.step()
        return optimizer

    one = taken(max_precond_dim=5)
    saved = {"state": taken().state_dict()["state"], "param_groups": one.state_dict()["param_groups"]}
    with pytest.raises(ValueError, match="w: the saved optimizer state has basis_1"):
        one.load_state_dict(saved)


def test_autocast_does_not_reach_the_factors() -> None:
    gradient = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    left = []
    for enabled in (False, True):
        p = nn.Parameter(torch.zeros(8, 8))
        p.grad = gradient.clone()
        optimizer = SOAP([p])
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            optimizer.step()
        left.append(optimizer.state[p]["factor_0"])
    assert torch.equal(*left)


def test_a_split_stack_leaves_nothing_behind() -> None:
    """Members that wait for a gradient do not hold on to the memory of those that go on."""
    own = [nn.Parameter(torch.zeros(4, 6)) for _ in range(4)]
    optimizer = SOAP(own)
    for idle in ([], [3], [2, 3], []):
        for at, p in enumerate(own):
            p.grad = None if at in idle else torch.randn(4, 6, generator=torch.Generator().manual_seed(at))
        optimizer.step()
        storages = {v.untyped_storage().data_ptr(): v.untyped_storage().nbytes() for s in optimizer.state.values()
                    for v in s.values() if isinstance(v, Tensor)}  # fmt: skip
        assert sum(storages.values()) == 4 * 4 * (2 * 24 + 2 * 16 + 2 * 36)


# --- refresh of the bases


def factors(count: int, n: int, scale: float = 1.0) -> Tensor:
    rows = torch.randn(count, n, 2 * n, generator=torch.Generator().manual_seed(n))
    return rows @ rows.mT * scale


def test_eigenbases_diagonalise_in_order() -> None:
    given = factors(3, 7)
    for descending in (True, False):
        basis = (sorted_eigenvectors if descending else eigenvectors)(given, given)[0]
        diagonal = basis.mT @ given @ basis
        values = diagonal.diagonal(dim1=1, dim2=2)
        torch.testing.assert_close(diagonal, torch.diag_embed(values), rtol=0, atol=2e-4)
        assert ((values.diff() <= 0) == descending).all()


def test_a_power_step_sorts_and_spans_what_the_definition_says() -> None:
    given = factors(2, 6)
    basis = orthonormal(torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(0)))
    new, order = sorted_power_iteration(given, basis)
    for i in range(2):
        estimate = torch.diag(basis[i].T @ given[i] @ basis[i])
        assert order[i].tolist() == sorted(range(6), key=lambda k: -estimate[k])
        torch.testing.assert_close(new[i], torch.linalg.qr(given[i] @ basis[i][:, order[i]]).Q)
    plain, none = power_iteration(given, basis)
    assert none is None
    torch.testing.assert_close(plain[0], torch.linalg.qr(given[0] @ basis[0]).Q)


@pytest.mark.parametrize("solve", [sorted_power_iteration, power_iteration])
def test_a_product_that_overflows_is_done_in_float64(solve: Solve, caplog: pytest.LogCaptureFixture) -> None:
    """Finite factors whose product with the basis is beyond float32: the first answer is NaN, the second is right."""
    small = factors(3, 5)
    given = small.clone()
    given[1] *= 3e38 / given[1].abs().max()
    old = orthonormal(torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(1)))
    new, order = solve(given, old)
    assert not torch.isfinite(new[1]).all(), "the float32 path was expected to fail here"
    incidents = Incidents()
    with caplog.at_level(logging.WARNING, "dinoskip"):
        repair_(new, order, given, old, solve, incidents, "stack")
    assert (incidents.retried, incidents.kept) == (1, 0)
    expected, places = solve(small.double(), old.double())
    torch.testing.assert_close(new, expected.float(), rtol=0, atol=1e-4)
    if order is not None:
        assert torch.equal(order, places)
    assert "stack, matrix 1: basis computed again in float64" in caplog.text


@pytest.mark.parametrize("solve", [sorted_power_iteration, power_iteration, sorted_eigenvectors])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_factor_leaves_the_old_basis(solve: Solve, bad: float) -> None:
    given = factors(3, 4)
    given[2, 0, 1] = bad
    old = orthonormal(torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1)))
    incidents = Incidents()
    try:
        new, order = solve(given, old)
    except torch.linalg.LinAlgError:
        pytest.fail("a failed decomposition must not be raised")
    new[2] = torch.nan  # whatever LAPACK made of it
    repair_(new, order, given, old, solve, incidents, "stack")
    assert (incidents.retried, incidents.kept) == (0, 1)
    assert torch.equal(new[2], old[2])
    assert torch.isfinite(new).all()
    if order is not None:
        assert order[2].tolist() == [0, 1, 2, 3]


def unsigned(given: Tensor, like: Tensor) -> Tensor:
    """Columns turned to the side on which those of ``like`` are: QR leaves their signs open."""
    return given * (given * like).sum(-2, keepdim=True).sign()


@pytest.mark.parametrize("device", DEVICES)
def test_cholesky_gives_the_basis_of_lapack(device: str) -> None:
    power = factors(9, 64)
    basis = cholesky_q(power.to(device)).cpu()
    wanted = torch.linalg.qr(power.double()).Q.float()
    torch.testing.assert_close(unsigned(basis, wanted), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rank", [0, 1, 4])
def test_cholesky_is_orthonormal_and_the_same_each_time_at_low_rank(device: str, rank: int) -> None:
    """As the class token's factor is in the first steps: all but a few columns are rounding."""
    noise = torch.Generator().manual_seed(1)
    rows = torch.randn(rank, 96, generator=noise) * 1e-3
    factor = (rows.T @ rows)[None].to(device)
    power = torch.bmm(factor, torch.linalg.eigh(factor).eigenvectors.flip(-1))
    bases = [cholesky_q(power) for _ in range(8)]
    assert all(torch.equal(basis, bases[0]) for basis in bases)
    eye = torch.eye(96, dtype=torch.float64)
    basis = bases[0][0].double().cpu()
    torch.testing.assert_close(basis.T @ basis, eye, rtol=0, atol=1e-5)
    if not rank:
        assert torch.equal(basis, eye)


def test_cholesky_of_what_is_not_finite_is_nan() -> None:
    power = factors(3, 8)
    power[1, 2, 3] = torch.inf
    found = cholesky_q(power)
    assert torch.isfinite(found).flatten(1).all(1).tolist() == [True, False, True]


# --- shapes

shapes = st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple)


@given(shapes, st.integers(1, 60))
def test_merging_keeps_order_and_size_and_could_go_no_further(shape: tuple[int, ...], limit: int) -> None:
    for merged in (merge_from_left(shape, limit), merge_from_right(shape, limit)):
        assert math.prod(merged) == math.prod(shape)
        bounds = np.cumprod(shape).tolist()
        assert set(np.cumprod(merged).tolist()) <= {*bounds, 1}
        for size in merged:
            assert size <= limit or size in shape


def test_merging_as_the_references_do() -> None:
    assert merge_from_left((12, 3, 4, 4), 48) == (36, 16)
    assert merge_from_left((1, 1, 8), 10) == (8,)
    assert merge_from_left((64, 32), 48) == (64, 32)
    assert merge_from_left((), 5) == (1,)
    assert merge_from_right((12, 3, 4, 4), 72) == (12, 48)
    assert merge_from_right((1, 1, 4), 72) == (4,)
    assert merge_from_right((6, 8), 72) == (48,)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple), st.integers(1, 13))
def test_tiles_cover_everything_once(shape: tuple[int, ...], limit: int) -> None:
    pieces, seen = tiles(shape, limit), np.zeros(shape, int)
    for index, piece in enumerate(pieces):
        seen[piece.cut if piece.cut is not None else ...] += 1
        assert max(piece.dims) <= limit
        assert all(piece.sided)
        assert (piece.index, piece.count) == (index, len(pieces))
    assert (seen == 1).all()
