"""Read points of a block: the tensor (facet), the part of it that is read, and the usual norm of each facet."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class ReadAt:
    """Read point of blocks: of the tensor ``facet``, the part ``of``: a norm, ``patches``, ``cls`` or ``mean``.

    In keys and names of weights it is text, which this class alone writes and reads: ``final`` for outputs of blocks,
    ``mlp final`` and ``mlp patches`` for other facets.
    """

    of: str
    facet: str = "out"

    def __str__(self) -> str:
        return self.of if self.facet == "out" else f"{self.facet} {self.of}"

    @classmethod
    def parse(cls, text: str) -> ReadAt:
        """Return the inverse of ``str``; facets and the parts read of them have no blanks."""
        facet, _, of = text.rpartition(" ")
        return cls(of, facet or "out")


def blocks_at(facet: str, first: str, blocks: str) -> str:
    """The name of what is scored: its ``blocks``, ``3`` or ``3+6``, behind the facet if that is not the ``first``."""
    return blocks if facet == first else f"{facet} {blocks}"
