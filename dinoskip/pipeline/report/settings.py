"""Settings of a study that the stage ``report`` may read: its own section, the card of settings, and every variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dinoskip.pipeline.graph import NodeSettings, SettingsOf
from dinoskip.pipeline.stage import without_place
from dinoskip.pipeline.stages.pretrain import PretrainSection
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.pipeline.variants import Variant
from dinoskip.pipeline.words import variant_words
from dinoskip.settings.config import dump
from visualize.report.config import ReportConfig


@dataclass(frozen=True)
class ReportSettings(NodeSettings):
    """Settings of the one report of a study.

    ``card`` has every setting of the study that can change a number, ``data`` its data sets, ``recipe`` is how it
    trains. ``missing`` are stages that have not run, and why. ``said`` is what was found of the study's data.
    """

    section: ReportConfig
    study: str
    card: Mapping[str, Any]
    variants: Sequence[Variant]
    data: Mapping[str, Any] = field(default_factory=dict)
    recipe: PretrainSection | SuperviseSection | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    said: Sequence[str] = ()

    @property
    def epochs(self) -> int:
        """Epochs of the study's recipe; 0 without one."""
        return self.recipe.epochs if self.recipe else 0

    @property
    def trained_on(self) -> str:
        """The data set of its recipe."""
        return self.recipe.dataset if self.recipe else ""

    def variant(self, name: str) -> Variant | None:
        """The variant of a name, or of the words for it; None if rows are of none."""
        return next((one for one in self.variants if name in (one.name, self.words_of(one.name))), None)

    @cached_property
    def _words(self) -> dict[str, str]:
        return variant_words(self.variants)

    def words_of(self, name: str) -> str:
        """Return the words on the page for a variant, or for all seeds of one (:mod:`dinoskip.pipeline.words`)."""
        return self._words.get(name, name)

    @property
    def trained(self) -> list[Variant]:
        """Variants that the study trains."""
        return [variant for variant in self.variants if variant.model is not None]

    def recorded(self, settings_of: SettingsOf) -> dict[str, Any]:
        """Return the settings that the key of the node is computed from."""
        return {
            "report": dump(self.section),
            "study": self.study,
            "card": dict(self.card),
            "variants": {variant.name: described(variant) for variant in self.variants},
            "datasets": {name: without_place(config) for name, config in self.data.items()},
            "epochs": self.epochs,
            "trained_on": self.trained_on,
            **({"missing": dict(self.missing)} if self.missing else {}),
            **({"said": list(self.said)} if self.said else {}),
        }


def described(variant: Variant) -> dict[str, Any]:
    """Every setting of a variant."""
    if variant.model is None or variant.optimizer is None:
        return {"backbone": variant.backbone}
    seed = {"family": variant.family, "seed": variant.seed} if variant.family else {}
    return {"model": dump(variant.model), "optimizer": dump(variant.optimizer), **seed}
