"""The runner of a study: its folder, stages, rules of storage and estimate, wherever a command or a call needs it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dinoskip.pipeline.estimate import expected_seconds
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.study import STAGES
from dinoskip.pipeline.variants import Variant


def study_runner(
    study: StudyBase, variants: Sequence[Variant], nodes: Sequence[Node], *, device: str = "auto", workers: int = 0
) -> Runner:
    """What runs ``nodes``, some or all of the study's."""
    return Runner(
        study.directory,
        nodes,
        STAGES,
        device=device,
        workers=workers,
        storage=study.storage_rules,
        expected=partial(expected_seconds, study, variants, nodes, device),
    )
