"""Output of ``plan --cluster FILE``: hours on the workers that the cluster's file names, memory and disk."""

from __future__ import annotations

from collections.abc import Sequence

from dinoskip.cli.arguments import Args, print_json, print_table
from dinoskip.errors import DiskFull
from dinoskip.pipeline.cluster import memory_of
from dinoskip.pipeline.estimate import costs as estimates
from dinoskip.pipeline.estimate.cards import CARDS, named
from dinoskip.pipeline.estimate.wall import WallTime, greedy, node_parts, node_seconds
from dinoskip.pipeline.estimate.work import StudyImages
from dinoskip.pipeline.graph import PlannedNode
from dinoskip.pipeline.runner import Runner
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.variants import Variant
from dinoskip.runtime.console import human_bytes, say
from dinoskip.runtime.cores import cores_counted_as
from dinoskip.runtime.environment import machine
from dinoskip.settings.config import read_yaml, validate
from dinoskip.training.launch import ClusterConfig

TAKEN = "h100"  # for a card that is not known: the one that was measured
STAGES = ("stage", "count", "hours")


def plan_on_cluster(args: Args, study: StudyBase, variants: Sequence[Variant], runner: Runner) -> int:
    """``dinoskip plan STUDY --cluster FILE``: what is left, over the file's jobs; cached stages take no time."""
    cluster, images = validate(ClusterConfig, read_yaml(args.cluster)), StudyImages(study, assume=True)
    nodes = runner.planner.nodes
    every_cost = estimates.costs(images, study, variants, nodes)
    cached = {step.node.id for step in _planned(runner, images) if step.state == "cached"}
    card, about = _card(cluster)
    if cluster.gpus_per_node:
        seconds = node_seconds(
            images, study, variants, nodes, every_cost, card, ranks=cluster.ranks, cores=cluster.cpus_per_task
        )
    else:
        measured = estimates.measured_rates(every_cost, runner.artifacts.root, machine())
        seconds = {cost.node: cost.work * measured.get(cost.kind, 0.0) for cost in every_cost}
        about = f"no GPUs: by the times of this machine, which {sum(not s for s in seconds.values())} stages lack"
    parts = node_parts(images, nodes)
    whole = greedy(nodes, seconds, cluster.jobs, cached=cached, parts=parts)
    with cores_counted_as(cluster.cpus_per_task):
        memory = estimates.peak_memory(images, study, variants, nodes)
    largest = max((node for node in memory if node not in cached), key=memory.__getitem__, default=None)
    disk, left = _disk(every_cost, runner, study), {cost.node: cost.disk for cost in every_cost}
    if args.json:
        print_json({
            "card": card if cluster.gpus_per_node else None, "about": about, "jobs": cluster.jobs,
            "hours": whole.seconds / 3600, "idle": whole.idle, "peak_disk": disk, "not_listed": sorted(images.assumed),
            "memory": memory.get(largest) if largest else None, "memory_of": largest,
            "stages": [{"node": node, "hours": spent / 3600, "begins": whole.begins.get(node, 0.0) / 3600,
                        "cached": node in cached, "parts": parts.get(node, 1), "memory": memory.get(node),
                        "disk": left.get(node)} for node, spent in seconds.items()],
        })  # fmt: skip
        return 0
    _print(cluster, whole, seconds, cached, runner)
    say(about)
    if largest is not None:
        node_has = memory_of(cluster)
        of_node = "" if node_has is None else f"; a job has {human_bytes(node_has / cluster.tasks_per_node)}"
        say(f"Memory beside networks: at most {human_bytes(memory[largest])}, {largest}{of_node}")
    say(f"Peak disk: {human_bytes(disk)}")
    say_assumed(images)
    return 0


def say_assumed(images: StudyImages) -> None:
    """Say of which data sets, which are absent, numbers of images were assumed."""
    if images.assumed:
        missing = ", ".join(sorted(images.assumed))
        say(f"{missing} not found: assuming the published number of images, or ImageNet-1k's if none is published")


def _planned(runner: Runner, images: StudyImages) -> list[PlannedNode]:
    """The plan; nothing is cached where data are not there to be compared."""
    return [] if images.assumed else runner.plan()


def _card(cluster: ClusterConfig) -> tuple[str, str]:
    """The card whose hours are given, and what is to be said of that."""
    known = named(cluster.card or "")
    card = known or TAKEN
    rates = CARDS[card]
    told = (
        f"{card.upper()}: {rates.bf16:,.0f} TFLOP/s in bfloat16, of which {rates.reached('bf16'):.0f} are reached "
        f"({'measured' if card == 'h100' else 'assumed from an H100'})"
    )
    if not known:
        asked = f"card: {cluster.card} is not known here" if cluster.card else "card is not in the file"
        told = f"{asked} (write one of {', '.join(CARDS)}): hours are those of an {told}"
    return card, told


def _disk(every_cost: Sequence[estimates.Cost], runner: Runner, study: StudyBase) -> float:
    try:
        return estimates.peak_disk(every_cost, runner.planner.readers, study.storage_rules)
    except DiskFull as full:
        say(f"warning: {full}", error=True)
        return float(study.storage.limit or 0)


def _print(
    cluster: ClusterConfig, whole: WallTime, seconds: dict[str, float], cached: set[str], runner: Runner
) -> None:
    by_stage: dict[str, list[float]] = {}
    for node in runner.planner.nodes:
        by_stage.setdefault(node.stage, []).append(0.0 if node.id in cached else seconds[node.id] / 3600)
    print_table([(stage, str(len(of)), f"{sum(of):,.2f}") for stage, of in by_stage.items()], STAGES)
    trainings = f", trainings on {cluster.ranks} GPUs" if cluster.gpus_per_node else ""
    digits = 1 if whole.seconds >= 3600 else 2
    say(
        f"{whole.seconds / 3600:,.{digits}f} hours over {cluster.jobs} jobs at once{trainings}, without queues; "
        f"{whole.idle:.0%} of the time of jobs is idle, whatever their number of GPUs"
    )
