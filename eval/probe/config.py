"""Settings of linear segmentation probes, and the published protocols by name.

``PROTOCOLS`` is plain data: what each differs in from ``paper``, whose values are the defaults of :class:`ProbeConfig`.
docs/protocols.md has the table with the sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from dinoskip.settings.config import OneOrSeveral
from eval.protocols import LearningRates, ProtocolConfig

# mmsegmentation's 40k schedule as DINOv2 uses it; also the base of DINOv3's.
_DINOV2: dict[str, Any] = {
    "live": True,
    "size": 512,
    "learning_rates": (1e-3,),
    "schedule": "poly",
    "warmup": 0.0375,
    "epochs": None,
    "iterations": 40_000,
    "batchnorm": "affine",
    "init_std": 0.01,
    "refine": 0,
    "crop": "scaled",
    "scale": (0.5, 2.0),
    "cat_max_ratio": 0.75,
    "distort": 0.1,
    "stride": 341,
}
# Where they differ from the defaults, which are those of "paper"; the source of each is in docs/protocols.md.
PROTOCOLS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "paper": {},
        "fast": {"refine": 1},
        "dinov2": _DINOV2,
        "dinov3": {**_DINOV2, "schedule": "cosine", "weight_decay": (1e-3,), "dropout": 0.1, "distort": 0.5},
        # The code's batch of 60 is of each of two GPUs, so it may have been 120. Leopart scores at 448 x 448 pixels,
        # ours at label size as all other protocols, so that numbers of one page are of the same pixels.
        "leopart": {
            "live": True,
            "size": 448,
            "optimizer": "sgd",
            "learning_rates": (1e-2,),
            "schedule": "step",
            "epochs": 25,
            "batch_size": 60,
            "batchnorm": "none",
            "refine": 0,
            "mask": 100,
            "scale": (0.8, 1.0),
        },
    }
)
if TYPE_CHECKING:
    ProtocolName = str
else:
    ProtocolName = Literal[tuple(PROTOCOLS)]  # what the table has, for the check and for `dinoskip settings`


def _low_to_high(pair: tuple[float, float]) -> tuple[float, float]:
    if not 0 < pair[0] <= pair[1]:
        raise ValueError("must be two numbers, 0 < low <= high")
    return pair


NotNegative = Annotated[float, Field(ge=0)]


class ProbeConfig(ProtocolConfig):
    """Settings of fitting and scoring linear probes (docs/protocols.md).

    ``protocol`` gives every setting that is not given itself.
    """

    protocols: ClassVar[Mapping[str, Mapping[str, Any]]] = PROTOCOLS

    protocol: ProtocolName = Field(
        "paper", description="gives all settings below that are not given themselves (docs/protocols.md)"
    )
    live: bool = Field(False, description="augmented images through the backbone every step, not features kept on disk")
    size: int = Field(224, ge=16, description="side in pixels of square images, of live crops and of windows")
    optimizer: Literal["adamw", "sgd"] = Field("adamw", description="sgd: with momentum 0.9")
    learning_rates: LearningRates = Field(
        (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), min_length=1, description="one head each; chosen on held-out images"
    )
    weight_decay: OneOrSeveral[NotNegative] = Field(
        (1e-4,), min_length=1, description="one or several, each with every learning rate"
    )
    schedule: Literal["cosine", "poly", "step", "constant"] = Field(
        "cosine", description="poly: falls linearly; step: to a tenth after 80 % of the steps"
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the steps with a linearly rising rate")
    epochs: int | None = Field(30, ge=1, description="passes over the training images")
    iterations: int | None = Field(None, ge=1, description="instead of epochs")
    batch_size: int = Field(16, ge=1, description="images a step")
    batchnorm: Literal["none", "plain", "affine"] = Field("plain", description="affine: with learned scale and shift")
    dropout: float = Field(0.0, ge=0, lt=1, description="of whole channels of an image, before BatchNorm; live only")
    init_std: NotNegative = Field(0.0, description="of the first weights, normal; 0: from zero")
    refine: int = Field(
        2, ge=0, le=16, description="nodes of the loss a token (eval.probe.targets); 0: every label pixel"
    )
    mask: int | None = Field(None, ge=8, description="loss on labels brought to this many pixels, square, by nearest")
    crop: Literal["resized", "scaled"] = Field(
        "resized", description="live: a part of any shape made square, or a square of the image at another scale"
    )
    scale: Annotated[tuple[float, float], AfterValidator(_low_to_high)] = Field(
        (0.5, 1.0), description="live: of resized, share of the area; of scaled, factor on the short side"
    )
    cat_max_ratio: float = Field(1.0, gt=0, le=1, description="live, scaled: most of a crop that one class may fill")
    flip: float = Field(0.5, ge=0, le=1, description="live: probability")
    distort: float | None = Field(None, ge=0, le=0.5, description="live: change colours, hue by this share of a turn")
    stride: int | None = Field(None, ge=1, description="live: score by sliding windows; default whole square images")
    holdout: float = Field(0.1, gt=0, lt=1, description="share of training images on which a head is chosen")
    seeds: int = Field(1, ge=1, le=100, description="fits, with rows for each and one for mean and standard deviation")
    pixels: bool = Field(
        False, description="baselines from pixels without a network, too: colours, random patch (docs/protocols.md)"
    )

    @model_validator(mode="before")
    @classmethod
    def _epochs_or_iterations(cls, given: Any) -> Any:
        """Let the given one of ``epochs`` and ``iterations`` replace the protocol's other one."""
        for key, missing in (("epochs", "iterations"), ("iterations", "epochs")):
            if isinstance(given, dict) and given.get(key) is not None and missing not in given:
                return {**given, missing: None}
        return given

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.epochs is None) == (self.iterations is None):
            raise ValueError("give epochs or iterations, one of them")
        if not self.live:
            if self.stride is not None:
                raise ValueError("sliding windows (stride) need live=true: cached features are of whole square images")
            if self.dropout:
                raise ValueError("dropout needs live=true")
            if self.refine == 0 and self.mask is None:
                raise ValueError("refine=0 (every label pixel) needs live=true or a mask: labels differ in size")
        elif self.pixels:
            raise ValueError("pixels needs live=false: their heads are fitted on whole square images")
        if self.stride is not None and self.stride > self.size:
            raise ValueError(f"stride {self.stride} leaves gaps between windows of {self.size} pixels")
        if self.crop == "resized" and self.scale[1] > 1:
            raise ValueError("scale: a resized crop covers at most all of the image (1)")
        return self

    @property
    def trials(self) -> list[tuple[float, float]]:
        """Every (learning rate, weight decay), rising."""
        return [(rate, decay) for rate in sorted(self.learning_rates) for decay in sorted(self.weight_decay)]

    def steps(self, images: int) -> int:
        """Optimizer steps on ``images`` training images."""
        return self.iterations or (self.epochs or 0) * -(-images // self.batch_size)

    @property
    def label(self) -> str:
        """Protocol in result rows: its name and every setting that differs from it, ``dinov2, 200 iterations``."""
        default = ProbeConfig(protocol=self.protocol)
        changed = [
            _phrase(name, getattr(self, name))
            for name in ProbeConfig.model_fields
            if name not in {"size", "seeds", "pixels"}
            and getattr(self, name) not in (getattr(default, name), _MISSING.get(name, ""))
        ]
        return ", ".join([self.protocol, *changed])

    @property
    def resolution(self) -> str:
        """Resolution in result rows: the size of the images, and the size at which they are scored."""
        images = f"{self.size} square" if self.stride is None else f"{self.size} windows, stride {self.stride}"
        return f"{images}, scored at label size"


_MISSING = {"epochs": None, "iterations": None}  # the other one says it


def _phrase(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    if value is None:
        return f"no {words}"
    if isinstance(value, bool):
        return {True: "live", False: "cached"}[value]
    if name in {"epochs", "iterations"}:
        return f"{value} {words if value != 1 else words.removesuffix('s')}"
    if isinstance(value, tuple):
        return f"{words} {' '.join(f'{part:g}' for part in value)}"
    return f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"
