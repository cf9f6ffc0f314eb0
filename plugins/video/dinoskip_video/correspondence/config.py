"""Settings of semantic correspondence, and the published protocols by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dinoskip.settings.config import Distinct
from eval.protocols import ProtocolConfig

PROTOCOLS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"dift": {}, "sd-dino": {"size": 224}, "lift": {"size": 224}, "tokens": {"size": 448}}
)
"""Settings in which each differs from ``dift``, whose values are the defaults of :class:`CorrespondenceConfig`."""


class CorrespondenceConfig(ProtocolConfig):
    """Keypoints found in another image by the most similar feature (docs/correspondence.md): protocol, resolution."""

    protocols: ClassVar[Mapping[str, Mapping[str, Any]]] = PROTOCOLS

    protocol: Literal["dift", "sd-dino", "lift", "tokens"] = Field(
        "dift", description="how images are sized, where features are read, what counts as a hit"
    )
    size: int = Field(768, ge=16, description="side in pixels of the square input; default: the protocol's")
    alphas: Distinct[Annotated[float, Field(gt=0, le=1)]] = Field(
        (0.01, 0.05, 0.1, 0.15, 0.2), min_length=1, description="how far a hit may lie off, as a share of the object"
    )
    pictures: int = Field(4, ge=0, le=1000, description="pairs that are drawn for the gallery")

    @property
    def padded(self) -> bool:
        """Whether images keep their proportions, with black on two sides."""
        return self.protocol in {"sd-dino", "lift"}

    @property
    def resolution(self) -> str:
        """The description of the resizing of images in result rows."""
        return f"{self.size} {'padded' if self.padded else 'square'}"
