"""Protocols of normalised cuts in rows, which state how the graphs were made: written and read in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(
    r"(?P<method>tokencut|maskcut) tau=(?P<tau>[^\s,]+)(?: eps=(?P<eps>[^\s,]+))?(?: rounds=(?P<rounds>\d+))?"
    r"(?P<centred>, centred)?(?:, positions (?P<positions>\w+))?(?:,|$)"
)


@dataclass(frozen=True)
class CutProtocol:
    """Protocol by which the patches of an image were cut: ``tokencut tau=0.2 eps=1e-05, centred, positions mean``.

    Patches are joined where their cosine is above ``tau``, else with affinity ``eps`` (0: not stated). ``centred``:
    each image's mean token was subtracted before. MaskCut cuts an image in several ``rounds``, else it is 0.
    ``positions`` is how position was taken out of the features before (docs/tokencut.md), ``keep`` where it was not.
    """

    method: str
    tau: float
    eps: float = 0.0
    rounds: int = 0
    centred: bool = False
    positions: str = "keep"

    @property
    def shown_tau(self) -> str:
        """``tau`` in full: values that are nearly equal differ, too."""
        return str(float(self.tau)).removesuffix(".0")

    def __str__(self) -> str:
        rounds = f" rounds={self.rounds}" if self.rounds else ""
        return f"{self.method} tau={self.shown_tau} eps={self.eps:g}{rounds}{treated(self.centred, self.positions)}"

    @classmethod
    def parse(cls, protocol: str) -> CutProtocol | None:
        """The cut that a row's protocol says, whatever follows it (``, bilateral solver``); None of other methods."""
        if (found := _FORM.match(protocol)) is None:
            return None
        tau, eps, rounds = float(found["tau"]), float(found["eps"] or 0), int(found["rounds"] or 0)
        centred, positions = found["centred"] is not None, found["positions"] or "keep"
        return cls(found["method"], tau, eps, rounds, centred, positions)


def treated(centred: bool, positions: str) -> str:
    """Return the part of a protocol on how features were treated before the cut: ``, centred, positions mean``."""
    return f"{', centred' if centred else ''}{'' if positions == 'keep' else f', positions {positions}'}"
