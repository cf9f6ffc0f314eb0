"""Cuts that say nothing of a network: tokens that are alike, graphs that are complete, images without a cut."""

from __future__ import annotations

from dinoskip.results.rows import EvalResult
from dinoskip.settings.cut_protocols import CutProtocol

MOST = 0.5
"""Share of the images: where more than this have no cut, the number is not one of the network."""
ALIKE = 0.99
"""Mean cosine of an image's tokens from which on they are alike: of their squared singular values' participation ratio,
a rank, no more than 1 / ALIKE² = 1.02 is left."""


def tokens_alike(row: EvalResult) -> bool:
    """Whether the tokens that a row was measured on point the same way."""
    return row.token_cosine is not None and row.token_cosine >= ALIKE


def graphs_complete(row: EvalResult) -> bool:
    """Whether most of TokenCut's graphs join every token to every other."""
    return (row.complete or 0.0) > MOST


def is_lifeless(row: EvalResult) -> bool:
    """Whether tokens are alike and every one is joined to every other."""
    return tokens_alike(row) and graphs_complete(row)


def failed_cuts(row: EvalResult) -> str:
    """``affinity graph degenerate at τ = 0.2 (60 of 60 images)`` where most images have no cut, else nothing.

    These images count as misses. That is a failure of the method on these features; ``tokens alike`` stands before it
    where these say nothing either.
    """
    if row.degenerate is None or row.degenerate <= MOST:
        return ""
    complete, cut = graphs_complete(row), CutProtocol.parse(row.protocol)
    share, kind = (row.complete or 0.0, "affinity graph degenerate") if complete else (row.degenerate, "no cut")
    at = "" if cut is None else f" at τ = {cut.shown_tau}"
    return f"{'tokens alike, ' if tokens_alike(row) else ''}{kind}{at} ({round(share * row.n)} of {row.n} images)"
