"""Settings of linear classification, and the published protocols by name (docs/heads.md).

``PROTOCOLS`` is plain data: what each differs in from ``dinov2``, whose values are the defaults of
:class:`LinearConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dinoskip.settings.config import Distinct, Positive
from eval.protocols import LearningRates, ProtocolConfig

# Where they differ from the defaults, which are DINOv2's; "dino" is its eval_linear.py (docs/heads.md).
PROTOCOLS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "dinov2": {},
        "dino": {
            "inputs": ("cls",),
            "learning_rates": (1e-3,),
            "schedule": "cosine by epoch",
            "epochs": 100,
            "interpolation": "bilinear",
        },
    }
)
if TYPE_CHECKING:
    ProtocolName = str
else:
    ProtocolName = Literal[tuple(PROTOCOLS)]  # what the table has, for the check and for `dinoskip settings`

Input = Literal["cls", "cls+mean"]


class LinearConfig(ProtocolConfig):
    """Settings by which linear classifiers are fitted and scored.

    ``protocol`` gives every setting that is not given itself.
    """

    protocols: ClassVar[Mapping[str, Mapping[str, Any]]] = PROTOCOLS
    unsaid: ClassVar[frozenset[str]] = frozenset({"norm", "size"})

    protocol: ProtocolName = Field("dinov2", description="gives all settings below that are not given themselves")
    norm: Literal["none", "final", "layer"] = Field("final", description="of the features that heads read")
    last: Distinct[Annotated[int, Field(ge=1)]] = Field(
        (1, 4), min_length=1, description="class tokens of so many blocks, up to every block, joined"
    )
    inputs: Distinct[Input] = Field(
        ("cls", "cls+mean"), min_length=1, description="with the mean patch token of the last of them, or without"
    )
    learning_rates: LearningRates = Field(
        (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1),
        min_length=1,
        description="one head each, at 256 images a step (scaled by batch_size); chosen on held-out images",
    )
    weight_decay: float = Field(0.0, ge=0, description="of SGD with momentum 0.9")
    schedule: Literal["cosine", "cosine by epoch"] = Field("cosine", description="of the learning rate, to 0")
    epochs: int = Field(10, ge=1, description="passes over the training images")
    batch_size: int = Field(1024, ge=1, description="images a step")
    size: int = Field(224, ge=16, description="side in pixels of crops, in training and scoring")
    scale: tuple[Positive, Annotated[float, Field(gt=0, le=1)]] = Field(
        (0.08, 1.0), description="training: share of the image's area that a crop covers"
    )
    interpolation: Literal["bicubic", "bilinear"] = Field("bicubic", description="training: of resized crops")
    flip: float = Field(0.5, ge=0, le=1, description="training: probability")
    # DINOv2 chooses the head on validation images, and DINO's script prints the best epoch there. Ours holds images out
    # and takes the last epoch: a number that is chosen on the images it is of is too high.
    holdout: float = Field(
        0.1, ge=0, lt=1, description="share of training images on which rates, inputs and blocks are chosen; 0: none"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.scale[0] > self.scale[1]:
            raise ValueError("scale must be two numbers, 0 < low <= high <= 1")
        return self

    def steps(self, images: int) -> int:
        """Optimizer steps on ``images`` training images."""
        return self.epochs * -(-images // self.batch_size)

    @property
    def rates(self) -> list[float]:
        """The learning rates as they are used, × batch_size / 256, rising."""
        return [rate * self.batch_size / 256 for rate in sorted(self.learning_rates)]
