"""The weight of skip connections in a run: the same in all of its networks, a pure function of the step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from dinoskip.init.config import ModelConfig
from dinoskip.models.family_blocks import skip_blocks
from dinoskip.models.skip_weight import weigh_skips_
from dinoskip.settings.config import dump


class SkipDial:
    """Gives the networks of a run of ``total`` steps on ``model`` the weight of a step. Without one it does nothing."""

    def __init__(self, model: ModelConfig, total: int) -> None:
        self._model, self._setting, self._total = model, model.skip_weight, total
        self._value: float | None = None

    def set(self, networks: Iterable[nn.Module], step: int) -> None:
        """Give a run's networks the weight at step 0, 1, ..., if it is another than they have."""
        if self._setting is not None and self._setting.at(step, self._total) != self._value:
            self._value = self._setting.at(step, self._total)
            for network in networks:
                self.set_copy(network, step)

    def set_copy(self, network: nn.Module, step: int) -> None:
        """Give another network the weight after ``step`` steps."""
        if self._setting is not None:
            backbone = network.get_submodule("backbone")
            value = self._setting.at(step, self._total)
            weigh_skips_(backbone, self._setting.weights(value, len(skip_blocks(backbone))))

    def logged(self, step: int) -> dict[str, float]:
        """For the row of a step's metrics."""
        return {} if self._setting is None else {"skip_weight": self._setting.at(step, self._total)}

    def exported(self, step: int) -> tuple[ModelConfig, dict[str, Any]]:
        """The model of a checkpoint after ``step`` steps, and what its info says of the weight's course."""
        if self._setting is None:
            return self._model, {}
        return self._model.settled(self._setting.at(step, self._total)), {"skip_weight": dump(self._setting)}
