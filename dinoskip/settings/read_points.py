"""Where a block is read: the names of its read points (facets), and the norm that each is usually read under."""

from __future__ import annotations

from typing import Literal, get_args

Facet = Literal["out", "key", "query", "value", "attn", "mlp", "hidden", "attn_scaled", "mlp_scaled"]
FACETS: tuple[str, ...] = get_args(Facet)
_AS_WIDE = ("out", "attn", "mlp", "attn_scaled", "mlp_scaled")


def usual_norm(facet: str, norm: str) -> str:
    """The norm that a facet is read under where block outputs are read under ``norm``.

    The same for the branches, which are what a block adds to its output; none for the attention's projections and for
    ``hidden``, after which a network has no norm.
    """
    return norm if facet in _AS_WIDE else "none"
