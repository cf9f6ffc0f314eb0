"""Settings of unsupervised object discovery."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dinoskip.settings.config import Config, OneOrSeveral
from dinoskip.settings.cut_protocols import CutProtocol, treated
from eval.tokencut.treatments import POSITIONS, Positions


class ObjectDinoConfig(Config):
    """Object-DINO beside TokenCut (docs/tokencut.md): queries, keys and values of the heads that find objects.

    The defaults are those of the released code; each alternative is what notes on the paper say instead.
    """

    clusters: int = Field(12, ge=1, description="of the heads of all blocks; the paper, by notes: 5")
    tau: float = Field(0.2, gt=-1, lt=1, description="of the graph; the code's published run: -0.35")
    scale: float | None = Field(
        None, gt=0, description="of cosines before the softmax; default: 1 over the root of a head's width; notes: 1/60"
    )
    head_feature: Literal["mean", "map"] = Field(
        "mean", description="what heads are clustered by: the attention that tokens get, standardised, or the whole map"
    )
    affinity: Literal["concatenated", "mean_cosine", "mean_map"] = Field(
        "concatenated", description="of tokens: cosine of their cosines in all heads, or the heads' mean itself"
    )

    def __str__(self) -> str:
        changed = {name: getattr(self, name) for name in self.__class__.model_fields if name not in {"clusters", "tau"}}
        said = "".join(
            f" {name}={value:g}" if isinstance(value, float) else f" {name}={value}"
            for name, value in changed.items()
            if value != self.__class__.model_fields[name].default
        )
        return f"object_dino tau={self.tau:g} clusters={self.clusters}{said}"


class TokenCutConfig(Config):
    """Object discovery by TokenCut (docs/tokencut.md): thresholds, LOST beside it, pictures.

    Affinity is 1 where the cosine similarity is greater than ``tau``, else ``eps``. The similarities are computed once
    for all values of ``tau``.
    """

    tau: OneOrSeveral[Annotated[float, Field(ge=0, lt=1)]] = Field(
        (0.2,), min_length=1, description="one or several; what is shown is of the first"
    )
    eps: float = Field(1e-5, gt=0, lt=1, description="affinity of patches that are not alike")
    coco: bool = Field(
        False, description="boxes and masks of each block also as COCO results (coco_block{b}.json, docs/tokencut.md)"
    )
    lost_k: int | None = Field(None, ge=1, description="LOST too, its seed grown over so many patches; published: 100")
    object_dino: ObjectDinoConfig | None = Field(
        None, description="Object-DINO too, one box an image from the heads of all blocks; {} for its defaults"
    )
    overlays: int = Field(0, ge=0, description="number of images drawn with mask and boxes, at every block")
    centre: bool = Field(
        False, description="first subtract each image's mean token, an offset of all tokens (docs/tokencut.md)"
    )
    positions: Positions = Field("keep", description=POSITIONS)
    pixels: bool = Field(
        False, description="baselines from pixels without a network, too: colours, random patch (docs/protocols.md)"
    )

    @property
    def methods(self) -> dict[str, str]:
        """The name of each method in result rows, and the file of its boxes."""
        cuts = [CutProtocol("tokencut", tau, self.eps, 0, self.centre, self.positions) for tau in self.tau]
        files = ["boxes.json", *(f"boxes_tau{cut.shown_tau}.json" for cut in cuts[1:])]
        methods = dict(zip(map(str, cuts), files, strict=True))
        lost = f"lost k={self.lost_k}{treated(self.centre, self.positions)}"
        return methods | ({lost: "boxes_lost.json"} if self.lost_k else {})
