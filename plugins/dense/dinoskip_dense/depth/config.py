"""Settings of depth by linear heads, and the published protocols by name (docs/heads.md).

``PROTOCOLS`` is plain data: what each differs in from ``dinov2``, whose values are the defaults of
:class:`DepthConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from eval.protocols import LearningRates, ProtocolConfig

# Where they differ from the defaults, which are DINOv2's depther; the source of each is in docs/heads.md.
PROTOCOLS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "dinov2": {},
        "dinov3": {
            "norm": "final",
            "cls": False,
            "batchnorm": True,
            "upsample": 1,
            "init": "normal",
            "learning_rates": (3e-4,),
            "weight_decay": 1e-4,
            "second_beta": 0.99,
            "schedule": "one cycle",
        },
    }
)
if TYPE_CHECKING:
    ProtocolName = str
else:
    ProtocolName = Literal[tuple(PROTOCOLS)]  # what the table has, for the check and for `dinoskip settings`

Side = Annotated[int, Field(ge=8)]


class DepthConfig(ProtocolConfig):
    """Settings by which linear depth heads are fitted and scored.

    ``protocol`` gives every setting that is not given itself.
    """

    protocols: ClassVar[Mapping[str, Mapping[str, Any]]] = PROTOCOLS
    unsaid: ClassVar[frozenset[str]] = frozenset({"maps", "norm", "evaluated"})

    protocol: ProtocolName = Field("dinov2", description="gives all settings below that are not given themselves")
    norm: Literal["none", "final", "layer"] = Field("none", description="of the features that heads read")
    cls: bool = Field(True, description="join the class token of its block to every token")
    batchnorm: bool = Field(False, description="BatchNorm with learned scale and shift before the head")
    upsample: int = Field(4, ge=1, le=8, description="resolution of the bins along a side, in multiples of the tokens")
    bins: int = Field(256, ge=2, le=1024, description="depths, evenly from min_depth to max_depth, that are weighed")
    min_depth: float = Field(1e-3, gt=0, description="metres; nearer pixels are not scored")
    # DINOv2's hub code passes 80 m, the range of KITTI, for NYU, too; this is NYU's.
    max_depth: float = Field(10.0, gt=0, description="metres; farther pixels are not scored")
    init: Literal["uniform", "normal"] = Field(
        "uniform", description="first weights: PyTorch's convolution, or normal with std 0.01"
    )
    learning_rates: LearningRates = Field((1e-4,), min_length=1, description="one head each; chosen on held-out images")
    weight_decay: float = Field(0.01, ge=0, description="AdamW's")
    second_beta: float = Field(0.999, ge=0, lt=1, description="AdamW's second beta; the first is 0.9 or one cycle's")
    schedule: Literal["cosine", "one cycle"] = Field("cosine", description="of the learning rate")
    warmup: float = Field(1 / 3, ge=0, lt=1, description="share of the steps with a rising rate")
    iterations: int = Field(38_400, ge=1, description="optimizer steps")
    batch_size: int = Field(16, ge=1, description="images a step")
    pooled: int = Field(2, ge=1, description="images whose pixels share one loss; the references have 2 a GPU")
    mean_only: int = Field(100, ge=0, description="first steps, in which the loss has no variance term")
    clip: float = Field(35.0, gt=0, description="largest norm of a head's gradient")
    border: Literal["nyu", "none"] = Field("nyu", description="training: cut NYU's white border off (in proportion)")
    crop: tuple[Side, Side] = Field((416, 544), description="training: height and width in pixels of random crops")
    rotate: float = Field(2.5, ge=0, le=45, description="training: degrees to either side, of every second image")
    flip: float = Field(0.5, ge=0, le=1, description="training: probability")
    colour: float = Field(0.5, ge=0, le=1, description="training: probability of other gamma, brightness and colours")
    flip_test: bool = Field(True, description="score the mean of the predictions for an image and its mirror image")
    evaluated: Literal["eigen", "garg", "all"] = Field("eigen", description="part of the image that is scored")
    # The references choose on the images that they report; `holdout: 0` does so, too.
    holdout: float = Field(
        0.1, ge=0, lt=1, description="share of training images on which rates and blocks are chosen; 0: none"
    )
    maps: int = Field(40, ge=0, description="images of the scored split whose predicted maps are saved")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.min_depth >= self.max_depth:
            raise ValueError(f"min_depth {self.min_depth:g} is not below max_depth {self.max_depth:g}")
        return self

    def steps(self, images: int) -> int:
        """Optimizer steps, however many ``images`` there are."""
        return self.iterations
