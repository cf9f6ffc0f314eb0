"""The stage ``data``: the embedded data sets, composed in published layouts. Others lie outside a study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dinoskip.data.sets.kind import Synthetic
from dinoskip.pipeline.graph import NodeSettings, SettingsOf
from dinoskip.pipeline.stage import Content, DataInputs, Stage, StudyNodes, Task
from dinoskip.settings.keys import every_setting, settings_for_key

OF_LABELLED = frozenset({"limit", "skip_broken", "label_orientation"})
"""Settings that say which images of a labelled split are evaluated, and how their labels lie."""


@dataclass(frozen=True)
class DataSettings(NodeSettings):
    """The settings of a data set to compose."""

    scenes: Synthetic

    def recorded(self, settings_of: SettingsOf) -> dict[str, Any]:
        """Return the settings that the key of the node is computed from."""
        return {"scenes": {key: value for key, value in settings_of(self.scenes).items() if key not in OF_LABELLED}}


def run(task: Task) -> None:
    """Compose the data set in the layout of a published one."""
    settings: DataSettings = task.settings
    settings.scenes.generate(task.out)


STAGE = Stage("data", run)


def of_dataset(nodes: StudyNodes, name: str, split: str, *contents: Content) -> DataInputs:
    """Return a node's inputs from a split: the output of a data stage, or hashes of the files of the given contents."""
    config = nodes.study.data[name]
    read = {"kind": config.kind, "split": split}
    unlabelled = all("pretraining" in content for content in contents)  # of which nothing is left out
    without = {"root", "kind", *(OF_LABELLED if unlabelled else ())}
    settings, every = settings_for_key(config, without), every_setting(config, without)
    if isinstance(config, Synthetic):
        node = nodes.add(STAGE, name, DataSettings(config))
        settings, every = ({key: own[key] for key in own if key in OF_LABELLED} for own in (settings, every))
        inputs, outside = {"data": node}, {}
    else:
        inputs = {}
        outside = {f"{name}: {what} of {rest[-1]}": (what, config, *rest) for what, *rest in contents}
    of_key, of_record = ({"dataset": {**read, **own}} for own in (settings, every))
    return DataInputs(of_key, inputs, {"config": config}, outside, of_record)
