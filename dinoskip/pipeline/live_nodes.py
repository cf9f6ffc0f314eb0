"""Stages that send images through the backbone themselves: their nodes, and how those that fit heads run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from dinoskip.config import Config, as_tuple
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
    """``further`` settings of :func:`add_live_nodes` for facets, all of one width together; none for ``out`` alone.

    ``always``: for it, too. ``norm``: with the norm that each is read under, for stages that have none of their own.
    """
    of_blocks = nodes.study.evaluate.norm[0]
    together: dict[bool, list[str]] = {}
    for facet in facets:
        together.setdefault(facet == "hidden", []).append(facet)
    return {
        f"-{'+'.join(own)}" if at else "": {
            **({"facet": _one(own)} if own != ["out"] or always else {}),
            **({"norm": _one([usual_norm(facet, of_blocks) for facet in own])} if norm else {}),
        }
        for at, own in enumerate(together.values())
    }


def facets_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The facets that a node with settings of :func:`facet_settings` reads."""
    facet = settings.get("facet", "out")
    return (facet,) if isinstance(facet, str) else tuple(facet)


def _one(values: list[str]) -> str | list[str]:
    """A single value without its list."""
    return values[0] if len(values) == 1 else values


class FittedSection(Protocol):
    """Settings of a stage that fits on one split and scores another."""

    @property
    def train_split(self) -> str: ...  # noqa: D102
    @property
    def val_split(self) -> str: ...  # noqa: D102


def fit_and_score(task: Task, use: Use, section: FittedSection, evaluate: Callable[..., object], **more: Any) -> None:
    """Call ``evaluate`` with the network and both splits, as the stages of linear heads do."""
    _evaluate(task, use, (section.train_split, section.val_split), section, evaluate, more)


def score_split(task: Task, use: Use, config: Config, evaluate: Callable[..., object], **more: Any) -> None:
    """Call ``evaluate`` with the network and the split that is scored, as stages that fit nothing do."""
    _evaluate(task, use, (None,), config, evaluate, {"norms": as_tuple(task.settings["norm"]), **more})


def _evaluate(
    task: Task, use: Use, splits: Sequence[str | None], config: object, evaluate: Callable[..., object],
    more: Mapping[str, Any],
) -> None:  # fmt: skip
    from dinoskip.pipeline.inputs import multiscale_blocks, open_backbone, open_split, row_context  # torch

    settings = task.settings
    backbone = open_backbone(settings, task.inputs.get("weights"), task.device)
    evaluate(
        backbone, *(open_split(task, use, split) for split in splits), settings["blocks"], task.out, config,
        row_context(task, backbone), seed=settings["seed"], multiscale=multiscale_blocks(task, backbone.depth),
        workers=task.workers, facets=facets_of(settings), **more,
    )  # fmt: skip
