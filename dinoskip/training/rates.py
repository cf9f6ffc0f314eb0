"""Values of a run's schedules at each of its steps."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dinoskip.optim.config import OptimizerConfig
from dinoskip.optim.schedules import cosine
from dinoskip.training.recipe import TrainConfig


@dataclass(frozen=True)
class Rates:
    """Scheduled values of one step: learning rate, weight decay, and in subclasses whatever else is scheduled."""

    lr: float
    weight_decay: float

    def logged(self) -> dict[str, float]:
        """Names and values for a row of metrics.jsonl: every field that is a number."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            "wd" if name == "weight_decay" else name: value
            for name, value in values.items()
            if not isinstance(value, bool)
        }


class Schedules:
    """Learning rate (linear warm-up from 0, cosine) and weight decay (cosine between its two values) by step."""

    def __init__(self, config: TrainConfig, optimizer: OptimizerConfig, steps_per_epoch: int) -> None:
        total, warmup = config.epochs * steps_per_epoch, round(config.warmup_epochs * steps_per_epoch)
        self._lr = cosine(optimizer.lr * config.batch_size / 256, optimizer.min_lr, total, warmup)
        self._decay = cosine(optimizer.weight_decay, optimizer.weight_decay_end, total)

    def at(self, step: int) -> Rates:
        """Rates of step 0..total-1: a pure function of the step."""
        return Rates(lr=float(self._lr[step]), weight_decay=float(self._decay[step]))
