"""Settings of the detection probe."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from dinoskip.settings.config import Config


class DetectionConfig(Config):
    """Mask R-CNN on the map of a block (docs/heads.md): what is trained, how long, at which size."""

    fine_tune: bool = Field(False, description="train the network with the heads; else it stays frozen")
    trained: Literal["last", "each"] = Field(
        "last", description="of the blocks that are evaluated, those with a detector: every one is a training"
    )
    norm: Literal["none", "final", "layer"] = Field("final", description="of the map that the pyramid reads")
    channels: int = Field(256, ge=8, description="of pyramid and mask head; the box head has four times as many")
    # Table 3 of *Conditioned Initialization* follows Matterport's recipe of Mask R-CNN. Ours is a shorter one for
    # frozen blocks (AdamW, 12 epochs, mirroring alone, no drop path), so its rows are not to be compared with that
    # table.
    short_side: int = Field(800, ge=32, description="pixels that it is resized to")
    long_side: int = Field(1333, ge=32, description="pixels that it has at most")
    epochs: float = Field(12, gt=0, description="passes over the training images that have an object")
    batch_size: int = Field(16, ge=1, description="images a step")
    lr: float = Field(1e-4, gt=0, description="of AdamW; a tenth after 8/12 of the steps, a hundredth after 11/12")
    warmup: int = Field(500, ge=0, description="steps in which the rate rises, at most a tenth of all")
    weight_decay: float = Field(0.05, ge=0, description="of weight matrices")
    flip: float = Field(0.5, ge=0, le=1, description="training: probability")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.long_side < self.short_side:
            raise ValueError(f"long_side: {self.long_side} is less than short_side, {self.short_side}")
        return self

    def steps(self, images: int) -> int:
        """Optimizer steps on so many training images; one at least."""
        return max(1, round(self.epochs * images / self.batch_size))

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        rising = min(self.warmup, steps // 10)
        falls = sum(12 * step >= part * steps for part in (8, 11))  # as in mmdetection's 1x schedule of 12 epochs
        return self.lr * min(1.0, (step + 1) / (rising + 1)) * 0.1**falls

    @property
    def label(self) -> str:
        """The description of the protocol in result rows."""
        trained = "fine-tuned" if self.fine_tune else "frozen"
        width = "" if self.channels == 256 else f", {self.channels} channels"
        recipe = f"{self.epochs:g} epochs of {self.batch_size} at {self.lr:g}"
        return f"R-CNN, simple pyramid, {trained}, {recipe}{width}"
