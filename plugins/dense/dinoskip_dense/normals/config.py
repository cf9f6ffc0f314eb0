"""Settings of surface normals by linear heads; the defaults are probe3d's (docs/heads.md)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from eval.protocols import LearningRates, ProtocolConfig


class NormalsConfig(ProtocolConfig):
    """Settings by which linear heads of surface normals are fitted and scored.

    The protocol is that of probe3d (El Banani et al. 2024) with its linear head. Its tables are of its DPT head, which
    joins blocks and learns much itself; what is asked here is what each block has.
    """

    unsaid: ClassVar[frozenset[str]] = frozenset({"maps", "norm"})

    protocol: Literal["probe3d"] = Field("probe3d", description="the values below are its own")
    norm: Literal["none", "final", "layer"] = Field("none", description="of the features that heads read")
    upsample: int = Field(4, ge=1, le=8, description="resolution of the head along a side, in multiples of the tokens")
    uncertainty: bool = Field(True, description="heads also say how sure they are, and the loss weighs by it")
    learning_rates: LearningRates = Field((5e-4,), min_length=1, description="one head each; chosen on held-out images")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's")
    warmup: float = Field(0.15, ge=0, lt=1, description="share of the steps with a rising rate")
    epochs: int = Field(10, ge=1, description="passes over the training images")
    batch_size: int = Field(8, ge=1, description="images a step")
    jitter: float = Field(0.8, ge=0, le=1, description="training: probability of other colours")
    resized: float = Field(0.5, ge=0, le=1, description="training: probability of a square part of the image, enlarged")
    holdout: float = Field(
        0.1, ge=0, lt=1, description="share of training images on which rates and blocks are chosen; 0: none"
    )
    maps: int = Field(40, ge=0, description="images of the scored split whose predicted maps are saved")

    @property
    def channels(self) -> int:
        """The number of values a head predicts at a place: a vector's three, and its uncertainty if asked for."""
        return 4 if self.uncertainty else 3

    def steps(self, images: int) -> int:
        """Optimizer steps on ``images`` training images."""
        return self.epochs * -(-images // self.batch_size)

    @property
    def label(self) -> str:
        """The description in result rows: the protocol, its linear head, and every setting that is not its own."""
        return ", ".join(["probe3d linear", *self.changed])
