"""Settings of the discovery of several objects."""

from __future__ import annotations

from pydantic import Field

from dinoskip.settings.config import Config
from dinoskip.settings.cut_protocols import CutProtocol
from eval.tokencut.treatments import POSITIONS, Positions


class ObjectsConfig(Config):
    """MaskCut (docs/parts.md): one normalised cut after the other, each without the objects before it.

    Affinity is 1 where the cosine similarity is greater than ``tau``, else ``eps``.
    """

    tau: float = Field(0.15, ge=0, lt=1, description="cosine above which two patches are joined")
    eps: float = Field(1e-5, gt=0, lt=1, description="affinity of patches that are not joined")
    rounds: int = Field(3, ge=1, le=100, description="cuts of an image, so objects at most")
    size: int = Field(480, ge=16, description="side in pixels of the square that images are resized to")

    centre: bool = Field(
        False, description="first subtract each image's mean token, an offset of all tokens (docs/tokencut.md)"
    )
    positions: Positions = Field("keep", description=POSITIONS)
    masks: bool = Field(
        False, description="score objects as masks, too: of kinds coco_json and coco20k, whose JSON has outlines"
    )

    @property
    def label(self) -> str:
        """The description of the protocol in result rows."""
        # CutLER refines masks by a dense CRF (pydensecrf, unmaintained). There is none here, and every row says so.
        return f"{CutProtocol('maskcut', self.tau, self.eps, self.rounds, self.centre, self.positions)}, no CRF"
