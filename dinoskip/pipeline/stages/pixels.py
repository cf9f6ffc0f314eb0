"""The stage ``pixels``: what pixels without a network reach at a task, made once for all networks of one patch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dinoskip import features
from dinoskip.data.sets.kind import Synthetic
from dinoskip.pipeline.graph import NodeSettings, SettingsOf
from dinoskip.pipeline.stage import EvaluatedModel, Stage, StudyNodes, Task
from dinoskip.pipeline.stages import data
from dinoskip.pipeline.stages.inputs import open_split
from dinoskip.pipeline.stages.settings import settings_of_section
from dinoskip.settings.config import RawConfig, validate
from dinoskip.settings.tasks import EvaluationTask, FloorInputs


@dataclass(frozen=True)
class PixelSettings(NodeSettings):
    """The task with its section, the patch of the networks beside which it stands, the study's seed if it is read."""

    record: EvaluationTask
    section: Any
    patch: int
    seed: int | None

    def recorded(self, settings_of: SettingsOf) -> dict[str, Any]:
        """The task's settings that its floor depends on, by its name, and patch, version and seed."""
        settings = settings_of_section(self.record, self.section, settings_of)
        seed = {} if self.seed is None else {"seed": self.seed}
        return {self.record.name: settings, "patch": self.patch, "version of task": self.record.version, **seed}


def of_task(
    record: EvaluationTask, nodes: StudyNodes, model: EvaluatedModel, name: str, section: Any
) -> dict[str, str]:
    """The node that makes the floor of a network's rows on a data set, as its input; none where the task has none.

    None either where images are left out that are broken or smaller than a patch of the network, or where its patch is
    not known before it is opened: the task makes its own then.
    """
    network, floor = model.variant.network, record.floor
    if floor is None or not floor.asked(section) or network is None or network.guessed:
        return {}
    config: Any = nodes.study.data[name]
    if not isinstance(config, Synthetic) and getattr(config, "skip_broken", False):
        return {}
    splits = list(record.splits(section).values())
    contents = [(what, record.label, split) for split in dict.fromkeys(splits) for what in ("images", "targets")]
    seed = nodes.study.seed if "seed" in record.study_settings else None
    settings = PixelSettings(record, section, network.patch, seed)
    of_data = data.of_dataset(nodes, name, record.scored_split(section), *contents)
    return {"floor": nodes.add(STAGE, f"{record.name}/{name}-patch{network.patch}", settings, data=of_data)}


def run(task: Task) -> None:
    """Open the splits, and make the floor."""
    settings: PixelSettings = task.settings
    record, section = settings.record, settings.section
    assert record.floor is not None
    sized: Mapping[str, Any] = {
        ask.role: validate(features.Transform, RawConfig(dict(ask.transform))) for ask in record.features(section)
    }
    labels = {role: open_split(task, record.label, split) for role, split in record.splits(section).items()}
    record.floor.make(
        FloorInputs(section, labels, sized, settings.patch, task.out, settings.seed or 0, task.device, task.workers)
    )


STAGE = Stage("pixels", run)
