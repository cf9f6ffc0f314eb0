"""Settings of unsupervised object discovery."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from dinoskip.config import Config, OmitDefaultFromKey, no_duplicates


def _single(value: object) -> object:
    return (value,) if isinstance(value, int | float) else value


class TokenCutConfig(Config):
    """Object discovery by TokenCut (docs/tokencut.md): thresholds, LOST beside it, pictures.

    Affinity is 1 where the cosine similarity is greater than ``tau``, else ``eps``. The similarities are computed once
    for all values of ``tau``.
    """

    tau: Annotated[
        tuple[Annotated[float, Field(ge=0, lt=1)], ...], BeforeValidator(_single), AfterValidator(no_duplicates)
    ] = Field((0.2,), min_length=1, description="one or several; what is shown is of the first")
    eps: float = Field(1e-5, gt=0, lt=1, description="affinity of patches that are not alike")
    lost_k: int | None = Field(None, ge=1, description="LOST too, its seed grown over so many patches; published: 100")
    overlays: int = Field(0, ge=0, description="pictures with mask and boxes of so many images, at every block")
    centre: Annotated[bool, OmitDefaultFromKey()] = Field(
        False, description="first subtract each image's mean token, an offset of all tokens (docs/tokencut.md)"
    )
    pixels: Annotated[bool, OmitDefaultFromKey()] = Field(
        False, description="baselines from pixels without a network, too: colours, random patch (docs/protocols.md)"
    )

    @property
    def methods(self) -> dict[str, str]:
        """What result rows call each method, and the file of its boxes."""
        taus = [str(tau).removesuffix(".0") for tau in self.tau]  # in full: those that are nearly equal differ, too
        files = ["boxes.json", *(f"boxes_tau{tau}.json" for tau in taus[1:])]
        more = ", centred" if self.centre else ""
        methods = {f"tokencut tau={tau} eps={self.eps:g}{more}": file for tau, file in zip(taus, files, strict=True)}
        return methods | ({f"lost k={self.lost_k}{more}": "boxes_lost.json"} if self.lost_k else {})
