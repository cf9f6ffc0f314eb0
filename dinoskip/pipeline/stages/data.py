"""The stage ``data``: the embedded data sets, composed in published layouts. Others lie outside a study."""

from __future__ import annotations

from typing import Any

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.data.sets.kind import Composed
from dinoskip.pipeline.stage import Content, DataInputs, Stage, StudyNodes, Task
from dinoskip.pipeline.stages.inputs import OneDataset


def run(task: Task) -> None:
    """Compose the data set."""

    config = validate(OneDataset, RawConfig({"dataset": dict(task.settings["scenes"])})).dataset
    assert isinstance(config, Composed)
    config.compose(task.out)


STAGE = Stage("data", run)
OF_LABELLED = frozenset({"limit", "skip_broken"})
"""Settings that say which images of a labelled split are evaluated."""


def of_dataset(nodes: StudyNodes, name: str, split: str, *contents: Content) -> DataInputs:
    """What a node needs of a split: the output of a data stage, or the files of the given contents by their hashes."""
    config = nodes.study.data[name]
    settings: dict[str, Any] = {"dataset": {"kind": config.kind, "split": split}}
    unlabelled = all("pretraining" in content for content in contents)  # of which nothing is left out
    own = settings_for_key(config, without={"root", "kind", *(OF_LABELLED if unlabelled else ())})
    if isinstance(config, Composed):
        node = nodes.add(STAGE, name, {"scenes": settings_for_key(config, without=OF_LABELLED)})
        settings["dataset"].update({key: own[key] for key in own if key in OF_LABELLED})
        return DataInputs(settings, {"data": node}, {"config": config})
    settings["dataset"].update(own)
    outside = {f"{name}: {what} of {rest[-1]}": (what, config, *rest) for what, *rest in contents}
    return DataInputs(settings, {}, {"config": config}, outside)
