"""The stage ``pretrain``: a self-supervised run, resumed where it was killed. The output is the run directory."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Field, TypeAdapter, create_model

from dinoskip.config import Config, RawConfig, settings_for_key, validate
from dinoskip.data import sets as datasets
from dinoskip.data.shards import Source as Images
from dinoskip.fields import Name
from dinoskip.files import read_json
from dinoskip.init.config import ModelConfig, WeightSelectionInit
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stage import DataInputs, Problem, Stage, StudyNodes, Task, beyond_depth, not_multiples
from dinoskip.pipeline.stages import data
from dinoskip.pipeline.stages.inputs import dataset_of
from dinoskip.pipeline.variants import Variant
from dinoskip.training.objectives import AnyObjective, PretrainJob, dino_by_default
from dinoskip.training.pretrain_config import PretrainConfig
from dinoskip.training.recipe import FREE_KEYS

SWEEP_RESULT = "sweep.json"
WEIGHTS = "weights.safetensors"
FREE = tuple(key for key in FREE_KEYS if key != "keep_epochs")
"""Settings of a run that are no part of its key. ``keep_epochs`` is: it changes no number, but it says which
checkpoints the output holds, and the weights stage reads those."""


class PretrainSection(PretrainConfig):
    """The pretraining recipe and the data set it is run on (a key of ``data``). Every objective has one of its own."""

    dataset: Name = Field(description="key of data whose images are trained on")


_OF_OBJECTIVES: Any = functools.reduce(
    operator.or_,
    (create_model(f"{kind.__name__}Section", __base__=(kind, PretrainSection)) for kind in get_args(AnyObjective)),
)
AnySection: Any = Annotated[_OF_OBJECTIVES, Field(discriminator="objective"), BeforeValidator(dino_by_default)]


def section_of(tree: Mapping[str, Any]) -> PretrainSection:
    """The section of these settings, of the objective that they name; pydantic's ValidationError if it is none."""
    section: PretrainSection = TypeAdapter(AnySection).validate_python(dict(tree))
    return section


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Crops must be whole patches, and what is evaluated while training must be asked for."""
    section, online = study.find(PretrainSection), study.online
    if section is not None:
        for model in (variant.model for variant in variants if variant.model is not None):
            yield from ((f"pretrain.{key}", text) for key, text in section.problems(model).items())
        if section.online_every and not online.parts:
            yield "pretrain.online_every", "there is nothing to evaluate: add online.knn or online.probe"
    yield from not_multiples({f"online.{name}.size": part.size for name, part in online.parts.items()}, variants)
    for name, part in online.parts.items():
        if part.dataset not in study.data:
            known = ", ".join(study.data) or "none"
            yield f"online.{name}.dataset", f"{part.dataset!r} is not one of the data sets under data: {known}"
    counted = {
        f"online.{name}.blocks": [block if block > 0 else 1 - block for block in part.blocks]
        for name, part in online.parts.items()
        if part.blocks != "all"
    }
    yield from beyond_depth(counted, variants)
    timms = [variant.model.name for variant in variants if variant.model and len(set(_levels(variant.model))) > 1]
    for name, part in online.parts.items() if timms else ():
        if part.blocks == "all" or len(part.blocks) > 1:
            yield f"online.{name}.blocks", f"the levels of {timms[0]} have widths of their own: name one, such as [0]"


def _levels(model: ModelConfig) -> tuple[int, ...]:
    """Widths of what a network of timm's is read at; () of one of ours."""
    return () if model.timm_name is None else model.facts.widths


@dataclass(frozen=True)
class TrainingInputs:
    """What a node that trains a variant reads: the run's settings, its images, what is measured while it trains."""

    settings: dict[str, Any]
    data: DataInputs
    order_only: dict[str, str]


def inputs_of(
    nodes: StudyNodes, variant: Variant, recipe: Mapping[str, Any], key: str, splits: Sequence[str]
) -> TrainingInputs:
    """The inputs of a run by a recipe (the section's settings), which stands under ``key`` in the node's settings."""
    free = {setting: recipe[setting] for setting in FREE}
    assert variant.model is not None
    assert variant.optimizer is not None
    settings = {
        "seed": variant.seed,
        "model": settings_for_key(variant.model),
        "optimizer": settings_for_key(variant.optimizer),
        key: {setting: value for setting, value in recipe.items() if setting not in {"dataset", *FREE}},
    }
    images = data.of_dataset(nodes, recipe["dataset"], "train", *(("images", "pretraining", split) for split in splits))
    parts, order_only = _online(nodes)
    outside = {**images.outside, **selected_from(variant), **taught_by(nodes.study)}
    inputs = {**images.inputs, **start_of(nodes, variant)}
    runtime = {**images.runtime, "free": free, "online": parts}
    return TrainingInputs(settings, replace(images, inputs=inputs, outside=outside, runtime=runtime), order_only)


def _online(nodes: StudyNodes) -> tuple[dict[str, tuple[Config, Any]], dict[str, str]]:
    """What is measured while training, by name, and the nodes that make its data: no part of any key."""
    parts: dict[str, tuple[Config, Any]] = {}
    order_only: dict[str, str] = {}
    for name, part in nodes.study.online.parts.items():
        images = data.of_dataset(nodes, part.dataset, "train")
        parts[name] = part, images.runtime["config"]
        order_only |= {f"online {name}": node for node in images.inputs.values()}
    return parts, order_only


def selected_from(variant: Variant) -> dict[str, tuple[Any, ...]]:
    """The hash of the network from which a variant's first weights are selected, if they are."""
    init = variant.model.init if variant.model else None
    return {"weights selected from": ("backbone", init.teacher)} if isinstance(init, WeightSelectionInit) else {}


def taught_by(study: StudyBase) -> dict[str, tuple[Any, ...]]:
    """The hashes of the frozen networks, or the stores of their features, that pretraining reads."""
    section = study.find(PretrainSection)
    if section is None:
        return {}
    networks = {f"teacher {place}": ("backbone", spec) for place, spec in enumerate(section.backbones(), 1)}
    return networks | {f"store {place}": ("store", path) for place, path in enumerate(section.stores(), 1)}


def start_of(nodes: StudyNodes, variant: Variant) -> dict[str, str]:
    """The node that makes a variant's first weights, as the input ``start``, if its initialisation is measured."""
    node = f"calibrate/{variant.name}"
    return {"start": node} if node in nodes.nodes else {}


def start_file(task: Task) -> Path | None:
    """The first weights among a task's inputs."""
    return task.inputs["start"] / WEIGHTS if "start" in task.inputs else None


def add_nodes(nodes: StudyNodes) -> None:
    """A run for every variant that is to be trained, at the learning rate that its sweep chose, if there is one."""
    section = nodes.study.find(PretrainSection)
    if section is None:
        return
    for variant in nodes.variants:
        if variant.backbone is None:
            run_of = inputs_of(nodes, variant, settings_for_key(section), "pretrain", ("train",))
            nodes.add(
                STAGE,
                variant.name,
                run_of.settings,
                inputs={"sweep": variant.sweep} if variant.sweep in nodes.nodes else {},
                data=run_of.data,
                variant=variant.name,
                order_only=run_of.order_only,
            )


def images_of(task: Task) -> Images:
    """The training images of a task."""
    config, root = dataset_of(task)
    return datasets.open_training_images(config, root, split=task.settings["dataset"]["split"])


def job_source(task: Task, key: str, section: str) -> RawConfig:
    """The settings of a task's run, whose recipe stands under ``key`` there and is ``section`` of the job."""
    settings = {name: task.settings[name] for name in ("seed", "model", "optimizer")}
    return RawConfig({**settings, section: {**task.settings[key], **task.runtime["free"]}})


def job_of(task: Task, lr: float | None) -> PretrainJob:
    """The job of a task, with a learning rate in place of its optimizer's, if one is given."""
    source = job_source(task, "pretrain", "pretrain")
    if lr is not None:
        source.tree["optimizer"] = {**source.tree["optimizer"], "lr": lr}
    return validate(PretrainJob, source)


def chosen_rate(inputs: Mapping[str, Path]) -> float | None:
    """The learning rate that a variant's sweep chose; None without a sweep."""
    return float(read_json(inputs["sweep"] / SWEEP_RESULT)["lr"]) if "sweep" in inputs else None


def run(task: Task) -> None:
    """Train, or go on."""
    from dinoskip.pipeline.stages.training_runs import keep_checkpoints, observer_of, on_main, pretrain  # torch

    job, observer = job_of(task, chosen_rate(task.inputs)), observer_of(task)
    final = pretrain(
        job, images_of(task), task.out, device=task.device, workers=task.workers, observer=observer,
        start=start_file(task),
    )  # fmt: skip
    score = observer.score if observer else None
    on_main(lambda: keep_checkpoints(task.out, job.pretrain.keep_epochs, final, score))


STAGE = Stage(
    "pretrain",
    run,
    add_nodes,
    PretrainSection,
    AnySection,
    place="pretrain",
    required=False,
    use="pretraining",
    check=check,
    resumes=True,
    together=True,
    version=2,
)
