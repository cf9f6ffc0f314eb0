"""Stages that send images through the backbone themselves: their nodes, and how those that fit heads run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from dinoskip.config import Config
from dinoskip.pipeline.stage import Stage, StudyNodes, Task, Use
from dinoskip.pipeline.stages import data
from dinoskip.read_points import usual_norm


def add_live_nodes(
    nodes: StudyNodes,
    stage: Stage,
    use: Use,
    datasets: Iterable[str],
    splits: tuple[str, ...],
    settings: Mapping[str, Any],
    further: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """A node of ``stage`` for every network and data set, with ``settings`` under the stage's name.

    The last of ``splits`` is scored. Where there are ``further`` settings there is a node for each of them, by what is
    added to its name.
    """
    contents = [(what, use, split) for split in dict.fromkeys(splits) for what in ("images", "targets")]
    for model in nodes.models:
        for name in datasets:
            for suffix, more in (further or {"": {}}).items():
                whole = {
                    stage.name: dict(settings),
                    "seed": nodes.study.seed,
                    "context": {**nodes.context(model.variant, model.epoch), "dataset": name},
                    "multiscale": nodes.multiscale(model.variant),
                    "blocks": nodes.study.evaluate.block_list,
                    **more,
                    **model.spec,
                }
                nodes.add(
                    stage,
                    f"{model.place}/{name}{suffix}",
                    whole,
                    inputs=model.inputs,
                    data=data.of_dataset(nodes, name, splits[-1], *contents),
                    outside=model.outside,
                    variant=model.variant.name,
                )


def facet_settings(
    nodes: StudyNodes, facets: Sequence[str], *, norm: bool = False, always: bool = False
) -> dict[str, dict[str, Any]]:
    """``further`` settings of :func:`add_live_nodes` for facets; nothing for block outputs, unless ``always``.

    ``norm``: with the norm that each is read under, for stages that have none of their own.
    """
    of_blocks = nodes.study.evaluate.norm[0]
    return {
        f"-{facet}" if at else "": {
            **({"facet": facet} if facet != "out" or always else {}),
            **({"norm": usual_norm(facet, of_blocks)} if norm else {}),
        }
        for at, facet in enumerate(facets)
    }


class FittedSection(Protocol):
    """Settings of a stage that fits on one split and scores another."""

    @property
    def norm(self) -> str: ...  # noqa: D102
    def model_copy(self, *, update: Mapping[str, Any]) -> FittedSection: ...  # noqa: D102

    @property
    def train_split(self) -> str: ...  # noqa: D102
    @property
    def val_split(self) -> str: ...  # noqa: D102


def fit_and_score(task: Task, use: Use, section: FittedSection, evaluate: Callable[..., object], **more: Any) -> None:
    """Call ``evaluate`` with the network and both splits, as the stages of linear heads do."""
    norm = usual_norm(task.settings.get("facet", "out"), section.norm)
    section = section if norm == section.norm else section.model_copy(update={"norm": norm})
    _evaluate(task, use, (section.train_split, section.val_split), section, evaluate, more)


def score_split(task: Task, use: Use, config: Config, evaluate: Callable[..., object], **more: Any) -> None:
    """Call ``evaluate`` with the network and the split that is scored, as stages that fit nothing do."""
    _evaluate(task, use, (None,), config, evaluate, {"norm": task.settings["norm"], **more})


def _evaluate(
    task: Task, use: Use, splits: Sequence[str | None], config: object, evaluate: Callable[..., object],
    more: Mapping[str, Any],
) -> None:  # fmt: skip
    from dinoskip.pipeline.inputs import multiscale_blocks, open_backbone, open_split, row_context  # torch

    settings = task.settings
    backbone = open_backbone(settings, task.inputs.get("weights"), task.device).read_at(settings.get("facet", "out"))
    evaluate(
        backbone, *(open_split(task, use, split) for split in splits), settings["blocks"], task.out, config,
        row_context(task, backbone), seed=settings["seed"], multiscale=multiscale_blocks(task, backbone.depth),
        workers=task.workers, **more,
    )  # fmt: skip
