"""Settings of unsupervised object discovery."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dinoskip.settings.config import Config, OmitDefaultFromKey, OneOrSeveral
from dinoskip.settings.cut_protocols import CutProtocol, treated
from eval.tokencut.treatments import POSITIONS, Positions


class TokenCutConfig(Config):
    """Object discovery by TokenCut (docs/tokencut.md): thresholds, LOST beside it, pictures.

    Affinity is 1 where the cosine similarity is greater than ``tau``, else ``eps``. The similarities are computed once
    for all values of ``tau``.
    """

    tau: OneOrSeveral[Annotated[float, Field(ge=0, lt=1)]] = Field(
        (0.2,), min_length=1, description="one or several; what is shown is of the first"
    )
    eps: float = Field(1e-5, gt=0, lt=1, description="affinity of patches that are not alike")
    lost_k: int | None = Field(None, ge=1, description="LOST too, its seed grown over so many patches; published: 100")
    overlays: int = Field(0, ge=0, description="pictures with mask and boxes of so many images, at every block")
    centre: Annotated[bool, OmitDefaultFromKey()] = Field(
        False, description="first subtract each image's mean token, an offset of all tokens (docs/tokencut.md)"
    )
    positions: Annotated[Positions, OmitDefaultFromKey()] = Field("keep", description=POSITIONS)
    pixels: Annotated[bool, OmitDefaultFromKey()] = Field(
        False, description="baselines from pixels without a network, too: colours, random patch (docs/protocols.md)"
    )

    @property
    def methods(self) -> dict[str, str]:
        """What result rows call each method, and the file of its boxes."""
        cuts = [CutProtocol("tokencut", tau, self.eps, 0, self.centre, self.positions) for tau in self.tau]
        files = ["boxes.json", *(f"boxes_tau{cut.shown_tau}.json" for cut in cuts[1:])]
        methods = dict(zip(map(str, cuts), files, strict=True))
        lost = f"lost k={self.lost_k}{treated(self.centre, self.positions)}"
        return methods | ({lost: "boxes_lost.json"} if self.lost_k else {})
