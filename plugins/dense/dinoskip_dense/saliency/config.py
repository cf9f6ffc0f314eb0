"""Settings of saliency detection."""

from __future__ import annotations

from pydantic import Field

from dinoskip.settings.config import Config
from dinoskip.settings.cut_protocols import CutProtocol
from eval.tokencut.treatments import POSITIONS, Positions


class SaliencyConfig(Config):
    """Saliency by TokenCut (docs/parts.md): its thresholds, and the bilateral solver after it.

    Affinity is 1 where the cosine similarity is greater than ``tau``, else ``eps``.
    """

    tau: float = Field(0.2, ge=0, lt=1, description="cosine above which two patches are joined")
    eps: float = Field(1e-5, gt=0, lt=1, description="affinity of patches that are not joined")
    solver: bool = Field(False, description="rows after the bilateral solver, too, whose soft maps are scored")
    centre: bool = Field(
        False, description="first subtract each image's mean token, an offset of all tokens (docs/tokencut.md)"
    )
    positions: Positions = Field("keep", description=POSITIONS)
    pixels: bool = Field(
        False, description="baselines from pixels without a network, too: colours, random patch (docs/protocols.md)"
    )

    @property
    def label(self) -> str:
        """The description of the masks in result rows, to which those of the solver add its name."""
        return str(CutProtocol("tokencut", self.tau, self.eps, centred=self.centre, positions=self.positions))
