"""Settings of k-nearest-neighbour classification."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dinoskip.settings.config import Config, Distinct

Backend = Literal["torch", "faiss", "ivf"]
QUERIES = 4096
"""Images of a part of the work: of ImageNet's validation set 13 parts."""


class KnnConfig(Config):
    """Weighted k-NN on CLS features, as in DINO (docs/protocols.md): neighbours, votes, what finds the neighbours."""

    k: Distinct[Annotated[int, Field(ge=1)]] = Field(
        (10, 20), min_length=1, description="numbers of neighbours; each gives its own rows"
    )
    temperature: float = Field(0.07, gt=0, description="votes weigh exp(cosine / temperature)")
    backend: Backend = Field("torch", description="what finds the neighbours: torch and faiss exactly, ivf nearly")
    size: int = Field(224, ge=16, description="side in pixels of the centre crop")
