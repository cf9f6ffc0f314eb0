"""Bases of stacked factors: batched eigh and QR that never put a NaN into an optimizer.

A basis that came out non-finite, or that LAPACK gave up on, is computed again from its factor in float64 on the
CPU; if that fails too (the factor itself holds NaN or infinity), the old basis stays. Both are logged and counted.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dinoskip.console import log

STREAMS = 4  # of one CUDA device: cuSOLVER's QR of one matrix leaves most of the GPU idle


@dataclass
class Incidents:
    """How often the float64 path was taken (``retried``) and how often it failed too (``kept`` the old basis)."""

    retried: int = 0
    kept: int = 0


class Method(NamedTuple):
    """How a basis is renewed: by ``eigh`` or by one orthogonal iteration.

    ``sort``: largest eigenvalue first, or the old columns put in the order of their eigenvalue estimates first.
    """

    eigh: bool
    sort: bool


def eigenbases(factors: Tensor, *, descending: bool) -> Tensor:
    """Eigenvectors (columns) of symmetric (B, n, n), in the order of their eigenvalues; NaN where it failed."""
    try:
        vectors: Tensor = torch.linalg.eigh(factors).eigenvectors
    except torch.linalg.LinAlgError:
        vectors = torch.full_like(factors, torch.nan)
        for out, factor in zip(vectors, factors, strict=True):
            with contextlib.suppress(torch.linalg.LinAlgError):
                out.copy_(torch.linalg.eigh(factor).eigenvectors)
    return vectors.flip(-1) if descending else vectors


def power_step(factors: Tensor, bases: Tensor, *, order: bool) -> tuple[Tensor, Tensor | None]:
    """One orthogonal iteration: Q of the QR of ``factors @ bases`` (B, n, n), and the new order of the columns.

    With ``order`` the columns are first sorted by the eigenvalue estimates diag(Q^T F Q), largest first; the (B, n)
    permutation is returned, else None. The estimates are the column sums of Q * (F Q), so F Q is used twice.
    """
    power = torch.bmm(factors, bases)
    if not order:
        return orthonormal(power), None
    permutation = (bases * power).sum(-2).argsort(-1, descending=True)
    return orthonormal(power.gather(-1, permutation.unsqueeze(-2).expand_as(power))), permutation


def orthonormal(matrices: Tensor) -> Tensor:
    """Q of the QR of every matrix of (B, n, n): LAPACK on the CPU, several streams of geqrf and orgqr on CUDA."""
    if not matrices.is_cuda:
        basis: Tensor = torch.linalg.qr(matrices).Q
        return basis
    result = torch.empty_like(matrices)
    here = torch.cuda.current_stream(matrices.device)
    count = min(STREAMS, len(matrices))
    streams = [torch.cuda.Stream(matrices.device) for _ in range(count)]  # type: ignore[no-untyped-call]
    for stream in streams:
        stream.wait_stream(here)
    for at, (out, matrix) in enumerate(zip(result, matrices, strict=True)):
        with torch.cuda.stream(streams[at % len(streams)]):
            out.copy_(torch.linalg.householder_product(*torch.geqrf(matrix)))
    for stream in streams:
        here.wait_stream(stream)
    return result


def all_finite(tensors: list[Tensor]) -> list[bool]:
    """For each tensor whether all its entries are finite, with one synchronisation of the device for all."""
    norms: list[float] = torch.stack(torch._foreach_norm(tensors)).tolist()
    return [norm < float("inf") for norm in norms]


def solve(method: Method, factors: Tensor, bases: Tensor) -> tuple[Tensor, Tensor | None]:
    """New bases (B, n, n) by ``method``, and the (B, n) order in which it put the old columns, if it did."""
    if method.eigh:
        return eigenbases(factors, descending=method.sort), None
    return power_step(factors, bases, order=method.sort)


def repair_(
    method: Method, new: Tensor, order: Tensor | None, factors: Tensor, old: Tensor, incidents: Incidents, what: str
) -> None:
    """Replace the non-finite bases of ``new`` (B, n, n) in place, from ``factors`` in float64 or else by ``old``.

    ``order`` (B, n) is corrected along; ``what`` names the stack in the log.
    """
    good = torch.isfinite(new).flatten(1).all(1).tolist()
    for at in [i for i, fine in enumerate(good) if not fine]:
        factor, basis = factors[at : at + 1].double().cpu(), old[at : at + 1].double().cpu()
        again, columns = torch.full_like(factor, torch.nan), None
        if bool(torch.isfinite(factor).all()):
            again, columns = solve(method, factor, basis)
        if bool(torch.isfinite(again).all()):
            incidents.retried += 1
            log.warning("%s, matrix %d: basis computed again in float64 (%d so far)", what, at, incidents.retried)
            new[at] = again[0].to(new)
        else:
            incidents.kept += 1
            log.warning("%s, matrix %d: non-finite, the old basis stays (%d so far)", what, at, incidents.kept)
            new[at] = old[at]
            columns = torch.arange(new.shape[-1])[None]
        if order is not None and columns is not None:
            order[at] = columns[0].to(order)
