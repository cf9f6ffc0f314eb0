"""Settings of the views of images: how they are cut and augmented. Nothing here imports torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from dinoskip.settings.config import Config

Probability = Annotated[float, Field(ge=0, le=1)]


def _is_range(pair: tuple[float, float]) -> tuple[float, float]:
    if not 0 < pair[0] <= pair[1] <= 20:
        raise ValueError("must be two numbers of pixels, 0 < low <= high <= 20")
    return pair


class AugmentConfig(Config):
    """Probabilities and strengths, by default DINO's (docs/protocols.md); triples are global 1, global 2, local."""

    flip: Probability = Field(0.5, description="probability of a horizontal flip")
    jitter: Probability = Field(0.8, description="probability of colour jitter")
    brightness: float = Field(default=0.4, ge=0, le=1, description="strength of jitter: factor within 1 ± this")
    contrast: float = Field(default=0.4, ge=0, le=1, description="strength of jitter: factor within 1 ± this")
    saturation: float = Field(default=0.2, ge=0, le=1, description="strength of jitter: factor within 1 ± this")
    hue: float = Field(default=0.1, ge=0, le=0.5, description="strength of jitter, in turns of the colour circle")
    grey: Probability = Field(0.2, description="probability of a grey image")
    blur: tuple[Probability, Probability, Probability] = Field(
        (1.0, 0.1, 0.5), description="probability of Gaussian blur"
    )
    blur_sigma: Annotated[tuple[float, float], AfterValidator(_is_range)] = Field(
        (0.1, 2.0), description="least and greatest standard deviation of the blur, pixels"
    )
    solarise: tuple[Probability, Probability, Probability] = Field(
        (0.0, 0.2, 0.0), description="probability of solarisation"
    )


def _is_scale(scale: tuple[float, float]) -> tuple[float, float]:
    if not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError("must be two fractions of the image area, 0 < low <= high <= 1")
    return scale


Scale = Annotated[tuple[float, float], AfterValidator(_is_scale)]


class CropConfig(Config):
    """Sizes in pixels, numbers of crops, and the fractions of the image area they cover (docs/protocols.md)."""

    global_size: int = Field(default=224, ge=8, description="side of global crops, pixels")
    local_size: int = Field(default=96, ge=8, description="side of local crops, pixels")
    num_global: Literal[1, 2] = Field(2, description="global crops an image; DINO's loss is made for two")
    num_local: int = Field(default=8, ge=0, le=64, description="local crops an image")
    global_scale: Scale = Field(
        (0.4, 1.0), description="least and greatest area of a global crop, as shares of the image's"
    )
    local_scale: Scale = Field(
        (0.05, 0.4), description="least and greatest area of a local crop, as shares of the image's"
    )


Share = Annotated[float, Field(gt=0, le=1)]


class ClassAugmentConfig(Config):
    """Augmentation of labelled images; the defaults are ConvNeXt's for ImageNet."""

    size: int = Field(224, ge=8, description="side in pixels, in training and validation")
    scale: tuple[Share, Share] = Field((0.08, 1.0), description="area of a random crop, as a share of the image's")
    flip: float = Field(0.5, ge=0, le=1, description="probability of a horizontal flip")
    rand_magnitude: int = Field(9, ge=0, le=10, description="of RandAugment's two operations; 0 = no RandAugment")
    rand_std: float = Field(0.5, ge=0, le=10, description="normal noise on the magnitude")
    erase: float = Field(0.25, ge=0, le=1, description="chance that a rectangle becomes normal noise")
    mixup: float = Field(0.8, ge=0, description="alpha of its Beta distribution; 0 = none")
    cutmix: float = Field(1.0, ge=0, description="alpha of its Beta distribution; 0 = none; with mixup, half each")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="share of the target spread over all classes")

    @model_validator(mode="after")
    def _ordered(self) -> ClassAugmentConfig:
        if self.scale[0] > self.scale[1]:
            raise ValueError(f"scale: {self.scale[0]} is more than {self.scale[1]}")
        return self

    @property
    def mixes(self) -> bool:
        """Whether images are mixed in pairs."""
        return self.mixup > 0 or self.cutmix > 0


DataPath = Literal["crops", "decode", "resident"]
"""Location of the work of reading. Views differ by rounding alone: ``--allow-change pretrain.data_path`` is safe.

``crops``: workers decode and cut, the device augments. ``decode``: workers decode, the device cuts and augments: for
few processors beside a fast device. ``resident``: the set is decoded once into the device's memory.
"""
