"""The stage ``data``: the embedded data sets, composed in published layouts. Others lie outside a study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dinoskip.data.sets.kind import Synthetic
from dinoskip.pipeline.graph import NodeSettings
from dinoskip.pipeline.stage import Content, DataInputs, Stage, StudyNodes, Task
from dinoskip.settings.config import settings_for_key

OF_LABELLED = frozenset({"limit", "skip_broken", "label_orientation"})
"""Settings that say which images of a labelled split are evaluated, and how their labels lie."""


@dataclass(frozen=True)
class DataSettings(NodeSettings):
    """The settings of a data set to compose."""

    scenes: Synthetic

    def plain(self) -> dict[str, Any]:
        """What the key of the node is made of."""
        return {"scenes": settings_for_key(self.scenes, without=OF_LABELLED)}


def run(task: Task) -> None:
    """Compose the data set in the layout of a published one."""
    settings: DataSettings = task.settings
    settings.scenes.generate(task.out)


STAGE = Stage("data", run)


def of_dataset(nodes: StudyNodes, name: str, split: str, *contents: Content) -> DataInputs:
    """What a node needs of a split: the output of a data stage, or the files of the given contents by their hashes."""
    config = nodes.study.data[name]
    read = {"kind": config.kind, "split": split}
    unlabelled = all("pretraining" in content for content in contents)  # of which nothing is left out
    settings = settings_for_key(config, without={"root", "kind", *(OF_LABELLED if unlabelled else ())})
    if isinstance(config, Synthetic):
        node = nodes.add(STAGE, name, DataSettings(config))
        settings = {key: value for key, value in settings.items() if key in OF_LABELLED}
        return DataInputs({"dataset": {**read, **settings}}, {"data": node}, {"config": config})
    outside = {f"{name}: {what} of {rest[-1]}": (what, config, *rest) for what, *rest in contents}
    return DataInputs({"dataset": {**read, **settings}}, {}, {"config": config}, outside)
