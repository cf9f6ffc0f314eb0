"""Settings of dense retrieval."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dinoskip.settings.config import Config, OneOrSeveral

IndexName = Literal["flat", "ivf"]


class RetrievalConfig(Config):
    """Dense retrieval (docs/retrieval.md): resolution, how many training patches are remembered, how they vote."""

    size: int = Field(512, ge=16, description="side in pixels of the square that images are resized to")
    memory: int = Field(102_400, ge=1, description="training patches that are remembered, at most")
    k: int = Field(30, ge=1, description="remembered patches that label one patch")
    temperature: float = Field(0.02, gt=0, description="labels are weighted by softmax(cosine / temperature)")
    index: IndexName = Field("flat", description="flat is exact, ivf faster")
    few: OneOrSeveral[Annotated[int, Field(ge=2)]] = Field(
        (), description="n: also with 1/n of the training images, drawn by class; [8, 64, 128] as published"
    )
    draws: OneOrSeveral[int] = Field(
        (42, 400, 783, 1293, 4019), min_length=2, description="seeds of the draws of few, whose mean is reported"
    )

    @model_validator(mode="after")
    def _enough_memory(self) -> Self:
        if self.k > self.memory:
            raise ValueError(f"k: {self.k} neighbours cannot be had of a memory of {self.memory} patches")
        return self

    @property
    def label(self) -> str:
        """Protocol in result rows: the memory, k, temperature, and the index where it is not flat."""
        kind = "" if self.index == "flat" else f", {self.index} index"
        return f"hummingbird, memory {self.memory}, k {self.k}, temperature {self.temperature:g}{kind}"
