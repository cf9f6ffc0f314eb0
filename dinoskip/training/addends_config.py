"""Settings of losses that are added to those of DINO, iBOT and patch contrast: a weight, and when it comes in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from dinoskip.plugins import Table, found
from dinoskip.settings.config import Config
from dinoskip.training.pretrain_config import PretrainConfig
from dinoskip.training.recipe import Job

if TYPE_CHECKING:
    import torch

    from dinoskip.data.view_targets import ViewTargets
    from dinoskip.training.objective import Objective, WithLosses

ADDED_LOSSES = "added_losses"
"""The group of entry points whose parts are objectives with the losses of these settings."""


class AddendConfig(Config):
    """A weight that is 0 up to a share of training, then rises as a cosine, then stays."""

    weight: float = Field(1.0, ge=0, description="of the loss, once it has risen")
    start: float = Field(0.0, ge=0, lt=1, description="share of training before which the weight is 0")
    rise: float = Field(0.0, ge=0, le=1, description="share of training, from there on, in which it rises from 0")

    def first(self, total: int) -> int:
        """The step from which on it counts, in a run of ``total``."""
        return round(self.start * total)

    def at(self, step: int, total: int) -> float:
        """The weight at step 0, 1, ..., of ``total``."""
        done, rising = step - self.first(total), round(self.rise * total)
        if done < 0:
            return 0.0
        return self.weight if done >= rising else self.weight * (1 - math.cos(math.pi * done / rising)) / 2


class KoleoConfig(AddendConfig):
    """KoLeo on the student's CLS tokens of global crops after the last norm, before the head; crops apart, summed."""

    weight: float = Field(0.1, ge=0, description="of the loss, once it has risen; 0.1 in DINOv2")
    neighbours: int = Field(1, ge=1, description="nearest others of each token that it is driven from")


Level = Literal["image", "batch"]
Negatives = Literal["keep", "none", "teacher"]
Tokens = Literal["all", "masked", "unmasked"]
OF_THE_RUN = ("ema", "snapshot")


class GramConfig(AddendConfig):
    """Gram loss on patches of global crops after the last norm; the student's may be masked, the teacher's are not."""

    weight: float = Field(2.0, ge=0, description="of the loss, once it has risen; 2 in DINOv3")
    teacher: str = Field(
        "snapshot",
        min_length=1,
        description="ema: the teacher of the step; snapshot: as it was when the weight came in; or a backbone",
    )
    refresh_every: int | None = Field(None, ge=1, description="steps after which a snapshot is taken anew; null: never")
    refresh_most: int = Field(3, ge=1, description="times that it is taken anew at most")
    scale: int = Field(1, ge=1, le=4, description="how many times as large, in pixels, the teacher sees the crops")
    antialias: bool = Field(False, description="of the bicubic resize of the teacher's map to the student's grid")
    level: Level = Field("image", description="similarities within an image, or among all patches of the batch")
    negatives: Negatives = Field("keep", description="similarities below 0: kept, 0 in both, or 0 in the teacher's")
    tokens: Tokens = Field("all", description="which patches; masked and unmasked are iBOT's, and need level=batch")
    normalised: bool = Field(True, description="patches of unit length")

    @model_validator(mode="after")
    def _consistent(self) -> GramConfig:
        if self.tokens != "all" and self.level == "image":
            raise ValueError("tokens: images have different numbers of masked patches: take level=batch")
        if self.refresh_every is not None and self.teacher != "snapshot":
            raise ValueError("refresh_every: only teacher=snapshot is taken anew")
        if self.scale > 1 and self.teacher == "ema":
            raise ValueError("scale: the teacher of the step sees the student's crops: take a snapshot or a backbone")
        return self

    def snapshot_after(self, step: int, total: int) -> bool:
        """Whether the snapshot is taken, or taken anew, after step ``step`` (0, 1, ...) of ``total``."""
        done, first = step + 1, self.first(total)
        if self.teacher != "snapshot" or done < first:
            return False
        if done == first:
            return True
        if self.refresh_every is None or (done - first) % self.refresh_every:
            return False
        return (done - first) // self.refresh_every <= self.refresh_most


class PakaConfig(AddendConfig):
    """A local crop's patches against the teacher's of a global crop, where both show the same; by a head of its own."""

    hidden_dim: int = Field(2048, ge=1, description="width of the head's two hidden layers")
    out_dim: int = Field(256, ge=1, description="dimensions in which patches are compared")


class AddendsConfig(PretrainConfig):
    """Settings of objectives to which losses can be added."""

    extended_by: ClassVar[str]
    """Name of the part of ``dinoskip.added_losses`` that is this objective with added losses."""
    masks: ClassVar[bool] = False
    """Whether the student sees patches masked."""

    koleo: KoleoConfig | None = Field(None, description="KoLeo on CLS tokens; null: none")
    gram: GramConfig | None = Field(None, description="Gram anchoring of patches; null: none")
    paka: PakaConfig | None = Field(None, description="patch kernel alignment; null: none")

    @model_validator(mode="after")
    def _is_installed(self) -> AddendsConfig:
        if self.extended and (ADDED_LOSSES, self.extended_by) not in found():
            asked = next((name for name in ("koleo", "gram", "paka") if getattr(self, name) is not None), "centering")
            raise ValueError(
                f"{asked}: is of a plug-in that is not installed: no part {self.extended_by!r} of "
                f"dinoskip.{ADDED_LOSSES} is there"
            )
        return self

    @model_validator(mode="after")
    def _has_what_it_compares(self) -> AddendsConfig:
        if self.gram is not None and self.gram.tokens != "all" and not self.masks:
            raise ValueError(f"gram.tokens: {self.gram.tokens} patches are iBOT's alone: take all")
        images = self.batch_size // self.accumulate
        if self.koleo is not None and self.koleo.weight and images <= self.koleo.neighbours:
            # topk would take the image itself, at distance 0: a constant, with no gradient but with a share of the loss
            raise ValueError(
                f"koleo.neighbours: {self.koleo.neighbours} others of an image are looked for among the {images} of a "
                "micro-batch on all ranks (batch_size / accumulate): take a larger batch, or koleo=null"
            )
        return self

    @property
    def extended(self) -> bool:
        """Whether any loss is added."""
        return any(addend is not None for addend in (self.koleo, self.gram, self.paka))

    def build(self, job: Job, steps_per_epoch: int, device: torch.device) -> Objective:
        """Build the objective, with added losses where settings ask for some."""
        if not self.extended:
            return super().build(job, steps_per_epoch, device)
        built: Callable[..., Objective] = self._with_losses()
        return built(job, self, steps_per_epoch, device)

    def _with_losses(self) -> type[WithLosses]:
        """The class of the objective with added losses."""
        from dinoskip.training.objective import WithLosses  # torch

        parts: Table[type[WithLosses]] = Table(ADDED_LOSSES, {}, WithLosses)
        return parts[self.extended_by]

    def backbones(self) -> tuple[str, ...]:
        """The network that Gram anchoring holds to, where it is not of the run."""
        return (self.gram.teacher,) if self.gram is not None and self.gram.teacher not in OF_THE_RUN else ()

    def rendered(self, size: int) -> int:
        """Side in pixels at which crops of ``size`` are cut: larger where an anchor sees them larger."""
        return size * (self.gram.scale if self.gram is not None else 1)

    def with_overlaps(
        self, targets: ViewTargets | None, patch: int, global_size: int, local_size: int, num_local: int
    ) -> ViewTargets | None:
        """Return a step's view targets: an objective's own ``targets``, then overlaps of views if a loss needs them."""
        if self.paka is None:
            return targets
        from dinoskip.data.view_targets import Joined  # torch

        grids = global_size // patch, (local_size if num_local else global_size) // patch
        parts: tuple[ViewTargets, ...] = () if targets is None else (targets,)
        return Joined((*parts, self._with_losses().overlaps(*grids, num_local)))
