"""The stage ``features``: every block of every image of one split, in one pass; ranks share the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dinoskip.pipeline.stage import Content, EvaluatedModel, Stage, StudyNodes, Task
from dinoskip.pipeline.stages import data
from dinoskip.read_points import usual_norm


def run(task: Task) -> None:
    """Export the features."""
    from dinoskip.distributed import world  # torch, as all of these
    from dinoskip.features import export
    from dinoskip.pipeline.inputs import export_options, open_backbone, open_split

    settings = task.settings
    dataset = open_split(task, settings["use"])
    with world(task.device) as here:
        export(
            open_backbone(settings, task.inputs.get("weights"), "cpu").to(here.device),
            dataset,
            task.out / "store",
            settings["blocks"],
            workers=task.workers,
            here=here,
            reserve=task.reserve,
            **export_options(settings),
        )


STAGE = Stage("features", run, resumes=True, disposable=True, together=True, version=2)


@dataclass(frozen=True)
class Source:
    """What a node needs to read features: a store among its ``inputs``, or what it takes to compute them in windows."""

    inputs: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict)
    contents: tuple[Content, ...] = ()
    outside: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    runtime: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Facets:
    """The facets that a task reads, each by a node of its own, of one export: one pass gives them all."""

    names: Sequence[str]

    @property
    def exported(self) -> str | list[str]:
        """``facet`` of the features' settings."""
        return self.names[0] if len(self.names) == 1 else list(self.names)

    @property
    def suffix(self) -> str:
        """What tells features of these facets from block outputs, in the name of their node."""
        return "" if tuple(self.names) == ("out",) else "-" + "+".join(self.names)

    def readers(self) -> list[tuple[str, str, dict[str, Any]]]:
        """For every facet: its name, what is added to its node's name (nothing for the first), and to its settings."""
        several = len(self.names) > 1
        return [
            (name, f"-{name}" if at else "", {"read": name} if several else {}) for at, name in enumerate(self.names)
        ]


def source_of(
    nodes: StudyNodes,
    model: EvaluatedModel,
    role: str,
    use: str,
    name: str,
    split: str,
    settings: Mapping[str, Any],
    suffix: str = "",
    *,
    stored: bool = False,
    read: str | None = None,
) -> Source:
    """Where a stage that reads features part by part has them from, as ``evaluate.features`` says.

    ``role`` is that of the store among the inputs, and of :func:`dinoskip.pipeline.inputs.open_features`; ``stored``:
    in a store in any case; ``read``: the facet that windows are of, where stores have several. The others are as of
    :func:`of_split`.
    """
    if stored or nodes.study.evaluate.features == "keep":
        return Source({role: of_split(nodes, model, use, name, split, settings, suffix)})
    return Source(
        dict(model.inputs),
        {
            f"features {role}": {
                **_settings(nodes, use, settings if read is None else {**settings, "facet": read}),
                **model.spec,
                "split": split,
                "version": STAGE.version,
            }
        },
        (("images", use, split),),
        model.outside,
        {"window": nodes.study.storage.window},
    )


def _settings(nodes: StudyNodes, use: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with norm, blocks and use written out."""
    evaluate = nodes.study.evaluate
    facet, norm = settings["facet"], evaluate.norm[0]
    usual = usual_norm(facet, norm) if isinstance(facet, str) else [usual_norm(name, norm) for name in facet]
    return {"norm": usual, **settings, "blocks": evaluate.block_list, "use": use}


def of_split(
    nodes: StudyNodes,
    model: EvaluatedModel,
    use: str,
    name: str,
    split: str,
    settings: Mapping[str, Any],
    suffix: str = "",
) -> str:
    """The node with the features that a stage reads of a split.

    ``settings`` are ``facet``, ``transform``, and ``norm`` where it is not the usual one. ``suffix`` tells the node's
    name from that of others of the same use.
    """
    full = {**_settings(nodes, use, settings), **model.spec}
    usual = _settings(nodes, use, {"facet": settings["facet"]})["norm"]
    norm = full["norm"]
    suffix += "" if norm == usual else f"-{norm if isinstance(norm, str) else '+'.join(dict.fromkeys(norm))}"
    return nodes.add(
        STAGE,
        f"{model.place}/{name}-{split}-{use}{suffix}",
        full,
        inputs=model.inputs,
        data=data.of_dataset(nodes, name, split, ("images", use, split)),
        outside=model.outside,
        variant=model.variant.name,
    )
