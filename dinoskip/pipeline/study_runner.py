"""The runner of a study: its folder, its stages and its rules of storage, wherever a command or a call needs it."""

from __future__ import annotations

from collections.abc import Sequence

from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.study import STAGES


def study_runner(study: StudyBase, nodes: Sequence[Node], *, device: str = "auto", workers: int = 0) -> Runner:
    """What runs ``nodes``, some or all of the study's."""
    return Runner(study.directory, nodes, STAGES, device=device, workers=workers, storage=study.storage_rules)
