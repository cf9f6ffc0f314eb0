"""Settings of nodes that several stages use: of a training and its start, of features, of an evaluation task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dinoskip.data.sets.labels import LABELS
from dinoskip.init.config import ModelConfig
from dinoskip.pipeline.graph import NodeSettings, SettingsOf
from dinoskip.pipeline.stage import EvaluatedModel, StudyNodes
from dinoskip.plugins import content_of_part
from dinoskip.settings.config import Config
from dinoskip.settings.read_points import usual_norm
from dinoskip.settings.tasks import EvaluationTask, FeatureRequest
from dinoskip.training.objectives import PretrainJob
from dinoskip.training.recipe import FREE_KEYS, Job
from eval.online.config import OnlineConfig

FREE = tuple(key for key in FREE_KEYS if key != "keep_epochs")
"""Settings of a run that are no part of its key. ``keep_epochs`` is: it changes no number, but it says which
checkpoints the output holds, and the weights stage reads those."""
FEATURES_VERSION = 3
"""Of what is computed of images: part of the key of stores, and of whatever reads features in windows."""


@dataclass(frozen=True)
class StartSettings(NodeSettings):
    """The network with which a training begins."""

    seed: int
    model: ModelConfig


@dataclass(frozen=True)
class TrainingSettings(NodeSettings):
    """Settings of a training: its job, and what is measured while it trains, on which of the study's ``data``.

    What is measured changes no weight, so it is no part of the key.
    """

    job: Job
    online: OnlineConfig
    data: Mapping[str, Config]

    def recorded(self, settings_of: SettingsOf) -> dict[str, Any]:
        """Settings as they are hashed; a subclass adds the recipe."""
        model, optimizer = settings_of(self.job.model), settings_of(self.job.optimizer)
        return {"seed": self.job.seed, "model": model, "optimizer": optimizer}


@dataclass(frozen=True)
class PretrainSettings(TrainingSettings):
    """Settings of a training without labels: its job by one of the objectives."""

    job: PretrainJob

    def recorded(self, settings_of: SettingsOf) -> dict[str, Any]:
        """Return the settings that the key of the node is computed from."""
        return {**super().recorded(settings_of), "pretrain": hashed_recipe(settings_of(self.job.pretrain))}


def hashed_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a recipe that are part of the key."""
    return {setting: value for setting, value in recipe.items() if setting not in {"dataset", *FREE}}


@dataclass(frozen=True)
class FeatureSettings(NodeSettings):
    """Features of a split: where blocks are read and under which norms, how images are sized, which use is made.

    ``facets`` are those of one export: one pass gives them all. ``backbone`` is a variant's that is not trained in the
    study. ``windows``: they are computed as they are read, not stored. ``precision`` is that of the pass.
    """

    use: str
    split: str
    facets: Sequence[str]
    norms: Sequence[str]
    transform: Mapping[str, Any]
    blocks: str | Sequence[int]
    version: Mapping[str, str] = field(default_factory=dict)
    backbone: str | None = None
    windows: bool = False
    precision: str = "fp32"
    tokens: bool | None = None
    cls: bool | None = None

    @classmethod
    def of(
        cls,
        nodes: StudyNodes,
        model: EvaluatedModel,
        use: str,
        facets: Sequence[str],
        request: FeatureRequest,
        without_norm: bool,
    ) -> FeatureSettings:
        """Return the features that a task requests of a network's evaluated blocks.

        They are under no norm with ``without_norm``, else under the usual one of each facet.
        """
        norms = ["none" if without_norm else usual_norm(facet, nodes.study.evaluate.norm[0]) for facet in facets]
        return cls(
            use, request.split, facets, norms, request.transform, nodes.blocks(model.variant), request.version,
            precision=nodes.study.precision, tokens=request.tokens, cls=request.cls,
        )  # fmt: skip

    def in_windows(self, model: EvaluatedModel) -> FeatureSettings:
        """Return settings of the same features, computed window by window as they are read."""
        return replace(self, backbone=model.variant.backbone, windows=True)

    @property
    def reads(self) -> tuple[bool, bool]:
        """Whether patch tokens and whether CLS tokens are read."""
        label = LABELS[self.use]
        tokens, cls = self.tokens, self.cls
        return label.tokens if tokens is None else tokens, label.cls if cls is None else cls

    @property
    def name(self) -> str:
        """Name, unique among features of the same images and network: ``segmentation-out-final-square-224``."""
        sized = (key if value is True else str(value) for key, value in self.transform.items())
        of = [f"{'' if of else 'no-'}{what}" for what, of in self._requested.items()]
        return "-".join([self.use, "+".join(self.facets), "+".join(dict.fromkeys(self.norms)), *sized, *of])

    @property
    def _requested(self) -> dict[str, bool]:
        """Of tokens and CLS what a task requests otherwise than others with its label."""
        label = LABELS[self.use]
        usual = {"tokens": label.tokens, "cls": label.cls}
        return {what: of for (what, usually), of in zip(usual.items(), self.reads, strict=True) if of != usually}

    def recorded(self, settings_of: SettingsOf) -> dict[str, Any]:
        """Return the settings that the key of the node is computed from."""
        facets, norms = list(self.facets), list(self.norms)
        return {
            "facet": facets[0] if len(facets) == 1 else facets,
            "norm": norms[0] if len(norms) == 1 else norms,
            "transform": dict(self.transform),
            "blocks": self.blocks,
            "use": self.use,
            **self._requested,
            **self.version,
            **({} if self.backbone is None else {"backbone": self.backbone}),
            **({} if self.precision == "fp32" else {"precision": self.precision}),
            **({"split": self.split, "version": FEATURES_VERSION} if self.windows else {}),
        }


def settings_of_section(record: EvaluationTask, section: Any, settings_of: SettingsOf) -> dict[str, Any]:
    """The settings of a task's section that are part of keys: not those that say what is read."""
    return {name: value for name, value in settings_of(section).items() if name not in record.not_in_key}


@dataclass(frozen=True)
class StudySettings:
    """Settings of the study that a task may read beside its section; those not named by its record are as here."""

    seed: int = 0
    multiscale: Sequence[int] | str | None = None
    blocks: str | Sequence[int] = "all"
    norms: Sequence[str] = ()


@dataclass(frozen=True)
class TaskSettings(NodeSettings):
    """Settings that a node of a task may read: its section, and those of the study that its record names.

    ``facets`` and ``norms`` are those read of the network itself; ``read`` is the facet of stores that have several.
    ``stated`` are those of the two that are part of the key. ``windows`` are features, by role, that are computed as
    they are read. ``network``: whether the network is read, too; ``backbone`` is the variant's, if it is not trained in
    the study.
    """

    record: EvaluationTask
    section: Any
    context: Mapping[str, Any]
    study: StudySettings = field(default_factory=StudySettings)
    facets: Sequence[str] = ("out",)
    norms: Sequence[str] = ()
    stated: Mapping[str, Any] = field(default_factory=dict)
    read: str | None = None
    windows: Mapping[str, FeatureSettings] = field(default_factory=dict)
    network: bool = False
    backbone: str | None = None

    def recorded(self, settings_of: SettingsOf) -> dict[str, Any]:
        """Return the settings that the key of the node is computed from."""
        content = content_of_part("tasks", self.record.name)
        optional = {"read": self.read, "backbone": self.backbone, "plugin": content}
        return {
            self.record.name: settings_of_section(self.record, self.section, settings_of),
            "context": dict(self.context),
            **{name: getattr(self.study, name) for name in self.record.study_settings},
            **self.stated,
            **{f"features {role}": wanted.recorded(settings_of) for role, wanted in self.windows.items()},
            **{name: value for name, value in optional.items() if value is not None},
        }
