"""Settings of the evaluation of a network while it trains."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from dinoskip.settings.config import Config, Distinct, no_duplicates
from eval.protocols import LearningRates

Blocks = Literal["all"] | Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(no_duplicates)]


def numbered(blocks: Blocks, depth: int) -> list[int]:
    """Return the block numbers (1..``depth``, ascending) of ``blocks``, of which 0, -1, ... count from the last.

    Numbers that the network does not have are returned as they are.
    """
    if blocks == "all":
        return list(range(1, depth + 1))
    return sorted({block if block > 0 else depth + block for block in blocks})


class OnlineKnnConfig(Config):
    """k-NN on the CLS token, on a class-balanced sample of a data set with classes.

    ``blocks`` count from 1; 0, -1, ... are the last, the one before it, ...
    """

    dataset: str = Field(description="key of data, with classes")
    size: int = Field(224, ge=16, description="side in pixels of the centre crop")
    k: Distinct[Annotated[int, Field(ge=1)]] = Field((10,), min_length=1, description="numbers of neighbours")
    blocks: Blocks = Field((0,), description="all, or from 1; 0 is the last, -1 the one before it")
    train_images: int = Field(5000, ge=1, description="neighbours are looked for among so many")
    val_images: int = Field(1000, ge=1, description="images that are classified")
    held_out: bool = Field(
        True, description="classify training images that are left out of the neighbours, not those of val"
    )

    @property
    def use(self) -> Literal["classes"]:
        """The label with which the data set is opened."""
        return "classes"

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are looked at."""
        return ("train",) if self.held_out else ("train", "val")

    def neighbours(self, images: int) -> int:
        """Return among how many images at most neighbours are looked for, of so many training images."""
        held_out = min(self.val_images, max(1, min(images // 2, images - max(self.k)))) if self.held_out else 0
        return min(self.train_images, images - held_out)

    @model_validator(mode="after")
    def _neighbours(self) -> Self:
        if max(self.k) > self.train_images:
            raise ValueError(f"k: {max(self.k)} exceeds train_images ({self.train_images})")
        return self


class OnlineProbeConfig(Config):
    """A linear segmentation probe on a small sample of a data set with label maps.

    ``blocks`` count from 1; 0, -1, ... are the last, the one before it, ...
    """

    dataset: str = Field(description="key of data, with masks")
    size: int = Field(224, ge=16, description="side in pixels of the square that images are resized to")
    blocks: Blocks = Field((-1, 0), description="all, or from 1; 0 is the last, -1 the one before it")
    learning_rates: LearningRates = Field((1e-3, 1e-2), min_length=1, description="one head each")
    epochs: int = Field(10, ge=1, description="passes over the training images")
    train_split: str = Field("train", description="whose images the heads are fitted on")
    val_split: str = Field("val", description="whose images are scored")
    train_images: int = Field(200, ge=2, description="images fitted on")
    val_images: int = Field(100, ge=1, description="images scored")
    held_out: bool = Field(
        False, description="score images of train_split that are left out of the fit, in place of val_split"
    )

    @property
    def use(self) -> Literal["segmentation"]:
        """The label with which the data set is opened."""
        return "segmentation"

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are looked at."""
        return (self.train_split,) if self.held_out else (self.train_split, self.val_split)

    @model_validator(mode="after")
    def _other_images(self) -> Self:
        if self.val_split == self.train_split and not self.held_out:
            raise ValueError(f"val_split: {self.val_split!r} is fitted on: name another split, or set held_out")
        return self


class OnlineConfig(Config):
    """Measurements made while a network trains; the first one given selects the best checkpoint."""

    knn: OnlineKnnConfig | None = None
    probe: OnlineProbeConfig | None = None

    @property
    def parts(self) -> dict[str, OnlineKnnConfig | OnlineProbeConfig]:
        """The requested measurements, by name."""
        return {name: part for name, part in (("knn", self.knn), ("probe", self.probe)) if part is not None}
