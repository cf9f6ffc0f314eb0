"""The runner of a study: its folder, stages, rules of storage and work, wherever a command or a call needs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType

from dinoskip.data.verdicts import DataVerdict, settle
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.output import given_folder
from dinoskip.pipeline import leaks, meaning, preflight
from dinoskip.pipeline.estimate.costs import Cost, costs, peak_memory
from dinoskip.pipeline.estimate.work import StudyImages
from dinoskip.pipeline.graph import Node, PlannedNode, Planner
from dinoskip.pipeline.progress import Work
from dinoskip.pipeline.report.results_folder import refuse_foreign
from dinoskip.pipeline.report.settings import ReportSettings
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.storage import size_below
from dinoskip.pipeline.study import STAGES
from dinoskip.pipeline.variants import Variant
from dinoskip.runtime.console import log

_REASON = 140  # letters of why a stage has not run


def study_runner(
    study: StudyBase,
    variants: Sequence[Variant],
    nodes: Sequence[Node],
    *,
    device: str = "auto",
    workers: int = 0,
    accept: Collection[str] | None = None,
    retrain: bool = False,
) -> Runner:
    """Return the runner of ``nodes``, some or all of the study's; its page states the findings on the study's data.

    With ``accept``, names of verdicts on the data that may pass beside those of the study's own ``accept``, it raises
    :class:`ConfigError` or :class:`DataError` for data that are refused, or doubtful and not accepted. None: it only
    shows what is there, and nothing stops it.
    """
    images = StudyImages(study)
    if accept is not None:  # before counts are kept in its folder
        for place in dict.fromkeys((study.directory, study.results)):
            given_folder(place, [root for data in study.data.values() if (root := getattr(data, "root", None))])
        preflight.refuse_unready(study, variants, nodes, images)
    found = [*meaning.verdicts(study), *leaks.verdicts(study)]
    accepted: list[str] = []
    if accept is not None:
        accepted = settle(found, {*study.accept, *accept})
        for line in accepted:
            log.warning("accepted: %s", line)
        for verdict in found:
            if verdict.state == "said":
                log.info("%s", verdict.line)
    of_data = [_with_verdicts(node, found) for node in nodes]
    on_disk = accept is not None and preflight.DISK not in {*study.accept, *accept}
    return runner_of(
        study, variants, of_data, device=device, workers=workers, accepted=accepted, retrain=retrain, on_disk=on_disk,
        images=images,
    )  # fmt: skip


def runner_of(
    study: StudyBase,
    variants: Sequence[Variant],
    nodes: Sequence[Node],
    *,
    device: str = "auto",
    workers: int = 0,
    accepted: Sequence[str] = (),
    retrain: bool = False,
    on_disk: bool = False,
    images: StudyImages | None = None,
) -> Runner:
    """Return the runner of ``nodes`` whose data have been checked; ``accepted`` are doubtful verdicts that pass.

    With ``on_disk`` it refuses to begin a run that the disk has no room for. ``images`` are the study's, if some of its
    data sets are listed already.
    """
    images = images or StudyImages(study)

    @cache
    def every_cost() -> Sequence[Cost]:
        return costs(images, study, variants, nodes)

    def works() -> dict[str, Work]:
        try:
            return {cost.node: (cost.kind, cost.work) for cost in every_cost()}
        except (ConfigError, DataError):  # said by the stage that reads it, which others do not need
            return {}

    def memory() -> dict[str, float]:
        try:
            return peak_memory(images, study, variants, nodes)
        except (ConfigError, DataError):  # as above
            return {}

    def room(runner: Runner, missing: Collection[str]) -> None:
        try:
            every = every_cost()
        except (ConfigError, DataError):
            return
        taken = sum(size_below(path) for path in runner.continued())
        readers = runner.planner.readers
        preflight.refuse_without_room(study.directory, every, missing, readers, study.storage_rules, taken)

    return Runner(
        study.directory,
        nodes,
        STAGES,
        device=device,
        workers=workers,
        storage=study.storage_rules,
        works=works,
        memory=memory,
        results=study.results,
        accepted=accepted,
        retrain=retrain,
        look=partial(_look, study, variants),
        room=room if on_disk else None,
    )


def _look(study: StudyBase, variants: Sequence[Variant]) -> None:
    """Raise if results cannot be written, or a network not be opened: before anything is computed."""
    refuse_foreign(study.results)
    preflight.refuse_networks(variants)


def _with_verdicts(node: Node, found: Sequence[DataVerdict]) -> Node:
    """The node; of a report with what its page says of the data."""
    if not isinstance(node.settings, ReportSettings) or not found:
        return node
    return replace(node, settings=replace(node.settings, said=[verdict.line for verdict in found]))


def report_without_missing(
    planner: Planner, steps: Sequence[PlannedNode], failed: Mapping[str, str] = MappingProxyType({})
) -> list[Node]:
    """The nodes of a study whose report waits for none that has not run: those are named in it as missing.

    The same nodes if nothing is missing, or if there is nothing to report yet. ``failed``: why, of those that a run
    could not make.
    """
    missing = {step.node.id: _brief(failed.get(step.node.id, step.reason)) for step in steps if step.state != "cached"}
    nodes = []
    for node in planner.nodes:
        left = {source: missing[source] for source in node.inputs.values() if source in missing}
        if node.stage == "report" and left and len(left) < len(node.inputs):
            inputs = {role: source for role, source in node.inputs.items() if source not in left}
            assert isinstance(node.settings, ReportSettings)
            node = replace(node, inputs=inputs, settings=replace(node.settings, missing=left))
        nodes.append(node)
    return nodes


def _brief(reason: str) -> str:
    return reason if len(reason) <= _REASON else f"{reason[: _REASON - 1]}…"
