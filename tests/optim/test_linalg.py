from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from dinoskip.optim.linalg import Incidents, Method, eigenbases, orthonormal, power_step, repair_, solve

SORTED_QR, QR, EIGH = Method(False, True), Method(False, False), Method(True, True)


def factors(count: int, n: int, scale: float = 1.0) -> Tensor:
    rows = torch.randn(count, n, 2 * n, generator=torch.Generator().manual_seed(n))
    return rows @ rows.mT * scale


def test_eigenbases_diagonalise_in_order() -> None:
    given = factors(3, 7)
    for descending in (True, False):
        basis = eigenbases(given, descending=descending)
        diagonal = basis.mT @ given @ basis
        values = diagonal.diagonal(dim1=1, dim2=2)
        torch.testing.assert_close(diagonal, torch.diag_embed(values), rtol=0, atol=2e-4)
        assert ((values.diff() <= 0) == descending).all()


def test_a_power_step_sorts_and_spans_what_the_definition_says() -> None:
    given = factors(2, 6)
    basis = orthonormal(torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(0)))
    new, order = power_step(given, basis, order=True)
    assert order is not None
    for i in range(2):
        estimate = torch.diag(basis[i].T @ given[i] @ basis[i])
        assert order[i].tolist() == sorted(range(6), key=lambda k: -estimate[k])
        torch.testing.assert_close(new[i], torch.linalg.qr(given[i] @ basis[i][:, order[i]]).Q)
    plain, none = power_step(given, basis, order=False)
    assert none is None
    torch.testing.assert_close(plain[0], torch.linalg.qr(given[0] @ basis[0]).Q)


@pytest.mark.parametrize("method", [SORTED_QR, QR], ids=["sorted", "unsorted"])
def test_a_product_that_overflows_is_done_in_float64(method: Method, caplog: pytest.LogCaptureFixture) -> None:
    """Finite factors whose product with the basis is beyond float32: the first answer is NaN, the second is right."""
    small = factors(3, 5)
    given = small.clone()
    given[1] *= 3e38 / given[1].abs().max()
    old = orthonormal(torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(1)))
    new, order = solve(method, given, old)
    assert not torch.isfinite(new[1]).all(), "the float32 path was expected to fail here"
    incidents = Incidents()
    with caplog.at_level(logging.WARNING, "dinoskip"):
        logging.getLogger("dinoskip").propagate = True
        repair_(method, new, order, given, old, incidents, "stack")
    assert (incidents.retried, incidents.kept) == (1, 0)
    expected, places = solve(method, small.double(), old.double())
    torch.testing.assert_close(new, expected.float(), rtol=0, atol=1e-4)
    if order is not None:
        assert torch.equal(order, places)
    assert "stack, matrix 1: basis computed again in float64" in caplog.text


@pytest.mark.parametrize("method", [SORTED_QR, QR, EIGH], ids=["sorted", "unsorted", "eigh"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_factor_leaves_the_old_basis(method: Method, bad: float) -> None:
    given = factors(3, 4)
    given[2, 0, 1] = bad
    old = orthonormal(torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1)))
    incidents = Incidents()
    try:
        new, order = solve(method, given, old)
    except torch.linalg.LinAlgError:
        pytest.fail("a failed decomposition must not be raised")
    new[2] = torch.nan  # whatever LAPACK made of it
    repair_(method, new, order, given, old, incidents, "stack")
    assert (incidents.retried, incidents.kept) == (0, 1)
    assert torch.equal(new[2], old[2])
    assert torch.isfinite(new).all()
    if order is not None:
        assert order[2].tolist() == [0, 1, 2, 3]


@pytest.mark.gpu
def test_streams_give_the_same_basis_as_lapack() -> None:
    power = factors(9, 64)
    torch.testing.assert_close(orthonormal(power.cuda()).cpu(), orthonormal(power), rtol=0, atol=1e-3)
