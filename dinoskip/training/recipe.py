"""Settings of every training recipe, whatever its objective: training, seed, model and optimizer; without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from dinoskip.init.config import ModelConfig, TruncNormalInit, needs_images
from dinoskip.optim.config import AdamWConfig, OptimizerConfig
from dinoskip.settings.config import Config

if TYPE_CHECKING:
    import torch
    from timm.models.vision_transformer import VisionTransformer

BoardName = Literal["tensorboard", "wandb", "mlflow"]

# Settings of TrainConfig that may differ when a run is resumed, as the number of ranks may. They change no number; the
# last two change the order of sums, and, unless ranks x accumulate stays the same, which draws drop path gets.
FREE_KEYS = (
    "log_every", "checkpoint_every_minutes", "checkpoint_every_steps", "keep_epochs", "max_nonfinite", "online_every",
    "diagnose_every", "boards", "rank_timeout", "rank_patience", "accumulate",
    "parallel",
)  # fmt: skip


class TrainConfig(Config):
    """Settings of every objective: length, batch, what is kept and written, and how it is computed."""

    section: ClassVar[str] = "pretrain"
    """Section of these settings in a configuration."""
    epochs: int = Field(300, ge=1, description="passes over the images")
    batch_size: int = Field(1024, ge=1, description="images a step over all ranks and micro-batches")
    warmup_epochs: float = Field(10, ge=0, description="linear warm-up of the learning rate from 0; may be a fraction")
    keep_epochs: tuple[int, ...] = Field((), description="epochs whose checkpoint is kept, beside the last")
    checkpoint_every_minutes: float = Field(10.0, gt=0, description="minutes between checkpoints")
    checkpoint_every_steps: int | None = Field(None, ge=1, description="as well; null: by time alone")
    log_every: int = Field(10, ge=1, description="steps between rows of metrics.jsonl")
    online_every: int = Field(0, ge=0, description="epochs between evaluations while training; 0 = none")
    diagnose_every: int = Field(0, ge=0, description="steps between rows of diagnostics.jsonl; 0 = none")
    boards: tuple[BoardName, ...] = Field((), description="where rows of metrics.jsonl are shown as well")
    max_nonfinite: int = Field(10, ge=1, description="non-finite steps in a row that end the run")
    rank_timeout: float = Field(
        120.0, gt=0, description="seconds without sign of life or progress that make a rank lost"
    )
    rank_patience: float = Field(
        900.0,
        gt=0,
        le=7200,
        description="the same in the first step, which compiles, and while saving; 4 times that before the first step, "
        "96 times in an evaluation",
    )
    accumulate: int = Field(1, ge=1, description="micro-batches a step, on every rank: fewer GPUs, the same batch")
    parallel: Literal["ddp", "fsdp"] = Field("ddp", description="whole copies on every rank, or shards (FSDP2)")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto: bf16 autocast on a GPU, else fp32")
    compile: Literal["auto"] | bool = Field("auto", description="torch.compile; auto: on a GPU")

    @model_validator(mode="after")
    def _epochs_fit(self) -> TrainConfig:
        if self.warmup_epochs >= self.epochs and self.warmup_epochs > 0:
            raise ValueError(
                f"warmup_epochs: {self.warmup_epochs:g} must be less than epochs ({self.epochs}): "
                f"give {self.section}.warmup_epochs={self.epochs / 10:g}, or more epochs"
            )
        for epoch in self.keep_epochs:
            if not 1 <= epoch <= self.epochs:
                raise ValueError(f"keep_epochs: {epoch} is outside 1..epochs ({self.epochs})")
        return self


class Job(Config):
    """Settings that the result of a training run depends on, except the images; a subclass adds its objective's."""

    seed: int = Field(0, ge=0)
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = AdamWConfig()

    @model_validator(mode="after")
    def _layers_are_ours(self) -> Job:
        if self.model.timm_name is not None and getattr(self.optimizer, "layer_decay", 1) != 1:
            raise ValueError(f"optimizer.layer_decay: is of ViTs of ours, not of {self.model.name}")
        return self

    def backbone(self, device: torch.device) -> VisionTransformer:
        """The backbone to be trained, at its start; with drop path only if it has all skips.

        One whose initialisation is measured on images starts by the default here, and gets its weights from
        :func:`dinoskip.training.calibration.begin_with`.
        """
        from dinoskip.init.build import build_model  # torch
        from dinoskip.models.skip_weight import let_skips_change_

        # The public commands of DINO and iBOT drop paths at 0.1 in the student. What is dropped is a branch beside a
        # skip: without the skip nothing would be left of the tokens, so a network that lacks one drops none.
        model, drop_path = self.model, self.model.drop_path_in_training
        if needs_images(model.init):
            model = model.model_copy(update={"init": TruncNormalInit(), "reparametrise": None})
        network = build_model(model, self.seed, drop_path=drop_path, device=device)
        if model.skip_weight is not None and model.skip_weight.fraction:
            let_skips_change_(network)
        return network
