"""The section ``online`` of a study: what is measured every ``pretrain.online_every`` epochs while a network trains.

It changes no weight, so it is no part of a stage's key: what has been trained is not trained again to be measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from dinoskip.config import Config, RawConfig, no_duplicates, validate
from dinoskip.data import sets as datasets
from dinoskip.pipeline.make import DatasetBox
from dinoskip.pipeline.runner import Task
from dinoskip.pipeline.stages import ours
from dinoskip.training.recipe import Observer


class OnlineKnn(Config):
    """k-NN on the CLS token of the last block, on a class-balanced sample of a data set with classes."""

    dataset: str
    size: int = Field(224, ge=16, description="side in pixels of the centre crop")
    k: Annotated[tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(no_duplicates)] = Field((10,), min_length=1)
    train_images: int = Field(5000, ge=1)
    val_images: int = Field(1000, ge=1)
    held_out: bool = Field(False, description="validate on training images that are left out of the neighbours")

    @property
    def use(self) -> Literal["classes"]:
        """As what the data set is opened."""
        return "classes"

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are looked at."""
        return ("train",) if self.held_out else ("train", "val")

    @model_validator(mode="after")
    def _neighbours(self) -> OnlineKnn:
        if max(self.k) > self.train_images:
            raise ValueError(f"k: {max(self.k)} exceeds train_images ({self.train_images})")
        return self


class OnlineProbe(Config):
    """A linear segmentation probe on a small sample of a data set with label maps.

    ``blocks`` count from 1; 0, -1, ... are the last, the one before it, ...
    """

    dataset: str
    size: int = Field(224, ge=16, description="side in pixels of the square that images are resized to")
    blocks: Annotated[tuple[int, ...], AfterValidator(no_duplicates)] = Field((-1, 0), min_length=1)
    learning_rates: Annotated[tuple[Annotated[float, Field(gt=0)], ...], AfterValidator(no_duplicates)] = Field(
        (1e-3, 1e-2), min_length=1
    )
    epochs: int = Field(10, ge=1)
    train_split: str = "train"
    val_split: str = "val"
    train_images: int = Field(200, ge=2)
    val_images: int = Field(100, ge=1)

    @property
    def use(self) -> Literal["segmentation"]:
        """As what the data set is opened."""
        return "segmentation"

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are looked at."""
        return self.train_split, self.val_split


class OnlineSection(Config):
    """What is measured while a network trains; the first that is given tells the best checkpoint."""

    knn: OnlineKnn | None = None
    probe: OnlineProbe | None = None

    @property
    def parts(self) -> dict[str, OnlineKnn | OnlineProbe]:
        """What is asked for, by name."""
        return {name: part for name, part in (("knn", self.knn), ("probe", self.probe)) if part is not None}


def build_observer(section: OnlineSection, data: Mapping[str, tuple[Any, Path | None]]) -> Observer | None:
    """The observer that measures ``section``; None if that is nothing.

    ``data`` gives each part's data set: its configuration, and its folder where a stage composed it. Raises
    :class:`ConfigError` or :class:`DataError` for a data set that does not suit.
    """
    module, measures = ours("eval.online"), []
    for name, part in section.parts.items():
        config, root = data[name]
        options = part.model_dump(exclude={"dataset", "train_split", "val_split", "held_out"})
        opened = datasets.open_labelled if part.use == "classes" else datasets.open_segmentation
        measure = module.OnlineKnn if part.use == "classes" else module.OnlineProbe
        measures.append(measure(*(opened(config, split, root) for split in part.splits), **options))
    observer: Observer | None = module.OnlineEvaluation(measures) if measures else None
    return observer


def observer_of(task: Task) -> Observer | None:
    """The observer of a pretraining stage, from what :mod:`dinoskip.pipeline.nodes` handed it."""
    parts = task.runtime["online"]
    section = validate(OnlineSection, RawConfig({name: part["section"] for name, part in parts.items()}))
    data = {
        name: (
            validate(DatasetBox, RawConfig({"dataset": dict(part["config"])})).dataset,
            task.inputs.get(f"online {name}"),
        )
        for name, part in parts.items()
    }
    return build_observer(section, data)
