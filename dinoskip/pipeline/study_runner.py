"""The runner of a study: its folder, stages, rules of storage and work, wherever a command or a call needs it."""

from __future__ import annotations

from collections.abc import Sequence

from dinoskip.errors import ConfigError, DataError
from dinoskip.pipeline.estimate import costs
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.progress import Work
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.study import STAGES
from dinoskip.pipeline.variants import Variant
from dinoskip.pipeline.work import StudyImages


def study_runner(
    study: StudyBase, variants: Sequence[Variant], nodes: Sequence[Node], *, device: str = "auto", workers: int = 0
) -> Runner:
    """What runs ``nodes``, some or all of the study's."""

    def works() -> dict[str, Work]:
        try:
            return {cost.node: (cost.kind, cost.work) for cost in costs(StudyImages(study), study, variants, nodes)}
        except (ConfigError, DataError):  # said by the stage that reads it, which others do not need
            return {}

    return Runner(
        study.directory,
        nodes,
        STAGES,
        device=device,
        workers=workers,
        storage=study.storage_rules,
        works=works,
        results=study.results,
    )
