"""Settings of the stage ``analyze``."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from dinoskip.settings.config import Config
from dinoskip.settings.vit_config import ModelName
from eval.online.config import OnlineKnnConfig

PRECISIONS = ("W8A12", "W8A8", "W8A6", "W6A6", "W4A8", "W4A4")
"""Bits of weights and activations in which scores are taken by default."""


def _precision(label: str) -> str:
    from dinoskip.diagnostics.quantization import bits_of  # torch

    bits_of(label)
    return label


class QuantiseConfig(OnlineKnnConfig):
    """k-NN on the CLS token of the trained networks with rounded weights and activations (docs/diagnostics.md)."""

    precisions: tuple[Annotated[str, AfterValidator(_precision)], ...] = Field(
        PRECISIONS,
        min_length=1,
        description="bits of weights and activations: W8A12, W16A8; A6 rounds activations alone",
    )


class LabelFreeConfig(Config):
    """DSE, RankMe and position bias of every block of every trained network and epoch (docs/diagnostics.md)."""

    dataset: str = Field(description="key of data; images of its training split are looked at")
    size: int = Field(224, ge=16, description="side in pixels of the centre crop")
    images: int = Field(128, ge=8, description="of the split, evenly spaced")


class AnalyzeSection(Config):
    """Fresh models at initialisation: conditioning per block, and signal propagation on bundled photographs."""

    enabled: bool = Field(True, description="false: a study has no such stage")
    model: ModelName = Field("vit_small_patch16", description="of the signal table's fresh networks")
    depth: int = Field(12, ge=1, description="their blocks")
    img_size: int = Field(224, ge=16, description="side in pixels of the photographs' centre crop")
    photos: int = Field(2, ge=1, le=4, description="bundled photographs that are looked at")
    spectrum: int | None = Field(
        None, ge=1, description="block of which all singular values of attention's Jacobian by its weights are given"
    )
    spectrum_tokens: int = Field(32, ge=1, description="tokens, evenly spaced in a photograph, at which they are taken")
    quantise: QuantiseConfig | None = Field(None, description="k-NN with rounded weights and activations; null: none")
    label_free: LabelFreeConfig | None = Field(
        None, description="metrics without labels, and the epoch that each would choose; null: none"
    )
